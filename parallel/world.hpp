/// The ranks of this launch: number, host and device of each, and exchanges of small host values.
///
/// Owns MPI: constructed once in main, it finalises MPI when destroyed; if MPI already runs (a test, a host program),
/// it only borrows it. The thread level is MPI_THREAD_FUNNELED: only the main thread calls MPI.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "parallel/place.hpp"
#include "parallel/watch/flight_recorder.hpp"
#include "parallel/watch/watchdog.hpp"

namespace tessera::parallel {

class Collectives;

/// Multiplies the watchdog's limit while ranks wait for another rank's files, or for ranks that have more work.
inline constexpr double kPatience = 10;

class World {
 public:
  /// The meaning of an exception caught on this rank. Exit codes are the caller's.
  using Meaning = std::function<Departure(const World&, const std::exception&)>;

  World(int& argc, char**& argv, Meaning meaning = message_alone);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // among the ranks of this host
  int local_size() const { return local_size_; }
  const std::string& host() const { return places_[rank_].host; }  // this rank's

  const std::vector<Place>& places() const { return places_; }  // by rank; without GPUs until they are chosen
  void set_places(std::vector<Place> places) { places_ = std::move(places); }
  std::string hosts() const { return hosts_text(places_); }      // for people
  std::string devices() const { return devices_text(places_); }  // for people; empty on CPUs
  int device_count() const { return count_devices(places_); }    // distinct devices of all ranks; 0 on CPUs
  int ranks_on_device() const { return count_ranks_on_device(places_, places_[rank_]); }

  /// The collectives in use; by default MPI's.
  Collectives& collectives() { return in_use_ ? *in_use_ : *mpi_; }
  void use(std::unique_ptr<Collectives> collectives);  // null: MPI's again

  /// Records this rank's transfers and exchanges.
  FlightRecorder& recorder() const { return *recorder_; }

  /// While it exists, progress with the others is expected (watch/watchdog.hpp). If an exception destroys it, this rank
  /// leaves the others: it abandons the collectives and calls leave(), unless all ranks leave together.
  class Watch {
   public:
    Watch(World& world, std::string_view what, double patience);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    World& world_;
    Watchdog::Watch watch_;
    int exceptions_;
  };
  [[nodiscard]] Watch watch(std::string_view what, double patience = 1) { return Watch(*this, what, patience); }
  /// Of watches on sequences that the ranks share: one with fewer waits, silently, for the others.
  double patience_over(std::int64_t sequences) const { return sequences % size_ == 0 ? 1 : kPatience; }

  /// Enables watches: from here on, a rank that waits for longer than `limit_s` ends with `exit_code`. 0: disabled. A
  /// single rank is never watched.
  void start_watchdog(double limit_s, int exit_code);
  /// In long work that reports nothing to kernels/core/events.hpp, now and then (watch/watchdog.hpp).
  void made_progress();
  /// Before work that reports nothing for as long as this [s].
  void expect_silence(double silence_s);

  /// Call where a job catches a fatal exception, before its objects are destroyed: their destructors may wait for a
  /// lost rank or GPU. The watchdog ends this rank if leaving takes too long, and reports the cause, `caught`, since
  /// main may never get there.
  void leave();
  void leave(const std::exception& caught);

  /// Undoes leave() and leave_together() on every rank, after an exception that all have caught. Collective.
  void stay();

  /// Call before all ranks throw the same exception: until the next watch begins, none takes another's exit for a loss.
  /// Collective.
  void leave_together();

  // Failing together. Collective: each rank waits for all, and none takes another's exit for a loss.

  /// Runs `work` on every rank. If any failed, all throw the same AgreedError: the first failure's meaning, preceded by
  /// the numbers of the failed ranks unless all failed.
  void agree(const std::function<void()>& work) { agree(problem_of(work)); }
  /// The same with `work` on rank 0 only. The message names no rank.
  void agree_on_root(const std::function<void()>& work);
  /// Runs `work` on every rank, and returns the result of each, by rank. If any failed, all throw the same AgreedError
  /// of the first. The message names no rank.
  std::vector<std::string> all_gather(const std::function<std::string()>& work);
  /// Throws the same AgreedError on all ranks: the meaning of `common`, which each rank passes.
  [[noreturn]] void fail(const std::exception& common);
  /// Local. Runs `work`; returns its failure's meaning as one text for the other ranks, "" if there is none.
  std::string problem_of(const std::function<void()>& work) const;
  /// The same as agree(work) with a `problem` from before, of this rank or another.
  void agree(const std::string& problem);

  // Small values, collective, blocking.
  bool any(bool mine) const;
  int max(int mine) const;
  std::vector<double> sum(std::vector<double> mine) const;  // element by element, as max() below
  std::vector<double> max(std::vector<double> mine) const;
  std::vector<std::string> all_gather(const std::string& mine) const;
  std::string broadcast(std::string from_root) const;
  void barrier() const;

  /// Ends every rank of the launch with `code`.
  [[noreturn]] void abort(int code) const;

 private:
  static Departure message_alone(const World&, const std::exception& caught) { return {1, caught.what()}; }
  std::string problem_by(const std::exception& caught) const;
  [[noreturn]] void fail(const std::string& problem, const std::string& where);
  template <class Action>
  void exchange(std::string_view name, std::int64_t bytes, const Action& action) const;

  Meaning meaning_;
  bool owns_mpi_ = false;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::vector<Place> places_;
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<Collectives> mpi_, in_use_;
  std::atomic<bool> is_leaving_ = false;
  std::mutex asking_;  // the watchdog queries the collectives from its own thread
  std::unique_ptr<Watchdog> watchdog_;
};

/// Checks that the `ranks` of MPI are those that mpirun or srun started: an MPI that does not understand its launcher
/// makes each of them a launch of its own. Below an mpirun, Slurm counts its daemons. `environment` gives variables as
/// std::getenv does.
/// Throws  EnvironmentError if they are not.
void check_launcher(int ranks, const std::function<const char*(const char*)>& environment);

}  // namespace tessera::parallel
