/// The shape letters and View aliases of all kernels.
///
///   B sequences   T tokens of one sequence   N = B*T rows   C model width   H heads   D = C/H head width
///   F MLP width   V vocabulary               L layers       R ranks
///
/// All tensors are row-major, unmanaged slices of one arena: the last index is contiguous, and a View neither counts
/// references nor frees memory. A head tensor [B,H,T,D] has arbitrary strides, because q, k and v are interleaved in
/// the fused qkv buffer [N,3C]; its last stride must be 1.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>

#include "kernels/core/scalar.hpp"

namespace Kokkos {
class Serial;  // even where Kokkos is built without it
}

namespace tessera::kernels {

using Device = Kokkos::DefaultExecutionSpace;

/// Whether the host can access the memory of Exec.
template <class Exec>
inline constexpr bool kIsHost = Kokkos::SpaceAccessibility<Exec, Kokkos::HostSpace>::accessible;

/// Whether Exec is a host's that runs teams, and the iterations of a loop, on several threads.
template <class Exec>
inline constexpr bool kHasThreads = kIsHost<Exec> && !std::is_same_v<Exec, Kokkos::Serial>;

using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;

template <class Exec, class Data>
using Tensor = Kokkos::View<Data, Kokkos::LayoutRight, typename Exec::memory_space, Unmanaged>;

/// A View that finds its elements by 64-bit arithmetic whatever the type of the indices: Kokkos 5 computes an offset in
/// the common type of the indices, and kernels index with int, which wraps in tensors of more than 2^31 elements.
template <class View>
struct Wide : View {
  using View::View;
  KOKKOS_DEFAULTED_FUNCTION Wide() = default;
  KOKKOS_FUNCTION Wide(const View& view) : View(view) {}

  template <class... Indices>
  KOKKOS_FORCEINLINE_FUNCTION typename View::reference_type operator()(Indices... indices) const {
    return View::operator()(static_cast<std::int64_t>(indices)...);
  }
};

template <class Scalar, class Exec>
using Value = Tensor<Exec, Scalar>;  // one number that stays on the device
template <class Scalar, class Exec>
using Vector = Tensor<Exec, Scalar*>;  // [n]
template <class Scalar, class Exec>
using Matrix = Wide<Tensor<Exec, Scalar**>>;  // [rows, columns]
template <class Scalar, class Exec>
using HeadRows = Wide<Tensor<Exec, Scalar***>>;  // [B,H,T]
template <class Scalar, class Exec>
using HeadTensor =
    Wide<Kokkos::View<Scalar****, Kokkos::LayoutStride, typename Exec::memory_space, Unmanaged>>;  // [B,H,T,D]

template <class Scalar, class Exec>
using Pad = Kokkos::View<Scalar*, typename Exec::scratch_memory_space, Unmanaged>;  // a tile in scratch-pad memory

/// A contiguous [B,H,T,D] tensor as a head tensor.
template <class Exec, class Scalar>
HeadTensor<Scalar, Exec> contiguous_heads(Scalar* data, int B, int H, int T, int D) {
  const std::size_t d = D, t = T, h = H;
  return HeadTensor<Scalar, Exec>(data, Kokkos::LayoutStride(B, h * t * d, H, t * d, T, d, D, 1));
}

/// Rows [B*T, row] of which H neighbouring heads begin at `data`.
template <class Exec, class Scalar>
HeadTensor<Scalar, Exec> heads_in_rows(Scalar* data, int B, int H, int T, int D, std::size_t row) {
  return HeadTensor<Scalar, Exec>(data, Kokkos::LayoutStride(B, T * row, H, D, T, row, D, 1));
}

/// Part `part` (0 q, 1 k, 2 v) of a fused qkv buffer [B*T, 3*H*D] as a head tensor.
template <class Exec, class Scalar>
HeadTensor<Scalar, Exec> heads_of_qkv(Scalar* qkv, int part, int B, int H, int T, int D) {
  const std::size_t width = static_cast<std::size_t>(H) * D;
  return heads_in_rows<Exec>(qkv + part * width, B, H, T, D, 3 * width);
}

/// q and k of a fused qkv buffer together: a head tensor [B,2H,T,D], the heads of q before those of k.
template <class Exec, class Scalar>
HeadTensor<Scalar, Exec> heads_of_q_and_k(Scalar* qkv, int B, int H, int T, int D) {
  return heads_in_rows<Exec>(qkv, B, 2 * H, T, D, std::size_t{3} * H * D);
}

/// A row buffer [B*T, H*D] as a head tensor.
template <class Exec, class Scalar>
HeadTensor<Scalar, Exec> heads_of_rows(Scalar* rows, int B, int H, int T, int D) {
  return heads_in_rows<Exec>(rows, B, H, T, D, static_cast<std::size_t>(H) * D);
}

}  // namespace tessera::kernels
