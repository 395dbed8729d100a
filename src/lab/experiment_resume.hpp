/// What --resume auto keeps of an experiment that an earlier start has left.
///
/// It keeps all measurements of every row of the same name that has run with the same keys, and runs what is left of
/// experiment.rounds; a row that failed is not measured in further rounds.
/// job.directory, job.overwrite and job.progress may change, and so may a row's number: its folder is then renamed. Of
/// those that ran, it runs again the ones that a signal stopped and those that failed for their files or the machine
/// (exit codes 75, 6 and 3); their last outcome stays in experiment.h5 until then, also where experiment.only leaves
/// them out. A training row that a signal stopped goes on from its checkpoint; one that its own train.time_limit_s
/// stopped has run. Where a row that is none of these has run, or has a checkpoint, --resume auto is refused (exit 6)
/// unless job.overwrite is set: its result would be lost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jobs/directory.hpp"
#include "lab/experiment_file.hpp"

namespace tessera::lab {

/// Gives the file the measurements of rows that an earlier start has run with the same keys, and these rows' folders
/// their numbers of now. For rank 0.
void keep_earlier(const jobs::Context& context, ExperimentFile& file);

/// How far a row has come.
struct Progress {
  std::int64_t rounds = 0, kept = 0;  // measured; by an earlier start
  bool has_failed = false;            // in the last of them, and is not measured again
  bool goes_on = false;               // the next one, from its checkpoint
};

/// Of each row. For rank 0.
std::vector<Progress> progress_of(const jobs::Context& context, const ExperimentFile& file, const jobs::Note& note);

/// The same as a text for the other ranks, and back.
std::string progress_text(const std::vector<Progress>& all);
std::vector<Progress> parse_progress(const std::string& text);

}  // namespace tessera::lab
