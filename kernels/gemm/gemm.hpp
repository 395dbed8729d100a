/// Matrix products through one interface: c = op(a) op(b), or c += op(a) op(b).
///
/// The library behind it is the backend's business: Kokkos Kernels over the vendor's BLAS for float and double.
/// The 16-bit types have no library product on CPUs: their operands are widened into float panels of the caller's
/// workspace and multiplied there, so the sums run in float, as on tensor cores.
///
/// Numerics   products and sums in Accum<In>; c rounded to Out once (per call).
/// Order      the library's: repeatable for the same library, processor and shapes.
/// Memory     workspace of gemm_workspace<In, Out>(m, n, k) floats: 0 where In is float or double.
/// Async      returns after enqueue on `exec`; never fences, never allocates.
/// Throws     std::invalid_argument when shapes disagree or the workspace is too small.
#pragma once

#include <string>

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

enum class Op : bool { none, transpose };

template <class Exec, class In, class Out = In>
struct Gemm {
  Matrix<const In, Exec> a;  // [m,k], or [k,m] when transposed
  Op op_a;
  Matrix<const In, Exec> b;  // [k,n], or [n,k] when transposed
  Op op_b;
  Matrix<Out, Exec> c;  // [m,n]
  bool accumulate;      // c += instead of c =
  Vector<float, Exec> workspace;

  void launch(const Exec& exec) const;
};

/// What answers the products of float and double in this process: file and configuration of the BLAS that was loaded.
std::string gemm_library();

/// Floats of workspace that a product of these sizes needs.
template <class In, class Out>
constexpr std::int64_t gemm_workspace(std::int64_t m, std::int64_t n, std::int64_t k) {
  if (sizeof(In) > 2) return 0;
  return m * k + k * n + (sizeof(Out) > 2 ? 0 : m * n);
}

}  // namespace tessera::kernels
