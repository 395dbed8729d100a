#include "kernels/core/byte_copies.hpp"

#include <type_traits>

namespace tessera::kernels {
namespace {

template <class Space, class Address>
auto bytes_in(Address* data, std::size_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<Address>, const unsigned char, unsigned char>;
  return Kokkos::View<Byte*, Space, Unmanaged>(static_cast<Byte*>(data), bytes);
}

}  // namespace

void clear_bytes(const Device& exec, void* array, std::size_t bytes) {
  Kokkos::deep_copy(exec, bytes_in<Device::memory_space>(array, bytes), static_cast<unsigned char>(0));
}

void upload_bytes(const void* from_host, void* to, std::size_t bytes) {
  Kokkos::deep_copy(bytes_in<Device::memory_space>(to, bytes), bytes_in<Kokkos::HostSpace>(from_host, bytes));
}

void download_bytes(const void* from, void* to_host, std::size_t bytes) {
  Kokkos::deep_copy(bytes_in<Kokkos::HostSpace>(to_host, bytes), bytes_in<Device::memory_space>(from, bytes));
}

}  // namespace tessera::kernels
