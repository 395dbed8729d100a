/// Engine::mma for attention.cpp, in every build: its kernels, if the build has them.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/scalar.hpp"
#include "kernels/gemm/operation.hpp"
#ifdef TESSERA_VENDOR_CUDA
  #include "kernels/attention/flash2/ampere/backward.hpp"
  #include "kernels/attention/flash2/ampere/float_backward.hpp"
  #include "kernels/attention/flash2/ampere/float_forward.hpp"
  #include "kernels/attention/flash2/ampere/forward.hpp"
#endif

namespace tessera::kernels {

template <class Exec, class Scalar>
struct AmpereEngine {
  static constexpr bool kHasKernels = false;
};

#ifdef TESSERA_VENDOR_CUDA
template <class Scalar>
requires(sizeof(Scalar) == 2) struct AmpereEngine<Kokkos::Cuda, Scalar> {
  static constexpr bool kHasKernels = true;
  using Workspace = Vector<std::byte, Kokkos::Cuda>;
  static void forward(const Kokkos::Cuda& exec, const ForwardTask<Kokkos::Cuda, Scalar>& task, GemmMath) {
    AmpereForward<Scalar>{task}.launch(exec);
  }
  static void backward(const Kokkos::Cuda& exec, const BackwardTask<Kokkos::Cuda, Scalar>& task, DqOrder order,
                       const Workspace& workspace, GemmMath) {
    AmpereBackward<Scalar>{task, order, workspace}.launch(exec);
  }
};

template <>
struct AmpereEngine<Kokkos::Cuda, float> {
  static constexpr bool kHasKernels = true;
  static constexpr int tf32_products(GemmMath math) { return math == GemmMath::tf32 ? 1 : 3; }
  using Workspace = Vector<std::byte, Kokkos::Cuda>;
  static void forward(const Kokkos::Cuda& exec, const ForwardTask<Kokkos::Cuda, float>& task, GemmMath math) {
    AmpereFloatForward{task, tf32_products(math)}.launch(exec);
  }
  static void backward(const Kokkos::Cuda& exec, const BackwardTask<Kokkos::Cuda, float>& task, DqOrder order,
                       const Workspace& workspace, GemmMath math) {
    AmpereFloatBackward{task, order, workspace, tf32_products(math)}.launch(exec);
  }
};
#endif

}  // namespace tessera::kernels
