/// The cores, sockets and NUMA nodes of this host, and which of them this process may use: what Linux says in /proc and
/// /sys. Where it says nothing, lists are empty and numbers -1.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>

namespace tessera::jobs {

/// The numbers of a list as Linux writes it: "0-2,8" -> 0, 1, 2, 8. Empty if it is none.
std::set<int> numbers_in(std::string_view list);

class Cores {
 public:
  explicit Cores(std::filesystem::path root = "/");  // above proc/ and sys/

  const std::string& allowed() const { return allowed_; }  // hardware threads that this process may use: "0-3,8-11"
  std::set<int> physical() const;               // their cores, each by the number of its first hardware thread
  std::set<int> sockets() const;                // of these cores
  int numa_node() const;                        // the one that has them all; -1 also if several do
  int socket_of_gpu(std::string bus_id) const;  // "0000:1B:00.0"; -1 also if no socket is nearer than the others

 private:
  std::set<int> sockets_of(const std::set<int>& threads) const;

  std::filesystem::path system_;  // /sys
  std::string allowed_;
};

}  // namespace tessera::jobs
