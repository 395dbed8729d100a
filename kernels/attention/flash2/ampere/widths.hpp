/// The row widths that the sm_80 attention kernels are compiled for, each in a translation unit of its own.
#pragma once

#include "kernels/attention/flash2/ampere/backward.hpp"
#include "kernels/attention/flash2/ampere/forward.hpp"
#include "kernels/core/require.hpp"

/// The narrowest width of backward; it serves narrower rows as well.
#define TESSERA_AMPERE_MIN_BACKWARD 32

namespace tessera::kernels::ampere {

inline constexpr int kMinForward = 16, kMinBackward = TESSERA_AMPERE_MIN_BACKWARD;

/// Defined in width.cpp.in, once per width. The shapes have been checked and are not empty.
template <class Scalar, int kWidth>
void launch_forward(const Kokkos::Cuda& exec, const ForwardTask<Kokkos::Cuda, Scalar>& task);
template <class Scalar, int kWidth>
void launch_backward(const Kokkos::Cuda& exec, const AmpereBackward<Scalar>& problem);

/// Calls launch.operator()<kWidth>() for the narrowest width from kMin on that holds D.
template <int kMin, class Launch>
void for_width(int D, const Launch& launch) {
  if constexpr (kMin <= 16) {
    if (D <= 16) return launch.template operator()<16>();
  }
  if (D <= 32) return launch.template operator()<32>();
  if (D <= 64) return launch.template operator()<64>();
  if (D <= 80) return launch.template operator()<80>();
  if (D <= 96) return launch.template operator()<96>();
  if (D <= 128) return launch.template operator()<128>();
  if (D <= 160) return launch.template operator()<160>();
  if (D <= 192) return launch.template operator()<192>();
  return launch.template operator()<256>();
}

/// Rows are copied 16 bytes at a time.
template <class Heads>
void require_aligned_rows(const char* rule, const Heads& heads) {
  constexpr int kElements = 16 / sizeof(typename Heads::non_const_value_type);
  TESSERA_REQUIRE(reinterpret_cast<std::uintptr_t>(heads.data()) % 16 == 0 && heads.stride(0) % kElements == 0 &&
                      heads.stride(1) % kElements == 0 && heads.stride(2) % kElements == 0,
                  rule, static_cast<const void*>(heads.data()), heads.stride(0), heads.stride(1), heads.stride(2));
}

}  // namespace tessera::kernels::ampere
