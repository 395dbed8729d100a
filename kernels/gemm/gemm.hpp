/// Matrix products through one interface: c = op(a) op(b), or c += op(a) op(b).
///
/// The backend determines the library. On CPUs: Kokkos Kernels over the BLAS that is loaded, which has no 16-bit
/// products: 16-bit operands are widened into float panels of the caller's workspace and multiplied as floats. On CUDA
/// GPUs: cuBLASLt for the 16-bit types and for float in tf32 mode, Kokkos Kernels over cuBLAS for float and double. On
/// GPUs with TESSERA_VENDOR=OFF: Kokkos Kernels, with panels as on CPUs.
///
/// Numerics   products and sums in Accum<In> on every backend; c rounded to Out once (per call). Exception: a product
///            that accumulates in 16 bits is rounded before and after the addition on Hopper. Tensor cores truncate
///            their float sums where arithmetic units round them, once in 16 terms: the error grows like k, not like
///            sqrt(k) (measured, relative to the norm of c: 1.9e-5 for k = 16,384, 7.6e-5 for 65,536). GemmMath::tf32
///            uses 10 fraction bits of the operands of a float product.
/// Error      for operands up to 1: eps<Out> relative, plus E<Accum<In>>(k) (1 + sqrt(k)) (kernels/core/scalar.hpp).
/// Order      the library's: repeatable for the same library, processor and shapes. On GPUs an algorithm is chosen at
///            the first product of a kind and kept for the life of the process (gemm_algorithms, below).
/// Memory     workspace of gemm_workspace<In, Out>(target, m, n, k, math) floats, of any alignment.
/// Fast       on GPUs: rows and pointers aligned to 16 bytes (so m, n, k multiples of 8 in 16 bits), ideally to 128
///            bytes; other shapes work, several times slower.
/// Async      returns after enqueue on `exec`; never fences, never allocates, and may be captured in a graph. The first
///            product of a kind initialises the library: run the step once before it is timed, counted or captured.
/// Threads    on GPUs only one thread of a process may call this.
/// Throws     std::invalid_argument when shapes disagree, the workspace is too small, or tf32 is requested
///            without cuBLASLt or for another type than float; std::runtime_error when the library fails.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/target.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/gemm/operation.hpp"

namespace tessera::kernels {

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

/// The libraries in use: file and configuration of the BLAS that was loaded, versions on GPUs.
std::string gemm_library();

/// The threads that call a host's BLAS at the same time; 1 where it allows one alone, and on GPUs.
int blas_threads();

/// Computes a product, so that the library takes the memory that it keeps. OpenBLAS maps a buffer of 128 MiB for each
/// of blas_threads() and, where that fails, tries again for ever: check first that there is room.
void warm_up_gemm();

/// Returns the one before.
GemmSelection set_gemm_selection(GemmSelection selection);

/// The algorithms in use, one line each, after a line that names library and GPU. Empty if none was chosen. To repeat a
/// timed selection bit for bit, store these lines and pass them to set_gemm_algorithms.
std::vector<std::string> gemm_algorithms();

/// Replaces the algorithms in use by lines of gemm_algorithms (none: every kind of product is chosen anew).
/// Throws std::invalid_argument for lines that cannot be parsed, std::runtime_error if they were chosen with another
/// library or GPU, or an algorithm cannot run here.
void set_gemm_algorithms(const std::vector<std::string>& lines);

}  // namespace tessera::kernels
