/// Products through Kokkos Kernels, which calls the BLAS of a host and multiplies itself, or by cuBLAS, on a GPU; on a
/// host with threads by that BLAS on all of them (host_blas.hpp).
#pragma once

#include <KokkosBlas3_gemm.hpp>

#include "kernels/core/compat.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/gemm/host_blas.hpp"
#include "kernels/gemm/tool_kernel.hpp"

namespace tessera::kernels::kokkos_kernels {

/// c = factor op(a) op(b) + beta c. The library takes Views and nothing derived from them; operands and result are of
/// one type. `label` names it in profiles.
template <class Exec, class Real>
void multiply(const Exec& exec, const char* label, Real factor, Tensor<Exec, const Real**> a, Op op_a,
              Tensor<Exec, const Real**> b, Op op_b, Real beta, Tensor<Exec, Real**> c) {
  if constexpr (kHasThreads<Exec>) {
    return host_blas::multiply_blocks(exec, label, 1, c.extent_int(0), [=](int, int first, int count) {
      host_blas::multiply_rows<Exec, Real>(first, count, factor, a, op_a, b, op_b, beta, c);
    });
  }
  const char* const letters[] = {"N", "T"};
  const char* letter_a = letters[static_cast<int>(op_a)];
  const char* letter_b = letters[static_cast<int>(op_b)];
  const detail::ToolKernel watched(exec, label, "kokkos_kernels");
  const auto call = [&](const auto&... instance) {
    KokkosBlas::gemm(instance..., letter_a, letter_b, factor, a, b, beta, c);
  };
  if constexpr (kBlasTakesInstance) {
    call(exec);
  } else {
    call();
  }
}

}  // namespace tessera::kernels::kokkos_kernels
