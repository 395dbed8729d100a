/// Ends a rank whose launch never starts: before MPI is up, the watchdog cannot watch it (parallel/watch/watchdog.hpp).
///
/// MPI_Init waits for every rank of the launch, for ever. From before it until the watchdog has begun, a separate
/// thread, which never calls MPI, waits kPatience times the limit; then it writes to standard error which ranks have
/// reached the start on this host and which of those are stopped, and ends the process, which ends the launch. Time in
/// which the whole process stands still does not count.
///
/// While it exists, it holds a socket whose abstract name contains launch, rank and process; the others read the names
/// in /proc/net/unix. Such names are in no file system and vanish with their process, however it ends.
///
/// Limits  knows nothing, and says so, about ranks on other hosts or in containers with their own network, or if the
///         launcher gives the launch no id.
/// Source  unix(7) on abstract names; proc(5) on /proc/net/unix and /proc/PID/stat.
#pragma once

#include <string>
#include <thread>
#include <vector>

namespace tessera::parallel {

class StartWatch {
 public:
  /// `rank` of `ranks`, as the launcher's environment numbers them. `limit_s`: parallel.timeout_s; 0: not watched. A
  /// single rank is never watched.
  StartWatch(int rank, int ranks, double limit_s, int exit_code);
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

  /// Ends the watch: the ranks have met. The others still count this rank as arrived.
  void end() { thread_ = {}; }

  static constexpr double kPatience = 10;  // multiplies the limit

 private:
  void announce();
  void guard(const std::stop_token& stop);
  std::vector<std::string> report() const;
  [[noreturn]] void give_up() const;

  const int rank_, ranks_, exit_code_;
  const double limit_s_;  // times kPatience
  std::string name_;      // of this launch's sockets, without rank and process; empty: the launch is unknown
  int socket_ = -1;
  std::jthread thread_;  // last: it uses all other members
};

}  // namespace tessera::parallel
