/// The folders and files that a job reads and writes, as the deck names them.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "io/h5.hpp"
#include "jobs/jobs.hpp"
#include "jobs/note.hpp"

namespace tessera::jobs {

constexpr const char* kExperimentFile = "experiment.h5";
constexpr const char* kExperimentFormat = "tessera experiment";  // its attribute /info format

/// Whether `directory` holds an experiment.h5 that an experiment has written.
bool holds_experiment(const std::filesystem::path& directory);

/// Refuses (exit 6) a job.directory unfit for a new run: a file, or a directory that is not empty unless job.overwrite
/// is set. Changes nothing. For rank 0.
void require_new_directory(const config::Job& job);

/// A run's directory, locked until the process ends, however it ends: rank 0 holds an advisory lock on
/// <directory>/.lock, and on checkpoints/.lock where `checkpoints` is a link.
class RunDirectory {
 public:
  /// Unless `may_exist`, refuses (exit 6) what require_new_directory refuses. Makes the directory if it is missing.
  /// Waits at most kLockPatience_s, with a note, for another run in the directory (ranks briefly outlive a killed
  /// mpirun), then fails (exit 6). Refuses (exit 6) a directory that a job of Slurm owns (jobs/owner.hpp). Collective;
  /// rank 0 does the work.
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
  /// lock guards. For the rank that locked it; others return.
  void require_in_place() const;

  static constexpr double kLockPatience_s = 10;

 private:
  void lock(const std::filesystem::path& folder, const Note& note);

  std::filesystem::path path_;
  bool is_experiment_;
  std::vector<int> locks_;  // file descriptors
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
