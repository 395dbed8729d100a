/// The checkpoints of a training run: finding the one named by --resume, restoring it, and writing new ones.
///
/// All functions are collective; a failure on one rank is thrown on all, as parallel::AgreedError.
#pragma once

#include <cstdint>
#include <functional>
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

/// For its weights alone. Throws Failure(Exit::usage), with the keys, if the checkpoint's model, apart from the length
/// of its context, is not the deck's.
void require_model_of(const io::CheckpointState& state, const config::Settings& settings);

/// For a run with no steps left. Throws Failure(Exit::usage), naming them, if training keys other than its length,
/// validation and sampling differ from the checkpoint's: the run would ignore them.
void require_same_training(const io::CheckpointState& state, const config::Settings& settings,
                           const data::Corpus& corpus);

/// A line on a run of `steps` steps that has finished, as its run.h5 says, for one without a checkpoint to go on from;
/// "" if it has not. For rank 0.
std::string note_on_finished_run(const std::string& run_directory, std::int64_t steps);

/// Before a run without a checkpoint begins again: copies run.h5 aside if it has steps, and returns a line on it, else
/// "". For rank 0.
std::string set_rows_aside(const std::string& run_directory);

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
  bool was_bad = false;  // the last step: no older checkpoint is deleted, since the weights may have diverged
};

/// What writes a checkpoint of the run. All started steps must be collected. `run_id`: from rank 0's run.h5. With
/// checkpoint.background it may run on any thread, whatever steps follow.
io::Background::Work checkpoint_of(const Context& context, train::Trainer& trainer, const data::Corpus& corpus,
                                   const data::Sampler& sampler, const Progress& progress, const std::string& run_id);

/// How a training run saves: at once or, with checkpoint.background, between later steps. All but is_busy() is
/// collective.
class Saving {
 public:
  /// `completed` hears, on rank 0, how long each checkpoint took that is complete, and `note` of one that is not.
  Saving(parallel::World& world, std::function<void(double took_s)> completed, Note note);

  /// Saves, or with `in_background` begins to, once the checkpoint before is complete and `flush` has written run.h5: a
  /// resume continues from here, so the rows up to here must be on disk. `prepare` returns what writes the checkpoint.
  void save(const std::function<void()>& flush, const std::function<io::Background::Work()>& prepare,
            bool in_background);

  bool is_under_way() const { return background_.is_under_way(); }
  /// Whether this rank is still at work on its part, so that ranks cannot go on. Local.
  bool is_busy() const { return is_under_way() && !background_.can_go_on(); }
  /// Between steps, when no rank is busy.
  void go_on();
  /// Waits for the end of what is under way, if anything is.
  void finish();
  /// The same after a failure, which is the one to report. False, with a note, if the checkpoint is not complete.
  bool finish_after_failure();

  double seconds() const { return seconds_; }  // that training waited, without run.h5's
  std::string summary() const;                 // a line about checkpoints in the background; "" if there were none

 private:
  void has_saved(double took_s);

  parallel::World& world_;
  const std::function<void(double)> completed_;
  const Note note_;
  io::Background background_;
  double seconds_ = 0, longest_wait_s_ = 0;
  double longest_write_s_ = 0;  // in the background
};

/// What --verify-checkpoint prints, after reading every byte of a checkpoint, or of the newest in a run's directory.
/// Local. Throws Failure(Exit::files), naming the file, if it is damaged or incomplete.
std::string verification_of(const std::string& path);

}  // namespace tessera::jobs
