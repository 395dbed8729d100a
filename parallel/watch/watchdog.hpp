/// Ends a rank that hangs: one whose step makes no progress because another rank, or a GPU, is gone.
///
/// A separate thread, which never calls MPI, monitors the main thread. While a Watch exists, made_progress() and every
/// report of a region or of communication to kernels/core/events.hpp is progress. After `limit_s` without any, the
/// thread writes to standard error the current operation, the rank of this host that is behind, and this rank's latest
/// transfers (watch/flight_recorder.hpp) and reports; then it ends the process with the caller's exit code, which ends
/// the launch. It does the same on a fault of the communication library, which it polls several times a second, and
/// gives the other ranks signs of life. If a rank leaves by an exception and its destructors hang, it ends the rank
/// with the exception's message and exit code, if known.
///
/// The first few watches (in which libraries load and kernels are chosen) have twice the limit; none is ended before
/// twice the longest silence that a successful watch survived, or that was announced. A watch on file operations may
/// request patience, a multiple of the limit, without affecting other watches. Patience ends when a rank of this host
/// has given no sign of life for as long as a watch without patience may last. Time in which the whole process is
/// stopped (SIGSTOP, scontrol suspend) does not count.
///
/// Limits  a process that waits outside a Watch is not watched: generation, jobs in which only rank 0 works, the end of
///         a launch behind the last watch, where memory is freed and MPI ends.
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
#include "parallel/watch/flight_recorder.hpp"

namespace tessera::parallel {

/// For a watching thread that ends the process: writes `text` to standard error without the stream's lock and buffer,
/// which the hanging thread may hold. Only the writing is lock-free: making `text` takes the heap's lock.
void write_last_words(std::string_view text);

class Watchdog final : public events::Listener {
 public:
  /// `rank` is named in messages; a loss ends the process with `exit_code`. The watchdog's thread calls both functions.
  /// A non-empty result of `fault` ends the rank. `abandon` is called kLettingGo_s before the process ends: it stops
  /// all waits on the GPU for other ranks, which would delay the end. `recorder`, of this rank, must outlive the
  /// watchdog; null: the messages omit transfers.
  Watchdog(int rank, double limit_s, int exit_code, std::function<std::string()> fault,
           std::function<void()> abandon = {}, FlightRecorder* recorder = nullptr);
  ~Watchdog() override;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Progress is expected while it exists. `patience` multiplies the limit. A watch within another one replaces it
  /// until it ends, with the larger patience of the two. It is successful unless an exception ends it.
  class Watch {
   public:
    Watch(Watchdog* watchdog, std::string_view what, double patience = 1);  // null: not watched
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Watchdog* watchdog_;
    std::string outer_;  // what was watched before, and goes on after it; empty: nothing
    double outer_patience_ = 1;
    int exceptions_;
  };

  void made_progress();
  /// Work as long as this [s] will make no reports: a step that is replayed as a graph.
  void expect_silence(double silence_s);

  /// This rank leaves: it is ended after kLeaving_s and half the limit, whatever it reports. `departure`, once known,
  /// gives the message and the exit code of that end.
  void leave(const std::optional<Departure>& departure = {});
  /// It stays after all: leave() is undone.
  void stay();

  using Listener::on;
  void on(const events::Region& region) override;
  void on(const events::CommunicationStart& start) override;
  void on(const events::Communication& communication) override;

  static constexpr int kFirstWatches = 8;    // watches that may take longer
  static constexpr double kFirstFactor = 2;  // times the limit
  static constexpr double kSlowFactor = 2;   // times the longest silence, so far or announced, is always allowed
  /// Time to free memory, however short the limit. With half the limit added, it ends before waiting ranks consider
  /// this one lost, if the limit is 8 s or more.
  static constexpr double kLeaving_s = 3;
  /// A rank that gives no sign of life for longer than this, or half the limit, is reported.
  static constexpr double kSilence_s = 1;
  /// Patience with a rank of this host that gives no sign of life lasts at least this long, however short the limit.
  static constexpr double kStopped_s = 3;
  static constexpr double kLettingGo_s = 0.5;  // until the GPU has noticed that it must no longer wait
  static constexpr double kPause_s = 1;        // a shorter delay of the watchdog's thread is no pause of the process

 private:
  static constexpr int kKept = 24;  // reports kept for the dump
  struct Report {
    double time_s = 0;
    char text[120] = "";
  };

  void progress();  // with mutex_ held
  template <class... Values>
  void record(fmt::format_string<const Values&...> format, const Values&... values);
  void guard(const std::stop_token& stop);
  double wake();  // with mutex_ held: allows for a pause of the process, and gives the time
  double allowed_s(double patience) const;
  bool is_lost() const;  // with mutex_ held
  [[noreturn]] void give_up(const std::string& fault);

  const int rank_;
  const double limit_s_;
  const double period_s_;  // of the thread
  const int exit_code_;
  const std::function<std::string()> fault_;
  const std::function<void()> abandon_;
  FlightRecorder* const recorder_;

  std::mutex mutex_;  // of all below
  std::condition_variable_any ended_;
  std::array<Report, kKept> reports_;
  std::size_t report_count_ = 0;
  std::string what_;  // the operation watched; empty: none
  double patience_ = 1, progress_s_ = 0;
  double awake_s_;                                                 // when either thread was last known to run
  double pause_end_s_ = -std::numeric_limits<double>::infinity();  // of the latest pause; silences count from here on
  double longest_s_ = 0;                                           // longest silence of watches without extra patience
  int watches_ = 0;                                                // successful ones
  double end_s_ = std::numeric_limits<double>::infinity();         // deadline of a rank that leaves
  std::optional<Departure> departure_;  // its cause, once known: takes precedence over faults
  std::jthread thread_;                 // last: it uses all other members
};

}  // namespace tessera::parallel
