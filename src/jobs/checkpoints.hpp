/// The checkpoints of a training run: finding the one named by --resume, restoring it, and writing new ones.
///
/// All functions are collective; a failure on one rank is thrown on all, as parallel::AgreedError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus.hpp"
#include "data/sampler.hpp"
#include "io/background.hpp"
#include "io/checkpoint.hpp"
#include "jobs/directory.hpp"
#include "jobs/jobs.hpp"
#include "train/trainer.hpp"

namespace tessera::jobs {

/// Where a run begins.
struct Beginning {
  std::optional<io::CheckpointReader> checkpoint;  // none: from step 0
  std::vector<std::string> algorithms;             // GEMM algorithms that the run had tuned
};

/// Whether --resume continues the run of the job's own directory: "auto", or any spelling of a folder in it. Rank 0
/// decides.
bool continues_itself(const Context& context);

/// Opens the checkpoint that --resume names: a folder, or with "auto" the newest in the run's own directory, if any.
/// Notes every key that has changed since. `is_own`: continues_itself().
/// Throws Failure(Exit::files) if the checkpoint is incomplete or damaged, Failure(Exit::usage) if its model,
/// tokenisation or optimizer differs from the deck's.
Beginning find_beginning(const Context& context, bool is_own, const data::Corpus& corpus, const Note& note);

/// For a run with no steps left. Throws Failure(Exit::usage), naming them, if training keys other than its length,
/// validation and sampling differ from the checkpoint's: the run would ignore them.
void require_same_training(const io::CheckpointState& state, const config::Settings& settings,
                           const data::Corpus& corpus);

/// Restores weights, moments, scalars and GEMM algorithms, and leaves out the samples that the run left out.
/// Throws Failure(Exit::files) if the checkpoint does not fit the model, or ranks read different weights.
void restore_checkpoint(const Beginning& beginning, const Context& context, train::Trainer& trainer,
                        data::Sampler& sampler, const Note& note);

/// The ranks of `world`, exchanging on the main thread.
io::Peers peers_of(parallel::World& world);

/// What a training run has reached.
struct Progress {
  std::int64_t step = 0, sample = 0;  // optimizer steps done; next global sample
  std::int64_t bad_steps = 0;
};

/// What writes a checkpoint of the run. All started steps must be collected. `run_id`: from rank 0's run.h5. With
/// checkpoint.background it may run on any thread, whatever steps follow.
io::Background::Work checkpoint_of(const Context& context, train::Trainer& trainer, const data::Corpus& corpus,
                                   const data::Sampler& sampler, const Progress& progress, const std::string& run_id);

/// What --verify-checkpoint prints, after reading every byte of a checkpoint, or of the newest in a run's directory.
/// Local. Throws Failure(Exit::files), naming the file, if it is damaged or incomplete.
std::string verification_of(const std::string& path);

}  // namespace tessera::jobs
