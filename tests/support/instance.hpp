/// The instance on which tests launch kernels: Kokkos' default one, or another, to check that kernels run on the
/// caller's.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/tensor.hpp"

namespace tessera::test {

namespace detail {
inline const kernels::Device* other_instance = nullptr;
}  // namespace detail

inline kernels::Device instance() { return detail::other_instance ? *detail::other_instance : kernels::Device(); }

/// While it exists, instance() has a separate stream: a launch that ignores the caller's instance goes elsewhere. A
/// host has only one instance, so there it changes nothing.
class OtherInstance {
 public:
  OtherInstance() { detail::other_instance = &exec_; }
  ~OtherInstance() { detail::other_instance = nullptr; }
  OtherInstance(const OtherInstance&) = delete;
  OtherInstance& operator=(const OtherInstance&) = delete;

 private:
  static kernels::Device made() {
#ifdef KOKKOS_ENABLE_CUDA
    return Kokkos::Experimental::partition_space(kernels::Device(), 1)[0];
#else
    return kernels::Device();
#endif
  }

  kernels::Device exec_ = made();
};

}  // namespace tessera::test
