/// The sm_80 attention kernels of each row width (sizes.hpp), compiled in a translation unit of its own.
#pragma once

#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/packet.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {
template <class Scalar>
struct AmpereBackward;
struct AmpereFloatBackward;
}  // namespace tessera::kernels

namespace tessera::kernels::ampere {

/// Defined in width.cpp.in, once per width. The shapes have been checked and are not empty.
template <class Scalar, int kWidth>
void launch_forward(const Kokkos::Cuda& exec, const ForwardTask<Kokkos::Cuda, Scalar>& task);
template <class Scalar, int kWidth>
void launch_backward(const Kokkos::Cuda& exec, const AmpereBackward<Scalar>& problem);

/// The same of float, in float_width.cpp.in.
template <int kProducts, int kWidth>
void launch_float_forward(const Kokkos::Cuda& exec, const ForwardTask<Kokkos::Cuda, float>& task);
template <int kProducts, int kWidth>
void launch_float_backward(const Kokkos::Cuda& exec, const AmpereFloatBackward& problem);

/// Rows are copied 16 bytes at a time, and those of a tile that do not exist are addressed, too.
template <class Heads>
void require_aligned_rows(const char* rule, const Heads& heads) {
  TESSERA_REQUIRE(
      rows_start_at_packets(heads) && heads.stride(2) % kPacketElements<typename Heads::non_const_value_type> == 0,
      rule, static_cast<const void*>(heads.data()), heads.stride(0), heads.stride(1), heads.stride(2));
}

}  // namespace tessera::kernels::ampere
