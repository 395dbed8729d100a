/// Memory that processes of one host share, and that vanishes when they end, however they end: it has no name in any
/// file system. One process creates it; the others open it by its address until the creator calls close_to_others().
///
/// Limits  only processes that see the creator's process and run as the same user can open it.
/// Source  memfd_create(2), proc(5) on /proc/PID/fd.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace tessera::parallel {

class SharedMemory {
 public:
  using Address = std::array<char, 64>;  // text, for another process

  /// Creates `bytes` of zeros.
  explicit SharedMemory(std::size_t bytes);
  /// Opens what another process has created with the same number of bytes.
  SharedMemory(std::size_t bytes, const Address& address);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Why it is private memory of this process, zeros that nobody shares; empty: it is shared.
  const std::string& fault() const { return fault_; }

  void* data() const { return data_; }
  const Address& address() const { return address_; }

  /// After this no process can open it.
  void close_to_others();

 private:
  int open_of_other();
  void map(std::size_t bytes, int file);

  std::size_t bytes_;
  Address address_{};
  int file_ = -1;
  void* data_ = nullptr;
  std::string fault_;
};

}  // namespace tessera::parallel
