/// The checkpoints of a training run: the one that --resume means, what it brings back, and new ones.
///
/// All of it is collective; what fails on one rank is thrown on all, as CollectiveFailure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus.hpp"
#include "io/checkpoint.hpp"
#include "jobs/directory.hpp"
#include "jobs/jobs.hpp"
#include "train/trainer.hpp"

namespace tessera::jobs {

/// Where a run begins.
struct Beginning {
  std::optional<io::CheckpointReader> checkpoint;  // none: from step 0
  std::vector<std::string> algorithms;             // of products, which the run before had timed
};

/// Whether --resume goes on in the run's own directory, which then may hold a run: "auto", or a folder of that
/// directory however it is spelled. Asks rank 0.
bool continues_itself(const Context& context);

/// What --resume asks for: "auto", the newest of the run's own directory where there is one; or a folder. Notes every
/// key that has changed since. Throws Failure(Exit::files) where it is not whole, Failure(Exit::usage) where model or
/// tokenisation are not the deck's.
Beginning find_beginning(const Context& context, const data::Corpus& corpus, const Note& note);

/// Puts the checkpoint's weights, moments, scalars and algorithms in place. Throws Failure(Exit::files) where it does
/// not fit the model, or ranks read different weights.
void restore_checkpoint(const Beginning& beginning, const Context& context, train::Trainer& trainer, const Note& note);

/// Writes a checkpoint of the run after `step` steps, whose next sample is `sample`. No step is started.
void save_checkpoint(const Context& context, train::Trainer& trainer, const data::Corpus& corpus, std::int64_t step,
                     std::int64_t sample);

}  // namespace tessera::jobs
