/// Products on CUDA GPUs through cuBLASLt: gemm.cpp's products with types and shapes as run-time values.
///
/// The library is column-major; our row-major c = op(a) op(b) is its c^T = op(b)^T op(a)^T, with the operands swapped
/// and no data moved. One table per process holds, for each kind of product, descriptors and the algorithm in use.
///
/// Numerics   split sums are reduced in float and in a fixed order: no proposal that reduces in 16 bits is taken.
/// Source     cuBLAS documentation, "cublasLtMatmul"; stored algorithms are valid for one version of the library only.
#pragma once

#include <Kokkos_Core.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/scalar.hpp"
#include "kernels/gemm/operation.hpp"

namespace tessera::kernels::cublaslt {

/// Whether Exec's products may use cuBLASLt. In builds without it what follows is declared, so that callers need no
/// guard, but not defined.
template <class Exec>
inline constexpr bool kServes = false;
#ifdef TESSERA_VENDOR_CUDA
template <>
inline constexpr bool kServes<Kokkos::Cuda> = true;
#endif

/// Several products of a kind in one call, whose operands are not packed. In order: of a, b and c.
struct Batch {
  int count = 0;                       // 0: a single product of packed matrices
  std::array<std::int64_t, 3> row{};   // from a row to the next [elements]
  std::array<std::int64_t, 3> step{};  // from a matrix to the next [elements]

  auto operator<=>(const Batch&) const = default;
};

/// A kind of product: what an algorithm is chosen for.
struct Kind {
  Dtype in, out;
  GemmMath math;
  Op op_a, op_b;
  std::int64_t m, n, k;
  bool accumulate;
  int alignment;  // of every operand's address [bytes], at most 16
  Batch batch = {};

  auto operator<=>(const Kind&) const = default;
};

inline constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
inline constexpr std::size_t kWorkspaceAlignment = 256;  // bytes; the library refuses less
static_assert(gemm_workspace<bfloat16, bfloat16>({.is_host = false}, 1, 1, 1) * sizeof(float) ==
              kWorkspaceBytes + kWorkspaceAlignment);

struct Operands {
  const void *a, *b;
  const void* before;  // addend of an accumulating product: c, except while products are timed
  void* c;
  void* workspace;  // kWorkspaceBytes; none for float and double products in full precision, and for batches
  double factor = 1;
  const char* label = nullptr;  // in profiles; null: detail::product_label
};

/// Bytes that divide every operand's address, at most 16.
inline int common_alignment(const Operands& x) {
  const std::uintptr_t addresses = reinterpret_cast<std::uintptr_t>(x.a) | reinterpret_cast<std::uintptr_t>(x.b) |
                                   reinterpret_cast<std::uintptr_t>(x.c) | 16;
  return static_cast<int>(addresses & -addresses);
}

template <class Exec>
void multiply(const Exec& exec, const Kind& kind, const Operands& operands);

GemmSelection set_selection(GemmSelection selection);  // returns the one before
std::vector<std::string> algorithms();
void set_algorithms(const std::vector<std::string>& lines);
std::string versions();  // "cuBLASLt 13.1.0"

}  // namespace tessera::kernels::cublaslt
