/// Memory that processes of one host share, and of which nothing is left when they end, however they end: it has no name
/// in any file system. One process makes it; the others open it while the maker lets them, by its address.
///
/// Source  memfd_create(2), proc(5) on /proc/PID/fd. Others open it if they see the maker's process and run as its user.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace tessera::parallel {

class SharedMemory {
 public:
  using Address = std::array<char, 64>;  // text, for another process

  /// `bytes` of zeros.
  explicit SharedMemory(std::size_t bytes);
  /// What another process has made, as long.
  SharedMemory(std::size_t bytes, const Address& address);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Why it is this process's own memory, zeros that nobody shares; empty: it is shared.
  const std::string& fault() const { return fault_; }

  void* data() const { return data_; }
  const Address& address() const { return address_; }

  /// From here on no process can open it.
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
