/// Neighbouring elements that one instruction moves: how memory-bound kernels reach the memory's bandwidth.
///
/// On a GPU a packet is 16 bytes, the widest access of a lane; on a host it is one element, because the compiler
/// vectorises the whole loop. So a loop over packets serves both:
///
///   Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C / kWidth), [&](int p) {
///     auto x_p = load<kWidth>(x_row + p * kWidth);
///     for (int i = 0; i < kWidth; ++i) x_p.set(i, 2 * x_p[i]);
///     store(y_row + p * kWidth, x_p);
///   });
///
/// Packets need addresses and row lengths that are multiples of their size. Kernels check (`packets_fit`, or
/// `rows_fit_packets` for strided tensors) and otherwise use packets of one element: right for any shape, slower on a
/// GPU.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

inline constexpr int kPacketBytes = 16;

/// Elements of Scalar in 16 bytes, and in a packet of Exec.
template <class Scalar>
inline constexpr int kPacketElements = kPacketBytes / static_cast<int>(sizeof(Scalar));
template <class Exec, class Scalar>
inline constexpr int kPacketWidth = kIsHost<Exec> ? 1 : kPacketElements<Scalar>;

template <class Scalar, int kWidth>
struct alignas(kWidth * sizeof(Scalar) < kPacketBytes ? kWidth * sizeof(Scalar) : kPacketBytes) Packet {
  using Real = Accum<Scalar>;
  static constexpr bool kInWords = sizeof(Scalar) == 2 && kWidth % 2 == 0;  // else each 16-bit number takes a register

  std::conditional_t<kInWords, std::uint32_t, Scalar> element[kInWords ? kWidth / 2 : kWidth];

  KOKKOS_FORCEINLINE_FUNCTION Real operator[](int i) const { return static_cast<Real>(stored(*this, i)); }
  KOKKOS_FORCEINLINE_FUNCTION void set(int i, Real value) { set_stored(*this, i, static_cast<Scalar>(value)); }
};

/// Element i in its storage type.
template <class Scalar, int kWidth>
KOKKOS_FORCEINLINE_FUNCTION Scalar stored(const Packet<Scalar, kWidth>& packet, int i) {
  if constexpr (Packet<Scalar, kWidth>::kInWords) {
    Scalar half;
    half.bits = static_cast<std::uint16_t>(i % 2 == 0 ? packet.element[i / 2] : packet.element[i / 2] >> 16);
    return half;
  } else {
    return packet.element[i];
  }
}
template <class Scalar, int kWidth>
KOKKOS_FORCEINLINE_FUNCTION void set_stored(Packet<Scalar, kWidth>& packet, int i, Scalar value) {
  if constexpr (Packet<Scalar, kWidth>::kInWords) {
    std::uint32_t& word = packet.element[i / 2];
    const std::uint32_t bits = value.bits;
    word = i % 2 == 0 ? (word & 0xffff0000u) | bits : (word & 0x0000ffffu) | bits << 16;
  } else {
    packet.element[i] = value;
  }
}

/// A host copies packets as bytes: there one of 16-bit numbers is an array of words, which by the aliasing rules may
/// not be used to access the numbers.
template <int kWidth, class Scalar>
KOKKOS_FORCEINLINE_FUNCTION Packet<std::remove_const_t<Scalar>, kWidth> load(Scalar* from) {
  using Loaded = Packet<std::remove_const_t<Scalar>, kWidth>;
  TESSERA_ON_DEVICE(return *reinterpret_cast<const Loaded*>(from);)
  Loaded packet;
  __builtin_memcpy(static_cast<void*>(&packet), from, sizeof(Loaded));
  return packet;
}

template <class Scalar, int kWidth>
KOKKOS_FORCEINLINE_FUNCTION void store(Scalar* to, const Packet<Scalar, kWidth>& packet) {
  using Stored = Packet<Scalar, kWidth>;
  TESSERA_ON_DEVICE(*reinterpret_cast<Stored*>(to) = packet; return;)
  __builtin_memcpy(static_cast<void*>(to), &packet, sizeof(Stored));
}

/// Whether tensors of contiguous rows of `columns` elements can be processed in packets of `width`.
template <class... Scalars>
bool packets_fit(int width, std::int64_t columns, const Scalars*... tensors) {
  return columns % width == 0 && (... && (reinterpret_cast<std::uintptr_t>(tensors) % kPacketBytes == 0));
}

/// Whether every row of this strided tensor [..., columns] starts at a multiple of 16 bytes. The stride of an axis of
/// one element is never used.
template <class Tensor>
bool rows_start_at_packets(const Tensor& tensor) {
  constexpr int kElements = kPacketElements<typename Tensor::non_const_value_type>, kAxes = Tensor::rank;
  for (int axis = 0; axis + 1 < kAxes; ++axis) {
    if (tensor.extent(axis) > 1 && tensor.stride(axis) % kElements != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(tensor.data()) % kPacketBytes == 0;
}

/// Whether the rows of these tensors also end there.
template <class... Tensors>
bool rows_fit_packets(const Tensors&... tensors) {
  const auto fit = [](const auto& tensor) {
    using Tensor = std::decay_t<decltype(tensor)>;
    constexpr int kElements = kPacketElements<typename Tensor::non_const_value_type>, kAxes = Tensor::rank;
    return tensor.extent(kAxes - 1) % kElements == 0 && rows_start_at_packets(tensor);
  };
  return (... && fit(tensors));
}

/// Work tag that makes the width part of the kernel's type.
template <int kWidth>
struct InPackets {
  static constexpr int kElements = kWidth;
};

/// Calls launch(InPackets<width>{}) with the packet width of Exec if packets `fit`, else with 1.
template <class Exec, class Scalar, class Launch>
void in_packets(bool fit, const Launch& launch) {
  constexpr int kWidest = kPacketWidth<Exec, Scalar>;
  if constexpr (kWidest > 1) {
    if (fit) return launch(InPackets<kWidest>{});
  }
  launch(InPackets<1>{});
}

/// Runs `kernel` over n contiguous elements: operator()(InPackets<kWidth>, p) for the packets, if they `fit`, and
/// operator()(InPackets<1>, p) for the remaining elements.
template <int kWidth, class Exec, class Kernel>
void for_packets(const char* label, const Exec& exec, bool fit, std::int64_t n, const Kernel& kernel) {
  const auto run = [&](auto how, std::int64_t first, std::int64_t last) {
    using Policy = Kokkos::RangePolicy<Exec, decltype(how), Kokkos::IndexType<std::int64_t>>;
    if (first < last) Kokkos::parallel_for(label, Policy(exec, first, last), kernel);
  };
  const std::int64_t packets = fit ? n / kWidth : 0;
  run(InPackets<kWidth>{}, 0, packets);
  run(InPackets<1>{}, packets * kWidth, n);
}

}  // namespace tessera::kernels
