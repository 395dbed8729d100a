/// Matrix products through one interface: c = op(a) op(b), or c += op(a) op(b).
///
/// The library behind it is the backend's business. On CPUs: Kokkos Kernels over the BLAS that is loaded; the 16-bit
/// types have no library product there, so their operands are widened into float panels of the caller's workspace and
/// multiplied as floats. On CUDA GPUs: cuBLASLt for the 16-bit types and for float in tf32 mode, Kokkos Kernels over
/// cuBLAS for float and double.
///
/// Numerics   products and sums in Accum<In> on every backend; c rounded to Out once (per call). Exception: a product
///            that accumulates in 16 bits is rounded before and after the addition on Hopper. Tensor cores cut their
///            float sums where arithmetic units round them, once in 16 terms: the error grows like the length k, not
///            like its root (of the norm of c, measured: 1.9e-5 for k = 16,384, 7.6e-5 for 65,536). GemmMath::tf32
///            takes 10 fraction bits of the operands of a float product.
/// Error      for operands up to 1: eps<Out> of itself and E<Accum<In>>(k) (1 + sqrt(k)) (kernels/core/scalar.hpp).
/// Order      the library's: repeatable for the same library, processor and shapes. On GPUs an algorithm is chosen at
///            the first product of a kind and kept for the life of the process (gemm_algorithms, below).
/// Memory     workspace of gemm_workspace<Exec, In, Out>(m, n, k, math) floats, however aligned.
/// Fast       on GPUs rows and pointers that are multiples of 16 bytes (so m, n, k multiples of 8 in 16 bits), best of
///            128 bytes; every other shape works, several times slower.
/// Async      returns after enqueue on `exec`; never fences, never allocates, and may be captured in a graph. The first
///            product of a kind sets its library up: run the step once before it is timed, counted or captured.
/// Threads    one thread of a process calls this on GPUs.
/// Throws     std::invalid_argument when shapes disagree, the workspace is too small, or tf32 is asked of CPUs or of
///            another type than float; std::runtime_error when the library fails.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

enum class Op : bool { none, transpose };
enum class GemmMath : bool { full, tf32 };  // tf32: float operands on tensor cores, with 10 fraction bits

template <class Exec, class In, class Out = In>
struct Gemm {
  Matrix<const In, Exec> a;  // [m,k], or [k,m] when transposed
  Op op_a;
  Matrix<const In, Exec> b;  // [k,n], or [n,k] when transposed
  Op op_b;
  Matrix<Out, Exec> c;  // [m,n]
  bool accumulate;      // c += instead of c =
  Vector<float, Exec> workspace;
  GemmMath math = GemmMath::full;

  void launch(const Exec& exec) const;
};

/// What answers the products in this process: file and configuration of the BLAS that was loaded, versions on GPUs.
std::string gemm_library();

/// How the algorithm of a product is chosen that is met for the first time (GPUs; CPUs have nothing to choose).
enum class GemmSelection : bool {
  heuristic,  // the library's first proposal: the same in every process on the same library and GPU
  timed,  // the fastest of its proposals on the operands at hand: fences and allocates once, leaves c as it would be
};
void set_gemm_selection(GemmSelection selection);

/// Bytes of the device that a selection by time takes while it lasts, for a result of `result_bytes`: the result, and
/// what empties the caches.
inline constexpr std::int64_t kGemmFlushBytes = std::int64_t{128} << 20;  // more than any second-level cache so far
constexpr std::int64_t gemm_timing_bytes(std::int64_t result_bytes) {
  return kIsHost<Device> ? 0 : result_bytes + kGemmFlushBytes;
}

/// The algorithms in use, one line each, after a line that names library and GPU. Empty where nothing was chosen.
/// Whoever selects by time and wants the same bits again keeps these lines and hands them to set_gemm_algorithms.
std::vector<std::string> gemm_algorithms();

/// Replaces the algorithms in use by lines of gemm_algorithms (none: every kind of product is chosen anew).
/// Throws std::invalid_argument for lines that cannot be read, std::runtime_error for another library or GPU than these
/// were chosen with, and for an algorithm that cannot run here.
void set_gemm_algorithms(const std::vector<std::string>& lines);

/// Floats of workspace that a product of these sizes needs.
template <class Exec, class In, class Out>
constexpr std::int64_t gemm_workspace(std::int64_t m, std::int64_t n, std::int64_t k, GemmMath math = GemmMath::full) {
  // 32 MiB from the first address that is a multiple of 256 bytes
  if (!kIsHost<Exec>) return sizeof(In) > 2 && math == GemmMath::full ? 0 : (std::int64_t{1} << 23) + 64;
  if (sizeof(In) > 2) return 0;
  return m * k + k * n + (sizeof(Out) > 2 ? 0 : m * n);
}

}  // namespace tessera::kernels
