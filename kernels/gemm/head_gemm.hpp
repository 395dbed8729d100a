/// Batched matrix products by a library, one matrix per head: c[b,h] = factor * a[b,h] * b[b,h].
///
/// The same fields as HeadProduct. Rows or columns of a and b are contiguous; their strides say which, so a transpose
/// is a swap of two. On CUDA GPUs: cuBLASLt, in one call where the heads of each operand are evenly spaced, as those of
/// scores are; heads inside a fused qkv buffer take min(B, H) calls. On hosts: the BLAS (host_blas.hpp), for float and
/// double. What remains has no such library and runs HeadProduct: 16 bits on hosts, and GPUs without cuBLASLt.
///
/// Numerics   sums in Accum<Scalar>, c rounded to Scalar once. GemmMath::tf32: kernels/gemm/gemm.hpp.
/// Order      the library's: repeatable for the same library, processor, shapes and strides. Algorithms are the
///            library's first proposals, whatever set_gemm_selection says; gemm_algorithms lists them.
/// Memory     no workspace.
/// Cost       2*B*H*M*N*K flop.
/// Async      returns after enqueue on `exec`; never fences. The first product of a kind initialises the library.
/// Throws     std::invalid_argument when shapes disagree, an operand has neither rows nor columns contiguous, or tf32
///            is requested for another type than float or without cuBLASLt.
#pragma once

#include "kernels/core/dtype.hpp"
#include "kernels/core/target.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/gemm/operation.hpp"

namespace tessera::kernels {

/// Whether a library multiplies heads of a dtype.
constexpr bool has_head_library(Dtype dtype, const Target& target) {
  return target.is_host ? dtype != Dtype::bf16 && dtype != Dtype::fp16 : target.has_vendor_parts();
}

template <class Exec, class Scalar>
struct HeadGemm {
  const char* label;                 // "tessera::attention::standard::..."
  HeadTensor<const Scalar, Exec> a;  // [B,H,M,K]  in
  HeadTensor<const Scalar, Exec> b;  // [B,H,K,N]  in
  HeadTensor<Scalar, Exec> c;        // [B,H,M,N]  out, rows contiguous
  Accum<Scalar> factor;
  GemmMath math = GemmMath::full;

  void launch(const Exec& exec) const;
};

}  // namespace tessera::kernels
