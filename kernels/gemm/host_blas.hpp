/// Products on the threads of a host: each takes blocks of rows of a result and calls the BLAS, which is a serial one.
///
/// Order    a block's is the library's. Blocks follow from the shape alone: the bits do not depend on the number of
///          threads.
/// Threads  OpenBLAS' serial flavour (Debian's libopenblas0-serial) mixes up the buffers of simultaneous calls: with
///          it one thread computes all blocks, and gemm_library says so. Its pthread flavour is safe, as others are.
#pragma once

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "kernels/core/round_up.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/gemm/openblas.hpp"
#include "kernels/gemm/operation.hpp"

extern "C" {
void sgemm_(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const float* factor,
            const float* a, const int* a_column, const float* b, const int* b_column, const float* beta, float* c,
            const int* c_column);
void dgemm_(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const double* factor,
            const double* a, const int* a_column, const double* b, const int* b_column, const double* beta, double* c,
            const int* c_column);
}

namespace tessera::kernels::host_blas {

/// Rows of a result that a thread takes at a time: as few as cost a product of 4,096 rows nothing.
inline constexpr int kRows = 64;

/// Rows first .. first + count of c = factor op(a) op(b) + beta c, on this thread. The BLAS knows columns: it sees each
/// matrix transposed, and c^T = op(b)^T op(a)^T.
template <class Exec, class Real>
void multiply_rows(int first, int count, Real factor, const Tensor<Exec, const Real**>& a, Op op_a,
                   const Tensor<Exec, const Real**>& b, Op op_b, Real beta, const Tensor<Exec, Real**>& c) {
  const bool ta = op_a == Op::transpose, tb = op_b == Op::transpose;
  const int n = c.extent_int(1), k = a.extent_int(ta ? 0 : 1);
  const int a_row = static_cast<int>(a.stride(0)), b_row = static_cast<int>(b.stride(0));
  const int c_row = static_cast<int>(c.stride(0));
  const Real* a_first = a.data() + first * (ta ? std::int64_t{1} : a_row);
  Real* c_first = c.data() + std::int64_t{first} * c_row;
  const auto call = [&](auto gemm) {
    gemm(tb ? "T" : "N", ta ? "T" : "N", &n, &count, &k, &factor, b.data(), &b_row, a_first, &a_row, &beta, c_first,
         &c_row);
  };
  if constexpr (std::is_same_v<Real, float>) {
    call(sgemm_);
  } else {
    call(dgemm_);
  }
}

/// `products` products of m rows each: rows_of(i, first, count) computes rows of the i-th; without threads, all of them
/// at once.
template <class Exec, class RowsOf>
void multiply_blocks(const Exec& exec, const char* label, int products, int m, const RowsOf& rows_of) {
  const int rows = kHasThreads<Exec> ? kRows : std::max(m, 1);
  const int blocks = ceil_div(m, rows), count = products * blocks;
  using Policy = Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<int>>;
  Kokkos::parallel_for(std::string(label) + "[blas]",
                       Policy(exec, 0, count, Kokkos::ChunkSize(openblas::is_safe_for_threads() ? 1 : count)),
                       [=](int i) {
                         const int first = i % blocks * rows;
                         rows_of(i / blocks, first, std::min(rows, m - first));
                       });
}

}  // namespace tessera::kernels::host_blas
