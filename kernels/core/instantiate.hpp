/// The only list of (execution space, scalar) pairs that kernels are compiled for.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/tensor.hpp"

#define TESSERA_FOR_EACH_SCALAR(MACRO, Exec) \
  MACRO(Exec, double)                        \
  MACRO(Exec, float)                         \
  MACRO(Exec, ::tessera::bfloat16)           \
  MACRO(Exec, ::tessera::float16)

/// Device is the host in builds without GPUs. A GPU build runs nothing on the host, whose kernels it need not compile.
#define TESSERA_FOR_EACH_EXEC_SCALAR(MACRO) TESSERA_FOR_EACH_SCALAR(MACRO, ::tessera::kernels::Device)

/// Compiles a kernel, a struct template, for all of them.
#define TESSERA_INSTANTIATE_KERNEL(Kernel)                                 \
  template struct Kernel<::tessera::kernels::Device, double>;              \
  template struct Kernel<::tessera::kernels::Device, float>;               \
  template struct Kernel<::tessera::kernels::Device, ::tessera::bfloat16>; \
  template struct Kernel<::tessera::kernels::Device, ::tessera::float16>
