#include "kernels/core/byte_copies.hpp"

#include <cstdint>
#include <type_traits>

#include "kernels/core/packet.hpp"

namespace tessera::kernels {
namespace {

template <class Space, class Address>
auto bytes_in(Address* data, std::size_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<Address>, const unsigned char, unsigned char>;
  return Kokkos::View<Byte*, Space, Unmanaged>(static_cast<Byte*>(data), bytes);
}

using Word = std::uint32_t;

struct CopyWords {
  const Word* from;  // [n]  in
  Word* to;          // [n]  out

  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, std::int64_t packet) const {
    store(to + packet * kWidth, load<kWidth>(from + packet * kWidth));
  }
};

}  // namespace

void clear_bytes(const Device& exec, void* array, std::size_t bytes) {
  Kokkos::deep_copy(exec, bytes_in<Device::memory_space>(array, bytes), static_cast<unsigned char>(0));
}

void copy_bytes(const Device& exec, const void* from, void* to, std::size_t bytes) {
  if constexpr (!kIsHost<Device>) {
    const CopyWords copy{static_cast<const Word*>(from), static_cast<Word*>(to)};
    const auto words = static_cast<std::int64_t>(bytes / sizeof(Word));
    constexpr int kWidth = kPacketWidth<Device, Word>;
    if (bytes % sizeof(Word) == 0 && packets_fit(kWidth, words, copy.from, copy.to)) {
      return for_packets<kWidth>("tessera::core::copy_bytes", exec, true, words, copy);
    }
  }
  Kokkos::deep_copy(exec, bytes_in<Device::memory_space>(to, bytes), bytes_in<Device::memory_space>(from, bytes));
}

void send_bytes(const Device& exec, const void* from_pinned, void* to, std::size_t bytes) {
  Kokkos::deep_copy(exec, bytes_in<Device::memory_space>(to, bytes), bytes_in<PinnedSpace>(from_pinned, bytes));
}

void fetch_bytes(const Device& exec, const void* from, void* to_pinned, std::size_t bytes) {
  Kokkos::deep_copy(exec, bytes_in<PinnedSpace>(to_pinned, bytes), bytes_in<Device::memory_space>(from, bytes));
}

void upload_bytes(const void* from_host, void* to, std::size_t bytes) {
  Kokkos::deep_copy(bytes_in<Device::memory_space>(to, bytes), bytes_in<Kokkos::HostSpace>(from_host, bytes));
}

void download_bytes(const void* from, void* to_host, std::size_t bytes) {
  Kokkos::deep_copy(bytes_in<Kokkos::HostSpace>(to_host, bytes), bytes_in<Device::memory_space>(from, bytes));
}

}  // namespace tessera::kernels
