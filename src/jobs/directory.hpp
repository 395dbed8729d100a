/// The folders and files that a job reads and writes, as the deck names them.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "io/h5.hpp"
#include "jobs/jobs.hpp"

namespace tessera::jobs {

constexpr const char* kExperimentFile = "experiment.h5";
constexpr const char* kExperimentFormat = "tessera experiment";  // its attribute /info format

/// Refuses (exit 6) a job.directory unfit for a new run: a file, or a directory that is not empty unless job.overwrite
/// is set. Changes nothing. For rank 0.
void require_new_directory(const config::Job& job);

/// A run's directory, locked until the process ends, however it ends: rank 0 holds an advisory lock on
/// <directory>/.lock, and on checkpoints/.lock where `checkpoints` is a link.
class RunDirectory {
 public:
  /// Makes the directory if it is missing. Refuses (exit 6) one that a job of Slurm owns (jobs/owner.hpp), what
  /// require_new_directory refuses or, with `may_exist`, only a `status` that no run wrote, and a directory where
  /// another run still works after kLockPatience_s (ranks briefly outlive a killed mpirun), or that another host does
  /// not see. Collective; rank 0 does the work.
  RunDirectory(const Context& context, bool may_exist, const Note& note);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  /// Deletes the run.h5 and checkpoints of a run, the experiment.h5 of an experiment and what jobs wrote into the rows
  /// that it names, and nothing else (job.overwrite); notes what else it found in a checkpoint's folder, which stays.
  /// Throws (exit 6) if one cannot be deleted, if a file of such a name is not this program's, or if checkpoints behind
  /// a link are not this run's. For rank 0.
  void clear(const Note& note) const;

  /// Throws Failure (exit 6) if the directory was deleted, moved or replaced: what is written goes to another, which no
  /// lock guards. Call it before what writes by path. For the rank that locked it; others return.
  void require_in_place() const;

  /// Replaces <directory>/status, one line that says how far a training run is, for `watch cat`:
  ///
  ///     running   step 120/400   30 %  00:41 left  loss 2.3121  val 2.4012  80.0k tokens/s  at 12:31:05  job 17
  ///
  /// A line that cannot be written is lost: run.h5, which lies beside it, tells of a full disk, or of a directory that
  /// is another run's by now. For rank 0.
  void write_status(const std::string& state, const std::string& progress);
  bool is_status_due() const;  // the last line is older than kStatusEvery_s

  static constexpr double kLockPatience_s = 10, kStatusEvery_s = 1;

 private:
  void lock(const std::filesystem::path& folder, const Note& note);
  void require_shared(parallel::World& world) const;  // that every host sees what rank 0 writes here; collective
  bool is_in_place() const;

  std::filesystem::path path_;
  bool is_experiment_;
  std::vector<int> locks_;  // file descriptors
  std::chrono::steady_clock::time_point status_written_{};
};

/// The same for what jobs have written into the folder of an experiment's row, and the folder if nothing else is in it.
void clear_row(const std::filesystem::path& folder, const Note& note);

/// Resolves a checkpoint's path as given by the user: its folder, or a run's directory (its newest checkpoint).
std::filesystem::path checkpoint_folder(const std::string& path);

/// The path of a job's result: job.output, or `name` in the job's directory, which is made. Refuses an existing file
/// (exit 6) unless job.overwrite is set, a path that cannot be written (exit 6), and job.input and the deck (exit 2)
/// always; call it before the work.
std::string result_path(const Context& context, const std::string& name);

/// Writes a file whole or not at all: to a temporary file beside `path`, synced, then renamed. An existing one is
/// replaced.
void replace_file(const std::string& path, const std::function<void(io::h5::File&)>& fill);

/// Where the rows of a job's result lie while further ones are measured; a job that ends before leaves them there.
std::string part_path(const std::string& path);

/// Makes what lies there the job's result, as write_result() does.
void publish_part(const Context& context, const std::string& path);

/// Writes a job's result as replace_file() does, and prints its path. Refuses (exit 6) to replace a file that has
/// appeared since result_path(), unless job.overwrite is set.
void write_result(const Context& context, const std::string& path, const std::function<void(io::h5::File&)>& fill);

}  // namespace tessera::jobs
