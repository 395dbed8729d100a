/// What --resume auto keeps of an experiment that an earlier start has left.
///
/// It keeps the outcome of every row of the same name that has run with the same keys, and runs the others.
/// job.directory, job.overwrite and job.progress may change, and so may a row's number: its folder is then renamed. Of
/// those that ran, it runs again the ones that a signal stopped and those that failed for their files or the machine
/// (exit codes 75, 6 and 3); their last outcome stays in experiment.h5 until then, also where experiment.only leaves
/// them out. A training row that a signal stopped goes on from its checkpoint; one that its own train.time_limit_s
/// stopped has run. Where a row that is none of these has run, or has a checkpoint, --resume auto is refused (exit 6)
/// unless job.overwrite is set: its result would be lost.
#pragma once

#include <vector>

#include "jobs/directory.hpp"
#include "lab/experiment_file.hpp"
#include "lab/experiment_outcome.hpp"

namespace tessera::lab {

/// The outcomes of rows that an earlier start has run with the same keys; their folders get their numbers of now. For
/// rank 0.
Outcomes earlier_outcomes(const jobs::Context& context, ExperimentFile& file);

/// What is to be done with a row.
enum class Action : char { keep = 'k', go_on = 'g', run = 'r' };  // go_on: from its checkpoint

/// Of each row, after the outcomes of an earlier start. For rank 0.
std::vector<Action> actions_of(const jobs::Context& context, const Outcomes& outcomes, const jobs::Note& note);

}  // namespace tessera::lab
