/// The training job: decides when to validate, checkpoint and stop, and reports to trace and console; train/trainer.hpp
/// computes and communicates.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include "build_info.hpp"
#include "io/console.hpp"
#include "io/trace.hpp"
#include "jobs/bad_step.hpp"
#include "jobs/checkpoints.hpp"
#include "jobs/directory.hpp"
#include "jobs/gemm_algorithms.hpp"
#include "jobs/generation.hpp"
#include "jobs/jobs.hpp"
#include "jobs/memory.hpp"
#include "jobs/mfu.hpp"
#include "jobs/offload_report.hpp"
#include "jobs/open_corpus.hpp"
#include "jobs/owner.hpp"
#include "jobs/placement.hpp"
#include "jobs/run_file.hpp"
#include "jobs/statistics.hpp"
#include "jobs/stop.hpp"
#include "jobs/failure.hpp"
#include "kernels/core/kernel_timer.hpp"
#include "kernels/core/words.hpp"
#include "memory/arena.hpp"
#include "train/trainer.hpp"

namespace tessera::jobs {
namespace {

namespace fs = std::filesystem;
using io::kNotMeasured;

class TrainingRun {
 public:
  explicit TrainingRun(const Context& context)
      : context_(context),
        settings_(context.settings()),
        world_(context.world),
        console_(console_style(context), settings_.trace.every_steps),
        mfu_(settings_, world_),
        stop_(settings_.train.time_limit_s),
        owner_(settings_.job.directory),
        trace_(world_) {}

  Exit run() {
    if (!set_up()) return Exit::finished;
    const Exit how = loop();
    if (how == Exit::finished && settings_.train.sample_tokens > 0) print_sample();
    disconnect();
    return how;
  }

  /// After a failure on all ranks: closes the trace, and frees nothing before every rank has unmapped it; with a lost
  /// GPU (exit 7) that could wait for ever. Collective.
  void close(Exit code) {
    if (code != Exit::hang) saving_.finish_after_failure();
    trace_.set_end(fmt::format("failed: exit {}", static_cast<int>(code)));
    if (trainer_) tell("failed");
    trace_.close();
    if (code == Exit::hang) return;
    disconnect();
    world_.leave_together();
  }

  /// After a failure on this rank alone: a checkpoint under way stays incomplete if it needs other ranks.
  void leave(const std::exception& caught) {
    const Exit code = failure_of(world_, caught).code();
    if (world_.size() == 1 && code != Exit::hang) saving_.finish_after_failure();
    trace_.set_end(fmt::format("failed: exit {}", static_cast<int>(code)));
    if (!trainer_) return;
    tell("failed");
    trainer_->keep_memory();
  }

 private:
  // --- before step 0 -------------------------------------------------------------------------------------------------

  /// False if the run is already at its last step; then nothing was changed.
  bool set_up() {
    const auto watch = world_.watch("the set-up", parallel::kPatience);
    const bool continues = continues_itself(context_);
    if (!continues) world_.agree_on_root([&] { require_new_directory(settings_.job); });
    require_profiled_ranks(world_, settings_.trace);
    make_plan();
    open_data();
    directory_.emplace(context_, continues, note_);
    const Beginning beginning = find_beginning(context_, continues, *corpus_, note_);
    if (is_at_end(beginning, continues)) return false;
    if (continues && !beginning.checkpoint && has_finished()) return false;
    world_.agree_on_root(
        [&] { owner_.begin(beginning.checkpoint && continues ? beginning.checkpoint->state().step : 0, continues); });
    make_trainer(beginning);
    world_.agree([&] { note_(offload_.measure(*plan_, settings_, world_, *trainer_)); });
    open_trace(beginning, continues);
    if (beginning.checkpoint && continues) last_checkpoint_ = step_, saved_bad_steps_ = bad_steps_;
    if (beginning.checkpoint && !continues) {  // so that a kill before the next checkpoint does not lose the start
      save();
      saving_.finish();
    }
    return true;
  }

  void make_plan() {
    plan_.emplace(plan_run(settings_, world_, note_));
    places_ = rank_places(world_, Cores(), host_gpus(world_));
    const std::string transport = origin_of(context_).transport;
    note_(fmt::format("{}\nhosts      {}\n{}{}{}{}", build_info::summary(), world_.hosts(), rank_table(places_),
                      transport.empty() ? "" : "transport  " + transport + "\n", train::describe(*plan_, settings_),
                      mfu_.formula().empty() ? "" : mfu_.formula() + "\n"));
    note_(warnings_of(places_));
    note_(note_on_groups(world_, settings_.parallel));
    world_.agree([&] {
      const MemoryShare share = share_of_plan(world_, settings_);
      if (!fits(plan_->layout, share)) require_memory(plan_->layout, share, what_would_fit(*plan_, settings_, world_));
      require_pinned_memory(plan_->layout, world_);
    });
  }

  void open_data() {
    corpus_.emplace(open_corpus(
        world_, settings_, [this] { return stop_.reason(); }, console_));
    world_.agree([&] {
      corpus_->fingerprint();  // reads files: from here on it is known
      sampler_.emplace(*corpus_, settings_.model.context_length, settings_.data.validation_fraction,
                       settings_.job.seed);
    });
    require_same(world_, corpus_->fingerprint(),
                 fmt::format("reads other data than rank 0, which reads {}: give all ranks the same path, and the file "
                             "there the same content on every host",
                             corpus_->name()));
    validation_windows_ = settings_.train.validation_sequences == 0
                              ? sampler_->validation_windows()
                              : std::min(settings_.train.validation_sequences, sampler_->validation_windows());
    note_(fmt::format("data       {}: {}, {} per epoch, {} ({} read)\n", corpus_->name(),
                      counted(corpus_->size(), "token"), counted(sampler_->windows_per_epoch(), "window"),
                      counted(sampler_->validation_windows(), "validation window"), validation_windows_));
  }

  bool is_at_end(const Beginning& beginning, bool continues) {
    if (!beginning.checkpoint || beginning.checkpoint->state().step < settings_.train.steps) return false;
    const std::int64_t step = beginning.checkpoint->state().step;
    if (!continues) {
      world_.fail(Failure(Exit::usage, "{} is at step {} already: raise train.steps, which is {}, above it",
                          *context_.resume, step, settings_.train.steps));
    }
    world_.agree([&] { require_same_training(beginning.checkpoint->state(), settings_, *corpus_); });
    note_(fmt::format("already at step {} of train.steps = {}: nothing to train; raise train.steps to continue\n", step,
                      settings_.train.steps));
    return true;
  }

  /// The same of a run without a checkpoint.
  bool has_finished() {
    std::string note;
    world_.agree_on_root([&] { note = note_on_finished_run(settings_.job.directory, settings_.train.steps); });
    note_(note);
    return world_.any(!note.empty());
  }

  void make_trainer(const Beginning& beginning) {
    world_.agree([&] { trainer_ = std::make_unique<train::Trainer>(*plan_, settings_, world_); });
    world_.agree([&] { trainer_->connect(); });
    world_.agree([&] { first_scalars_ = trainer_->scalars(); });
    if (!beginning.checkpoint) return world_.agree([&] { trainer_->initialize(settings_.job.seed); });
    restore(beginning);
    bad_steps_ = beginning.checkpoint->state().bad_steps;
  }

  void restore(const Beginning& beginning) {
    restore_checkpoint(beginning, context_, *trainer_, *sampler_, note_);
    step_ = beginning.checkpoint->state().step;
    sample_ = sampler_->after(beginning.checkpoint->state().sample_index, 0);
  }

  void open_trace(const Beginning& beginning, bool continues) {
    if (world_.rank() != 0 && is_profiled_rank()) trace_.open_log(step_);
    world_.agree_on_root([&] {
      if (!continues) directory_->clear(note_);  // last: every check has passed
      if (continues && !beginning.checkpoint) note_(set_rows_aside(settings_.job.directory));
      io::RunInfo info{origin_of(context_), mfu_.formula(), mfu_.peak(), offload_.link()};
      info.origin.build += fmt::format(", {}, BLAS {}", build_info::mpi(), library_in_use());
      info.job = slurm_job([](const char* name) { return std::getenv(name); });
      info.ranks.assign(places_.begin(), places_.end());
      if (continues && beginning.checkpoint) info.run_id = beginning.checkpoint->state().run_id;
      trace_.open(std::make_unique<io::Trace>(fs::path(settings_.job.directory) / "run.h5", std::move(info),
                                              settings_.trace.flush_s,
                                              continues || beginning.checkpoint ? std::optional(step_) : std::nullopt,
                                              [this] { directory_->require_in_place(); }));
      if (continues && beginning.checkpoint) {  // after this, --resume auto finds this checkpoint or a successor
        if (const auto abandoned = io::rewind_to(settings_.job.directory, beginning.checkpoint->folder()))
          note_(
              fmt::format("resume     later checkpoints and a copy of run.h5 moved to {}: delete it, or continue from "
                          "one of them in another job.directory\n",
                          abandoned->string()));
      }
      trace_->flush();  // on disk: rows after the resumed step are gone
    });
  }

  // --- the loop ------------------------------------------------------------------------------------------------------

  Exit loop() {
    console_.begin(step_, settings_.train.steps);
    start_s_ = events::now_s();
    first_step_ = step_;
    while (step_ < settings_.train.steps) {
      const std::string reason = agreed_stop();
      if (!reason.empty()) {
        settle_all();
        if (step_ == settings_.train.steps) break;
        end("stopped", " by " + reason, true);
        note_(fmt::format("stopped by {} after step {}: resume with --resume auto\n", reason, step_));
        return Exit::stopped;
      }
      const double from_s = events::now_s() - saving_.seconds();
      one_step();
      owner_.step_took(events::now_s() - saving_.seconds() - from_s);
      if (settings_.train.tune_gemm && step_ + trainer_->started() == first_step_ + 1) {
        settle_all();
        const auto watch = world_.watch("the agreement on GEMM algorithms");
        agree_on_gemm_algorithms(world_);
      }
    }
    end("finished", "", settings_.checkpoint.at_end);
    if (world_.rank() == 0) owner_.release();
    return Exit::finished;
  }

  std::string agreed_stop() {
    const auto watch = world_.watch("the exchange between steps");
    enum Due { nothing, flush, stop };  // on a rank; the ranks do the largest
    const Due mine = stop_.is_due() ? stop : trace_.is_flush_due() ? flush : nothing;
    const bool tells = world_.rank() == 0 && directory_->is_status_due();
    const std::vector<double> most =
        world_.max({static_cast<double>(mine), saving_.is_busy() ? 1.0 : 0.0, tells ? 1.0 : 0.0});
    const auto due = static_cast<Due>(static_cast<int>(most[0]));
    if (saving_.is_under_way() && most[1] == 0) saving_.go_on();
    if (due == flush) trace_.flush();
    if (most[2] != 0) {
      const auto patient = world_.watch("the run's status", parallel::kPatience);  // the file system may be slow
      world_.agree_on_root([&] {
        directory_->require_in_place();
        tell("running");
      });
    }
    if (due != stop) return "";
    const std::string reason = first_word(world_, stop_.reason());
    return reason.empty() ? "a request" : reason;  // one that arrived between the two exchanges
  }

  /// `state` is for the status and, followed by `why`, for /attempts.
  void end(const std::string& state, const std::string& why, bool saves) {
    console_.end();
    const bool is_saved = last_checkpoint_ == step_ && saved_bad_steps_ == bad_steps_;  // not after going back
    if (saves && !is_saved) save();
    timed(last_save_s_, [&] { saving_.finish(); });
    trace_.set_end(state + why);
    trace_.flush();
    tell(state);
    summarize();
  }

  /// Starts the next step, then settles the previous one, and this one too if something needs its result. On a GPU the
  /// next step is thus enqueued before the previous one has ended.
  void one_step() {
    const std::int64_t step = step_ + trainer_->started() + 1;  // counted from 1
    const bool is_profiled = std::ranges::count(settings_.trace.profile_steps, step) > 0;
    const bool is_recorded = is_profiled || (settings_.trace.memory && !has_recorded_memory_);
    if (is_recorded) settle_all();
    if (step != step_ + trainer_->started() + 1) return;  // a bad one among these went back
    trace_.record_events(is_recorded && is_profiled_rank());
    if (is_profiled) timer_.start();
    {
      const auto watch = world_.watch(fmt::format("step {}", step), world_.patience_over(settings_.train.batch_size));
      trainer_->start(sampler_->after(sample_, trainer_->started() * settings_.train.batch_size), *sampler_,
                      is_profiled);
    }
    const bool waits = kernels::kIsHost<kernels::Device> || is_recorded || validates_after(step) || saves_after(step) ||
                       step == settings_.train.steps;
    while (trainer_->started() > (waits ? 0 : 1)) settle(is_profiled);
    has_recorded_memory_ = true;
  }

  bool is_profiled_rank() const { return std::ranges::count(settings_.trace.profile_ranks, world_.rank()) > 0; }
  bool validates_after(std::int64_t step) const {
    const std::int64_t every = settings_.train.validate_every;
    return validation_windows_ > 0 && (step == settings_.train.steps || (every > 0 && step % every == 0));
  }
  bool saves_in_background() const { return plan_->arrays.copy != memory::kAbsent; }
  bool saves_after(std::int64_t step) const {
    return settings_.checkpoint.every > 0 && step % settings_.checkpoint.every == 0;
  }

  void settle_all() {
    while (trainer_->started() > 0) settle(false);
  }

  /// Waits for the oldest step under way, then records it, validates and checkpoints as due.
  void settle(bool is_profiled) {
    const std::int64_t step = step_ + 1;
    const auto [numbers, loss] = watched_collect(step);
    if (is_profiled) {  // before a validation or a checkpoint, which are not part of the step
      timer_.stop();
      trace_.add(timer_, step);
    }
    trace_.record_events(false);
    steps_s_ += numbers.step_s;
    ++step_;
    const std::int64_t first = sample_, end = sampler_->after(first, settings_.train.batch_size - 1) + 1;

    io::StepRecord record = step_record(step, numbers, loss, settings_, is_profiled);
    const bool is_bad = was_bad_ = record.bad != 0;
    const std::int64_t trained = first - sampler_->left_out_before(first) + (is_bad ? 0 : settings_.train.batch_size);
    record.tokens = static_cast<double>(trained) * static_cast<double>(settings_.model.context_length);
    record.mfu = mfu_.of(train::step_flop(*plan_), record.step_time_s);
    record.peak_bytes = static_cast<double>(plan_->layout.arena_bytes());
    record.first_sample = static_cast<double>(first);
    offload_.add(record.step_time_s);
    if (step - first_step_ == kWarmupSteps && trace_) trace_->set_taken(taken_bytes(world_));
    if (is_bad) {
      ++bad_steps_;
      require_may_go_on(record, numbers, is_profiled);
      sampler_->leave_out(first, end);
      note_(note_on_bad_step(record, first, end, bad_steps_, settings_.train));
      if (settings_.train.on_bad_step == config::OnBadStep::rewind) return go_back();
    }
    sample_ = sampler_->after(end, 0);
    if (validates_after(step)) {
      timed(validation_s_, [&] { record.validation_loss = validation_loss_ = validation_loss(); });
      validated_step_ = step;
    }
    console_.step(record);
    trace_.add(record, numbers, is_profiled);
    if (validated_step_ == step && !std::isfinite(validation_loss_))
      fail([&](bool has_checkpoint) { return failure_at_validation(step, validation_loss_, has_checkpoint); });
    if (saves_after(step)) save();
  }

  /// Ends the run on all ranks, with what it has recorded.
  void fail(const std::function<Failure(bool has_checkpoint)>& failure) {
    console_.end();
    trace_.flush();
    if (!saving_.finish_after_failure()) last_checkpoint_ = checkpoint_before_;  // that one could not be completed
    world_.fail(failure(last_checkpoint_ >= 0));
  }

  std::pair<train::StepNumbers, double> watched_collect(std::int64_t step) {
    const auto watch =
        world_.watch(fmt::format("the end of step {}", step), world_.patience_over(settings_.train.batch_size));
    const train::StepNumbers numbers = trainer_->collect();
    const std::int64_t tokens = settings_.train.batch_size * settings_.model.context_length;
    return {numbers, world_.sum({numbers.loss_sum})[0] / static_cast<double>(tokens)};
  }

  double validation_loss() {
    const auto watch = world_.watch("a validation", world_.patience_over(validation_windows_));
    const auto mine = trainer_->validate(*sampler_, validation_windows_);
    const std::vector<double> all = world_.sum({mine.loss_sum, mine.tokens});
    return all[0] / all[1];
  }

  /// After a bad step.
  void require_may_go_on(const io::StepRecord& record, const train::StepNumbers& numbers, bool is_profiled) {
    const bool stops = settings_.train.on_bad_step == config::OnBadStep::stop;
    if (!stops && bad_steps_ <= settings_.train.bad_steps_limit) return;
    trace_.add(record, numbers, is_profiled);
    fail([&](bool has_checkpoint) { return failure_at_bad_step(record, has_checkpoint, settings_.train); });
  }

  /// After a bad step: to the last checkpoint, or the start. What was started since is forgotten.
  void go_back() {
    const auto watch = world_.watch("the way back to a checkpoint", parallel::kPatience);
    while (trainer_->started() > 0) trainer_->collect();
    saving_.finish();
    trace_.flush();
    if (last_checkpoint_ < 0) {
      world_.agree([&] { trainer_->initialize(settings_.job.seed); });
      world_.agree([&] { trainer_->set_scalars(first_scalars_); });
      step_ = 0;
      sample_ = sampler_->after(0, 0);
    } else {
      std::string folder;
      world_.agree_on_root([&] { folder = checkpoint_before_bad_step(settings_.job.directory, last_checkpoint_); });
      Beginning beginning;
      beginning.checkpoint.emplace(io::open_checkpoint(world_.broadcast(folder), peers_of(world_), "--resume "));
      restore(beginning);
    }
    trace_.cut(step_);
    note_(fmt::format("           back to step {}\n", step_));
  }

  /// Call before freeing memory that other ranks may have mapped. They may have to wait for rank 0's files.
  void disconnect() {
    const auto watch = world_.watch("the end of the run", parallel::kPatience);
    if (trainer_) trainer_->disconnect();
    world_.barrier();
  }

  // --- files and text ------------------------------------------------------------------------------------------------

  void save() {
    saving_.save([&] { trace_.flush(); },
                 [&] {
                   return checkpoint_of(context_, *trainer_, *corpus_, *sampler_,
                                        {step_, sample_, bad_steps_, was_bad_},
                                        trace_ ? trace_->run_id() : std::string());
                 },
                 saves_in_background());
    checkpoint_before_ = std::exchange(last_checkpoint_, step_);
    saved_bad_steps_ = bad_steps_;
  }

  /// Prints where this start's wall time went. The trace's share is rank 0's time in it outside of steps.
  void summarize() {
    const double wall_s = events::now_s() - start_s_;
    const auto share = [&](double s) {
      return fmt::format("{:.1f} s ({:.1f} %)", s, 100 * s / std::max(wall_s, 1e-9));
    };
    const double checkpoint_s = saving_.seconds() + last_save_s_;
    const double named_s = steps_s_ + validation_s_ + checkpoint_s + trace_.seconds();
    note_(fmt::format("{} in {:.1f} s: steps {}, validation {}, checkpoints {}, trace {}, other {}\n",
                      counted(step_ - first_step_, "step"), wall_s, share(steps_s_), share(validation_s_),
                      share(checkpoint_s), share(trace_.seconds()), share(std::max(0.0, wall_s - named_s))));
    note_(saving_.summary());
    note_(offload_.summary());
    if (std::isfinite(validation_loss_)) {
      note_(fmt::format("validation loss {:.4f} nats per token after step {}\n", validation_loss_, validated_step_));
    }
  }

  /// Prints a sample of the trained model, and keeps it in run.h5. The training is already saved.
  void print_sample() {
    const std::optional<TrainingSample> sample =
        training_sample(world_, settings_, *corpus_, plan_->sharing.is_sharded(), stop_, *trainer_);
    if (!sample) return trace_.flush();
    note_(fmt::format("\n--- {} generated from the trained model{} ---\n{}\n",
                      counted(sample->was_cut ? std::ssize(sample->tokens) : settings_.train.sample_tokens, "token"),
                      sample->was_cut ? ", then stopped by a signal or the time limit; the run is finished" : "",
                      sample->text));
    trace_.flush([&](io::Trace& trace) { trace.set_sample(sample->prompt, sample->tokens, step_); });
  }

  void tell(const std::string& state) {
    if (world_.rank() == 0) directory_->write_status(state, console_.progress());
  }

  const Context& context_;
  const config::Settings& settings_;
  parallel::World& world_;
  io::Console console_;
  const Note note_ = [this](const std::string& text) { console_.note(text); };
  const Mfu mfu_;
  StopRequest stop_;
  Owner owner_;
  std::optional<RunDirectory> directory_;
  std::optional<train::Plan> plan_;
  std::vector<RankPlace> places_;  // by rank
  std::optional<data::Corpus> corpus_;
  std::optional<data::Sampler> sampler_;
  std::int64_t validation_windows_ = 0;
  std::unique_ptr<train::Trainer> trainer_;
  RunFile trace_;
  kernels::KernelTimer timer_;
  std::int64_t step_ = 0, sample_ = 0;  // optimizer steps done; next global sample
  std::int64_t bad_steps_ = 0;          // of the run
  bool was_bad_ = false;                // the last step
  train::StateScalars first_scalars_;   // of step 0
  std::int64_t last_checkpoint_ = -1;   // step of the newest one of this run, which may be under way
  std::int64_t checkpoint_before_ = -1;
  std::int64_t saved_bad_steps_ = 0;  // those that the newest one knows
  bool has_recorded_memory_ = false;
  double validation_loss_ = kNotMeasured;  // the last one
  std::int64_t validated_step_ = 0;
  double start_s_ = 0;           // of the loop
  std::int64_t first_step_ = 0;  // of this start
  OffloadReport offload_;
  double steps_s_ = 0, validation_s_ = 0;
  double last_save_s_ = 0;  // waiting for the last checkpoint's end
  Saving saving_{world_,
                 [this](double took_s) {
                   directory_->require_in_place();
                   note_(owner_.checkpoint_took(took_s, saves_in_background()));
                 },
                 note_};  // last: its thread reads the trainer's memory
};

}  // namespace

Exit train(const Context& context) {
  TrainingRun run(context);
  try {
    return run.run();
  } catch (const parallel::AgreedError& failure) {
    try {
      run.close(failure_of(context.world, failure).code());
    } catch (const std::exception&) {  // `failure` is the one to report
      run.leave(failure);
    }
    context.world.leave(failure);
    throw;
  } catch (const std::exception& caught) {
    context.world.leave(caught);
    run.leave(caught);
    throw;
  }
}

}  // namespace tessera::jobs
