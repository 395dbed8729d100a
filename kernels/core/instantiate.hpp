/// The only list of (execution space, scalar) pairs that kernels are compiled for.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {
using HostExec = Kokkos::DefaultHostExecutionSpace;
}  // namespace tessera::kernels

#define TESSERA_FOR_EACH_SCALAR(MACRO, Exec) \
  MACRO(Exec, double)                        \
  MACRO(Exec, float)                         \
  MACRO(Exec, ::tessera::bfloat16)           \
  MACRO(Exec, ::tessera::float16)

#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP) || defined(KOKKOS_ENABLE_SYCL)
  #define TESSERA_FOR_EACH_EXEC_SCALAR(MACRO)                    \
    TESSERA_FOR_EACH_SCALAR(MACRO, ::tessera::kernels::HostExec) \
    TESSERA_FOR_EACH_SCALAR(MACRO, ::tessera::kernels::Device)
#else
  #define TESSERA_FOR_EACH_EXEC_SCALAR(MACRO) TESSERA_FOR_EACH_SCALAR(MACRO, ::tessera::kernels::HostExec)
#endif
