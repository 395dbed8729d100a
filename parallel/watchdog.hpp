/// Ends a rank that hangs: one whose step makes no progress because another rank, or a GPU, is gone.
///
/// A thread of its own looks at what the main thread tells; it never calls MPI. While a watch lives, every report to
/// kernels/core/events.hpp is progress. After `limit_s` without any, it writes to standard error what was under way and
/// the last that was heard, and leaves the process with an exit code of the caller's, which ends the launch. It also
/// asks, several times a second, whether the communication library knows of a fault, and does the same. It also ends a
/// rank that leaves by an exception and does not get anywhere, since destructors, too, wait for the GPU and the
/// libraries; where the cause is known, with its words and its exit code.
///
/// Steps differ: the first few watches (where libraries load and kernels are chosen) have twice as long, and none is
/// ever cut off before twice the longest time without a report that went well. So a loss is noticed within twice
/// `limit_s`, unless steps that go well are silent for longer than that. A watch that is about files may ask for
/// patience: for as many times the limit as it says, and what it took is no measure for others.
///
/// Limits  a process that waits outside of a watch is not watched: generation, jobs that only rank 0 works at.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "kernels/core/events.hpp"
#include "parallel/errors.hpp"

namespace tessera::parallel {

class Watchdog final : public events::Listener {
 public:
  /// `rank` is who speaks, `exit_code` what a loss ends it with. Both functions are called from the watchdog's thread.
  /// `fault`: what it returns, unless empty, ends the rank. `abandon`, before the end, which then waits kLettingGo_s
  /// more: so that nothing on the GPU waits for other ranks, which would hold the process up.
  Watchdog(int rank, double limit_s, int exit_code, std::function<std::string()> fault,
           std::function<void()> abandon = {});
  ~Watchdog() override;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Progress is expected while it lives. One at a time. `patience`: how many times the limit it may take without any.
  class Watch {
   public:
    Watch(Watchdog* watchdog, std::string_view what, double patience = 1);  // null: nobody watches
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Watchdog* watchdog_;
  };

  /// This rank leaves: it has kLeaving_s and half the limit until its end, whatever it reports meanwhile. `departure`,
  /// once somebody knows it, is what it then says and ends with.
  void leave(const std::optional<Departure>& departure = {});

  using Listener::on;
  void on(const events::Region& region) override;
  void on(const events::CommunicationStart& start) override;
  void on(const events::Communication& communication) override;

  static constexpr int kFirstWatches = 8;    // that may take longer
  static constexpr double kFirstFactor = 2;  // by this much
  static constexpr double kSlowFactor = 2;   // times the longest silence so far is never too long
  /// Time that memory takes to be given back, however short the limit. With half the limit it is over before the ranks
  /// that wait for this one take it for lost, where the limit is 8 s or more.
  static constexpr double kLeaving_s = 3;
  static constexpr double kLettingGo_s = 0.5;  // until the GPU has noticed that it is not to wait any more

 private:
  static constexpr int kKept = 24;  // reports kept for the dump
  struct Heard {
    double time_s = 0;
    char text[120] = "";
  };

  void begin(std::string_view what, double patience);
  void end();
  void progress();  // with mutex_ held
  void hear(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void guard();
  double allowed_s() const;
  [[noreturn]] void give_up(const std::string& fault);

  const int rank_;
  const double limit_s_;
  const int exit_code_;
  const std::function<std::string()> fault_;
  const std::function<void()> abandon_;

  std::mutex mutex_;  // of all below
  std::condition_variable wake_;
  std::array<Heard, kKept> heard_;
  std::size_t heard_count_ = 0;
  std::string what_;  // is watched; empty: nothing is
  double patience_ = 1, progress_s_ = 0;
  double longest_s_ = 0;                                    // without progress within a watch that had no patience
  int watches_ = 0;                                         // that went well
  double end_s_ = std::numeric_limits<double>::infinity();  // of a rank that leaves
  std::optional<Departure> departure_;                      // its cause, once known: goes before every fault
  bool is_over_ = false;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace tessera::parallel
