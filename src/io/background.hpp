/// Work of all ranks together, each on a thread of its own beside the main thread. The threads never talk to other
/// ranks: where the work exchanges texts (Peers::all_gather), they wait until all main threads call go_on().
///
///   start(work)  ->  [ can_go_on() on all ranks: go_on() on all ranks ] until not is_under_way()
///
/// Failures  of one rank's work become that of all in go_on() or finish(); the other threads then leave the work by an
///           exception, as they do in the destructor.
/// Threads   the main thread calls all functions.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io/checkpoint.hpp"

namespace tessera::io {

class Background {
 public:
  using Work = std::function<void(const Peers&)>;

  explicit Background(Peers peers) : peers_(std::move(peers)) {}  // of the main threads
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// No other work may be under way.
  void start(Work work);
  bool is_under_way() const { return thread_.joinable(); }  // the same on every rank
  /// Whether this rank's thread waits for an exchange, or has ended. Local.
  bool can_go_on() const;
  /// Exchanges what the threads wait for, or ends the work if they have ended. Every rank's can_go_on() must hold.
  /// Collective.
  void go_on();
  /// Waits for the end. Ranks exchange a sign of life now and then, but a rank whose thread reports no progress does
  /// not, so that a watchdog notices. Collective.
  void finish();

  double seconds() const { return seconds_; }  // the latest work took

 private:
  void run(const Work& work);
  std::vector<std::string> gather(const Peers::Work& work);
  void offer(const Peers::Work& work, bool is_last);  // to the main thread: its result or exception
  void report_progress();
  void wait_for_progress() const;
  void abandon();

  const Peers peers_;
  mutable std::mutex mutex_;  // of those up to `progress_`
  mutable std::condition_variable changed_;
  bool is_waiting_ = false, has_ended_ = false, is_abandoned_ = false;
  std::string mine_;                             // to exchange
  std::exception_ptr problem_;                   // in its place
  std::optional<std::vector<std::string>> all_;  // exchanged
  std::uint64_t progress_ = 0;                   // reports so far
  double start_s_ = 0, seconds_ = 0;
  std::thread thread_;
};

}  // namespace tessera::io
