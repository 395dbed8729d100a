#include "jobs/checkpoints.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include "build_info.hpp"
#include "config/keys.hpp"
#include "io/files.hpp"
#include "io/trace.hpp"  // end_of_run
#include "jobs/directory.hpp"
#include "jobs/gemm_algorithms.hpp"
#include "jobs/failure.hpp"
#include "jobs/run_file.hpp"
#include "kernels/core/words.hpp"
#include "kernels/gemm/gemm.hpp"
#include "memory/layout.hpp"
#include "optim/optimizer.hpp"

namespace tessera::jobs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDeckInside = "the checkpoint's deck";

/// What makes the deck's model the checkpoint's; "" if it is that.
std::string overrides_to_model(const config::Settings& before, const config::Settings& settings) {
  config::Settings wanted = settings;
  wanted.model = before.model;
  return overrides_to(wanted, settings);
}

void require_same_model(const io::CheckpointState& state, const config::Settings& before,
                        const config::Settings& settings, const data::Corpus& corpus) {
  if (const std::string overrides = overrides_to_model(before, settings); !overrides.empty()) {
    throw Failure(Exit::usage,
                  "the checkpoint's model is not the deck's. To continue with the checkpoint's, add{}; to train the "
                  "deck's, name another job.directory",
                  overrides);
  }
  if (state.tokenisation != corpus.tokenisation()) {
    throw Failure(
        Exit::usage,
        "the checkpoint was trained on tokens of kind '{}', data.source gives '{}': use data of the same kind",
        state.tokenisation, corpus.tokenisation());
  }
}

/// One optimizer cannot use another's moments.
void require_same_optimizer(const config::Settings& before, const config::Settings& settings) {
  const std::string_view then = optim::traits_of(before.optimizer.kind).name,
                         now = optim::traits_of(settings.optimizer.kind).name;
  if (then == now) return;
  throw Failure(Exit::usage,
                "the checkpoint was trained with optimizer.kind = \"{}\", the deck asks for \"{}\". To continue with "
                "the checkpoint's, add optimizer.kind={}; to train with the deck's, name another job.directory",
                then, now, then);
}

/// A warning if the data have changed, which is legal; "" otherwise.
std::string change_of_data(const io::CheckpointState& state, const data::Corpus& corpus) {
  if (state.corpus_tokens != corpus.size()) {
    return fmt::format(
        "resume     the data have changed: {} tokens then, {} now; samples start at other positions, and "
        "validation may read what was trained on\n",
        state.corpus_tokens, corpus.size());
  }
  if (state.corpus_fingerprint.empty() || state.corpus_fingerprint == corpus.fingerprint()) return "";
  return fmt::format(
      "resume     the data have changed: {} tokens as before, but different ones (fingerprint {} then, {} now); "
      "samples differ in content\n",
      corpus.size(), state.corpus_fingerprint, corpus.fingerprint());
}

/// Throws if ranks hold different weights; the loss would not show it.
void require_same_weights(parallel::World& world, train::Trainer& trainer) {
  std::uint64_t own = 0;
  world.agree([&] { own = trainer.own_fingerprint(); });
  require_same(world, std::to_string(trainer.joined_fingerprint(own)),
               "holds other weights than rank 0 after loading: the checkpoint is not the same file on every host");
}

/// A new run in `directory` deletes the checkpoints there (job.overwrite), including those that a rewind set aside.
void require_outside(const fs::path& directory, const fs::path& checkpoint) {
  std::error_code error;
  const auto is_within = [&](const fs::path& folder) {
    const fs::path place = fs::canonical(checkpoint, error).lexically_relative(fs::weakly_canonical(folder, error));
    return !place.empty() && *place.begin() != "..";
  };
  if (!is_within(directory) && !is_within(io::checkpoints_in(directory))) return;  // which may be a link
  throw Failure(
      Exit::files,
      "{}: this checkpoint lies in job.directory, but its run does not continue from it; use another job.directory",
      checkpoint.string());
}

}  // namespace

io::Peers peers_of(parallel::World& world) {
  return {world.rank(), world.size(), [&world](const io::Peers::Work& work) { return world.all_gather(work); },
          [&world] { world.made_progress(); }};
}

bool continues_itself(const Context& context) {
  if (!context.resume || *context.resume == "auto") return context.resume.has_value();
  bool is_own = false;
  context.world.agree_on_root(
      [&] { is_own = io::is_checkpoint_in(context.settings().job.directory, checkpoint_folder(*context.resume)); });
  return context.world.any(is_own);
}

Beginning find_beginning(const Context& context, bool is_own, const data::Corpus& corpus, const Note& note) {
  if (!context.resume) return {};
  const config::Settings& settings = context.settings();
  parallel::World& world = context.world;
  Beginning beginning;
  std::string folder;
  world.agree_on_root([&] {
    if (*context.resume != "auto") {
      folder = checkpoint_folder(*context.resume).string();
      if (!is_own) require_outside(settings.job.directory, folder);
    } else if (const auto newest = io::newest_checkpoint(settings.job.directory)) {
      folder = newest->string();
      const std::string named = io::named_by_latest(settings.job.directory);
      if (!named.empty() && named != newest->filename()) {
        note(fmt::format(
            "resume     checkpoints/latest names {}, but {} is newer, and complete: continuing from it (for "
            "the older one: --resume {})\n",
            named, newest->filename().string(), io::shell_word(newest->parent_path() / named)));
      }
    }
  });
  folder = world.broadcast(folder);
  if (folder.empty()) {
    note(fmt::format("resume     no checkpoint in {}: starting from step 0\n", settings.job.directory));
    return beginning;
  }

  beginning.checkpoint.emplace(io::open_checkpoint(folder, peers_of(world), "--resume "));
  const io::CheckpointState& state = beginning.checkpoint->state();
  config::Deck deck;
  const config::Settings& before = deck.settings;
  GemmRecord record;
  world.agree([&] {
    deck = config::parse_stored_deck(state.deck, kDeckInside);
    record = gemm_record_from(state.gemm);
    require_same_model(state, before, settings, corpus);
    require_same_optimizer(before, settings);
  });
  if (const std::string change = change_of_data(state, corpus); !change.empty()) note(change);
  if (record.library != library_in_use()) {
    const std::string remedy = environment_for(record.library, library_in_use(), processor_has_avx512());
    note(fmt::format(
        "resume     GEMM library was {}, is {}: the last bits may differ{}\n", record.library, library_in_use(),
        remedy.empty() ? "" : fmt::format("; start with {} to restore it (scripts/run sets a default)", remedy)));
  }
  // Without tuning the library's heuristic repeats its own choice.
  if (settings.train.tune_gemm && before.train.tune_gemm) beginning.algorithms = record.algorithms;
  for (const std::string& old : deck.dropped) note("resume     ignoring its deck's " + old + ", which is not a key\n");
  for (const std::string& change : config::differences(before, settings, "")) {
    note("resume     changed " + change + "\n");
  }
  if (settings.data.validation_fraction > before.data.validation_fraction)
    note("resume     the validation part is larger, so validation reads tokens that were trained on\n");
  const bool was_sharded = !state.shard.empty() && state.shard != "none" && state.ranks > 1;
  note(fmt::format("resume     {} (step {}, written by {}{})\n", folder, state.step, counted(state.ranks, "rank"),
                   was_sharded ? ", each its part of the " + state.shard : ""));
  return beginning;
}

void require_model_of(const io::CheckpointState& state, const config::Settings& settings) {
  config::Settings before = config::parse_stored_deck(state.deck, kDeckInside).settings;
  before.model.context_length = settings.model.context_length;
  if (const std::string overrides = overrides_to_model(before, settings); !overrides.empty())
    throw Failure(Exit::usage, "the checkpoint's model is not the deck's: add{}", overrides);
}

void require_same_training(const io::CheckpointState& state, const config::Settings& settings,
                           const data::Corpus& corpus) {
  config::Settings before = config::parse_stored_deck(state.deck, kDeckInside).settings;
  before.train.steps = settings.train.steps;
  before.train.time_limit_s = settings.train.time_limit_s;
  before.train.validate_every = settings.train.validate_every;
  before.train.validation_sequences = settings.train.validation_sequences;
  before.train.sample_tokens = settings.train.sample_tokens;
  if (state.corpus_fingerprint == corpus.fingerprint()) {  // the same data, possibly at another path
    before.data.path = settings.data.path;
    before.data.source = settings.data.source;
  }
  std::vector<std::string> changes;
  for (const char* section : {"job.seed", "data.", "train.", "attention.", "optimizer.", "precision."}) {
    const auto more = config::differences(before, settings, section);
    changes.insert(changes.end(), more.begin(), more.end());
  }
  if (changes.empty()) return;
  throw Failure(Exit::usage,
                "{} is already at step {} of train.steps = {}, and other keys have changed since ({}): none of it "
                "would be trained. Name another job.directory to train that, or raise train.steps to go on with it",
                settings.job.directory, state.step, settings.train.steps, fmt::join(changes, ", "));
}

std::string note_on_finished_run(const std::string& run_directory, std::int64_t steps) {
  const auto last = io::end_of_run(run_directory);
  if (!last || last->reason != "finished" || last->step < steps) return "";
  return fmt::format(
      "finished at step {} already, and there is no checkpoint to go on from: nothing to train; job.overwrite=true "
      "without --resume trains it again\n",
      last->step);
}

std::string set_rows_aside(const std::string& run_directory) {
  const auto last = io::end_of_run(run_directory);
  if (!last || last->step == 0) return "";
  return fmt::format("resume     a copy of run.h5, with {}, is in {}: delete it if you do not need it\n",
                     counted(last->step, "step"), io::set_trace_aside(run_directory).string());
}

void restore_checkpoint(const Beginning& beginning, const Context& context, train::Trainer& trainer,
                        data::Sampler& sampler, const Note& note) {
  const io::CheckpointReader& checkpoint = *beginning.checkpoint;
  const io::CheckpointState& state = checkpoint.state();
  parallel::World& world = context.world;
  world.agree([&] {
    trainer.load_state([&](const train::StateTensor& tensor) {
      if (checkpoint.shape(tensor.group, tensor.param->label) != tensor.param->shape) {
        throw Failure(Exit::files, "{}: {}/{} has a different shape from the model's; the checkpoint is damaged",
                      checkpoint.folder().string(), tensor.group, tensor.param->label);
      }
      checkpoint.read(tensor.group, tensor.param->label, tensor.first, tensor.data);
      world.made_progress();
    });
    checkpoint.require_unchanged();
    train::StateScalars scalars = trainer.scalars();
    scalars.step = state.step;
    scalars.optimizer_steps = state.optimizer_steps;
    const auto trained_in = config::parse_stored_deck(state.deck, kDeckInside).settings.precision.compute;
    // The loss scale carries over only from fp16 to fp16.
    if (trained_in == config::Precision::fp16 && context.settings().precision.compute == config::Precision::fp16) {
      scalars.good_steps = state.good_steps;
      scalars.loss_scale = state.loss_scale;
    }
    scalars.norms = state.norms;
    trainer.set_scalars(scalars);
    for (std::size_t i = 0; i < state.left_out.size(); i += 2) {
      sampler.leave_out(state.left_out[i], state.left_out[i + 1]);
    }
  });
  require_same_weights(world, trainer);
  if (beginning.algorithms.empty()) return;
  if (const std::string fault = adopt_gemm_algorithms(beginning.algorithms, world); !fault.empty()) {
    note(fmt::format("resume     {}: the first step times them anew, and the last bits may differ from here on\n",
                     fault));
  }
}

io::Background::Work checkpoint_of(const Context& context, train::Trainer& trainer, const data::Corpus& corpus,
                                   const data::Sampler& sampler, const Progress& progress, const std::string& run_id) {
  parallel::World& world = context.world;
  const config::Settings& settings = context.settings();
  train::StateScalars scalars;
  std::vector<train::SavedTensor> saved;
  std::string gemm;
  world.agree([&] {
    scalars = trainer.scalars();
    saved = trainer.saved_state(true);
    gemm = text_of(GemmRecord{library_in_use(), kernels::gemm_algorithms()});
  });
  std::vector<std::int64_t> left_out;
  for (const auto& [first, end] : sampler.left_out()) left_out.insert(left_out.end(), {first, end});
  const io::CheckpointState state{.step = progress.step,
                                  .sample_index = progress.sample,
                                  .seed = settings.job.seed,
                                  .loss_scale = scalars.loss_scale,
                                  .good_steps = scalars.good_steps,
                                  .optimizer_steps = scalars.optimizer_steps,
                                  .bad_steps = progress.bad_steps,
                                  .left_out = left_out,
                                  .norms = scalars.norms,
                                  .shard = std::string(train::name_of(settings.parallel.shard)),
                                  .deck = context.deck.resolved,
                                  .tokenisation = corpus.tokenisation(),
                                  .corpus_tokens = corpus.size(),
                                  .corpus_fingerprint = corpus.fingerprint(),
                                  .gemm = gemm,
                                  .git_hash = build_info::git_hash(),
                                  .run_id = run_id};
  std::vector<io::CheckpointTensor> tensors;
  for (train::SavedTensor& tensor : saved) {
    const auto fetched = [&world, fetch = std::move(tensor.data)] {
      try {
        return fetch();
      } catch (const std::exception& caught) {  // io would report an exception without a code as Exit::files
        throw failure_of(world, caught);
      }
    };
    tensors.push_back({.group = tensor.group,
                       .label = tensor.param->label,
                       .shape = tensor.param->shape,
                       .data = fetched,
                       .axes = tensor.param->axes,
                       .first = tensor.first,
                       .count = tensor.count});
  }
  return [state, tensors = std::move(tensors), directory = settings.job.directory,
          keep = progress.was_bad ? std::numeric_limits<int>::max() : static_cast<int>(settings.checkpoint.keep)](
             const io::Peers& peers) { io::write_checkpoint(directory, state, tensors, peers, keep); };
}

Saving::Saving(parallel::World& world, std::function<void(double)> completed, Note note)
    : world_(world), completed_(std::move(completed)), note_(std::move(note)), background_(peers_of(world)) {}

void Saving::save(const std::function<void()>& flush, const std::function<io::Background::Work()>& prepare,
                  bool in_background) {
  const auto watch = world_.watch("a checkpoint", parallel::kPatience);
  double took_s = 0, flush_s = 0;
  timed(took_s, [&] {
    finish();
    timed(flush_s, flush);
    const io::Background::Work write = prepare();
    if (in_background) {
      background_.start(write);
    } else {
      write(peers_of(world_));
    }
  });
  seconds_ += took_s - flush_s;
  if (!in_background) return has_saved(took_s);
  longest_wait_s_ = std::max(longest_wait_s_, took_s);
}

void Saving::go_on() {
  background_.go_on();
  if (!is_under_way()) has_saved(background_.seconds());
}

void Saving::finish() {
  if (!is_under_way()) return;
  const auto watch = world_.watch("a checkpoint", parallel::kPatience);
  background_.finish();
  has_saved(background_.seconds());
}

bool Saving::finish_after_failure() {
  try {
    finish();
    return true;
  } catch (const std::exception& caught) {
    const bool is_agreed = dynamic_cast<const parallel::AgreedError*>(&caught) != nullptr;
    if (!is_agreed && world_.size() > 1) throw;  // the other ranks wait for this one
    note_(fmt::format("warning    the checkpoint under way was not completed: {}\n", caught.what()));
    return false;
  }
}

void Saving::has_saved(double took_s) {
  longest_write_s_ = std::max(longest_write_s_, took_s);
  world_.agree_on_root([&] { completed_(took_s); });
}

std::string Saving::summary() const {
  if (longest_wait_s_ == 0) return "";
  return fmt::format(
      "checkpoints in the background: training waited at most {:.2f} s for one; writing took at most {:.2f} s\n",
      longest_wait_s_, longest_write_s_);
}

std::string verification_of(const std::string& path) {
  const io::CheckpointReader checkpoint = io::open_checkpoint(checkpoint_folder(path), {}, "--verify-checkpoint ");
  const io::CheckpointState& state = checkpoint.state();
  return fmt::format("{}: verified: step {}, written by {}, {} of tensors; every file agrees with its checksum\n",
                     checkpoint.folder().string(), state.step, counted(state.ranks, "rank"),
                     memory::readable_bytes(static_cast<double>(checkpoint.bytes())));
}

}  // namespace tessera::jobs
