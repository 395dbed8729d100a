#include "support/buffer.hpp"

namespace tessera::test {

DeviceBytes allocate_bytes(std::size_t bytes) {
  return DeviceBytes(Kokkos::view_alloc(Kokkos::WithoutInitializing, "test.buffer"), bytes);
}

}  // namespace tessera::test
