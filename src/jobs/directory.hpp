/// The folders and files that a job reads and writes, as the deck names them.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "io/h5.hpp"
#include "jobs/jobs.hpp"

namespace tessera::jobs {

/// Refuses (exit 6) a job.directory that a new run may not have: one that is a file, or is not empty unless the job
/// overwrites. Touches nothing. For rank 0.
void require_new_directory(const config::Job& job);

/// Takes lines for people, on rank 0.
using Note = std::function<void(const std::string&)>;

/// A run's directory, held by this run until it ends, however it ends: rank 0 keeps an advisory lock on
/// <directory>/.lock.
class RunDirectory {
 public:
  /// Refuses (exit 6), unless `may_exist`, what require_new_directory does; makes the directory where it is missing.
  /// Another run that works in it is waited for, kLockPatience_s at most, with a note: ranks whose mpirun was killed
  /// live on for a moment. Then it is refused (exit 6). Rank 0 works, every rank waits.
  RunDirectory(const Context& context, bool may_exist, const Note& note);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  /// Deletes what a run leaves there, and nothing else (job.overwrite). For rank 0.
  void clear() const;

  static constexpr double kLockPatience_s = 10;

 private:
  std::filesystem::path path_;
  int lock_ = -1;  // file descriptor
};

/// A checkpoint's folder as a person names it: the folder itself, or a run's directory, whose newest one is taken.
std::filesystem::path checkpoint_folder(const std::string& path);

/// Where a job's result goes: job.output, or `name` in the job's directory, which is made. Refuses (exit 6) a file that
/// exists unless job.overwrite: ask before the work is done.
std::string result_path(const Context& context, const std::string& name);

/// Writes a result beside `path` and renames it there: whole or not at all.
void write_result(const std::string& path, const std::function<void(io::h5::File&)>& fill);

}  // namespace tessera::jobs
