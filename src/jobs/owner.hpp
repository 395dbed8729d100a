/// The job of Slurm that works in a run's directory, and how far its starts have come: <directory>/.owner, one
/// `key = value` a line. A lock lasts as long as a process; this lasts while a job waits for its requeue, too.
///
///   job, cluster          that started here last; no such line if no job of Slurm did
///   submission            what tells its requeues, or a chain's jobs, from others: TESSERA_SUBMISSION, else, of a
///                         requeue, the job; "": neither
///   step, starts          step at which the last start began, and how many in a row of this submission began there
///   longest_checkpoint_s, longest_step_s  of the run so far; a step with its validation
///
/// For rank 0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "jobs/jobs.hpp"

namespace tessera::jobs {

class Owner {
 public:
  using Environment = std::function<const char*(const char*)>;  // as std::getenv

  /// What squeue says of a job.
  struct Answer {
    bool is_there = true;  // there is a squeue
    std::string text;      // of both streams
  };
  using Squeue = std::function<Answer(const std::string& job)>;

  static constexpr const char* kName = ".owner";
  static constexpr int kFruitlessStarts = 2;  // in a row, that end a submission

  explicit Owner(std::filesystem::path directory);
  Owner(std::filesystem::path directory, Environment environment, Squeue squeue);

  /// Refuses (exit 6) a directory in which another job works or will go on. Changes nothing.
  void require_free(const Note& note) const;

  /// Makes this process's job the owner, at a start that begins at `step`. `continues`: an earlier start wrote this
  /// directory. Without a step (an experiment), starts are not counted.
  /// Throws  Failure(Exit::environment) if kFruitlessStarts of its submission in a row began there.
  void begin(std::optional<std::int64_t> step, bool continues);

  /// The run is finished: no job owns the directory, however long this one goes on. What cannot be written stays.
  void release();

  /// A step with its validation took that long, for which a stop waits. Written with the next checkpoint.
  void step_took(double seconds);

  /// A checkpoint took that long; in the background, a stop may wait for one under way and then for its own. Returns
  /// a line of warning if that, after the longest step, is more than the TESSERA_MARGIN_S between the signal and the
  /// job's end, and no earlier one of this start was; else "".
  std::string checkpoint_took(double seconds, bool in_background);

 private:
  struct State {
    std::string job = {}, cluster = {}, submission = {};
    std::optional<std::int64_t> step = {};
    int starts = 0;
    double longest_checkpoint_s = 0, longest_step_s = 0;
  };
  State read() const;
  void write() const;
  std::string variable(const char* name) const;

  std::filesystem::path path_;
  Environment environment_;
  Squeue squeue_;
  State own_;  // as written
  bool has_warned_ = false, has_new_step_ = false;
};

/// "17", of an array "17_3": as the commands of Slurm take it; "" outside of its jobs.
std::string slurm_job(const Owner::Environment& environment);

}  // namespace tessera::jobs
