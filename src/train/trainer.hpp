/// One optimizer step: load tokens, forward and backward per micro-step, reduce, clip, update.
///
///   begin -> [ tokens -> forward -> head and loss -> backward ] x micro-steps -> reduce -> norm -> clip, lr -> AdamW
///
/// Gradients are sums over tokens divided by the step's tokens over all ranks: unequal ranks and micro-steps count by
/// their tokens. The strategy (strategies/strategy.hpp), driven by the model's hooks, decides what crosses the network,
/// and when. Everything lives in one arena: after the first step, steps allocate nothing but graphs, and no launch
/// waits for the host. step.cpp has the launches.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "config/settings.hpp"
#include "data/sampler.hpp"
#include "kernels/core/side_stream.hpp"
#include "memory/arena.hpp"
#include "model/generate.hpp"
#include "optim/step_state.hpp"
#include "parallel/collectives/collective.hpp"
#include "parallel/strategies/strategy.hpp"
#include "parallel/world.hpp"
#include "train/optimizer_step.hpp"
#include "train/pipeline.hpp"
#include "train/plan.hpp"
#include "train/state.hpp"
#include "train/step.hpp"
#include "train/step_hooks.hpp"

namespace tessera::train {

/// The numbers of a step, on this rank.
struct StepNumbers : PhaseTimes {
  double loss_sum = 0;   // nats over this rank's tokens
  double grad_norm = 0;  // global, before clipping
  double learning_rate = 0;
  double loss_scale = 1;     // after the step
  bool was_skipped = false;  // no weights changed: a bad step, or an overflow in fp16
  optim::BadStep bad = optim::BadStep::no;
  bool was_cold = false;  // Pipeline::Ended, as step_s
  double step_s = 0;
  double data_s = 0;  // the host fetched its tokens
};

/// The scalars of the training state that a checkpoint keeps.
struct StateScalars {
  std::int64_t step = 0, optimizer_steps = 0, good_steps = 0;
  double loss_scale = 1;
  std::vector<double> norms = {};  // gradient norms of the last good steps that spikes are measured by, oldest first
};

/// Sum of token losses over this rank's share of validation windows, and how many tokens they have.
struct ValidationSum {
  double loss_sum = 0, tokens = 0;
};

class Validator {
 public:
  virtual ~Validator() = default;
  /// This rank's share of the first `windows` validation windows.
  virtual ValidationSum validate(const data::Sampler& sampler, std::int64_t windows) = 0;
};

/// A sequence of steps and validations: what a benchmark drives.
class Steps : public Validator {
 public:
  static constexpr int kMaxStarted = Pipeline::kMaxStarted;

  /// Enqueues one step on the global batch that begins at sample `first_sample`, without samples left out.
  /// `launch_by_launch`: never from a graph, so that tools see every kernel.
  /// Limits  at most kMaxStarted steps may be started and not collected.
  virtual void start(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch = false) = 0;
  /// Waits for the oldest step that was not collected, and returns its numbers.
  virtual StepNumbers collect() = 0;
  virtual int started() const = 0;  // and not collected

  /// One step from beginning to end.
  StepNumbers run(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch = false) {
    start(first_sample, sampler, launch_by_launch);
    return collect();
  }
};

class Trainer final : public Steps {
 public:
  using Exec = kernels::Device;

  /// Allocates the plan's memory on this rank; keeps references to plan, settings and world. Not collective: call
  /// connect() once every rank has a trainer. `observer` receives every call that the step's own hooks receive.
  Trainer(const Plan& plan, const config::Settings& settings, parallel::World& world, model::Hooks* observer = nullptr);
  ~Trainer() override;  // waits for the steps in progress, which use the memory it frees
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Connects the ranks. Collective, once, before anything else. A rank that cannot make a trainer for lack of memory
  /// must tell the others before they wait here.
  void connect() { strategy_->connect(); }
  /// Waits for work in progress and disconnects; the model may not run afterwards. Other ranks may have this rank's
  /// memory mapped until they disconnect, so a barrier must precede the destructor.
  void disconnect();

  /// For a rank that leaves the others: keeps its memory until the process ends, since they may still write to it.
  void keep_memory() { arena_.keep_until_exit(); }

  /// Weights from seed and label, moments zero. Collective: if nothing is sharded, all ranks receive rank 0's weights.
  void initialize(std::uint64_t seed);

  void start(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch = false) override;
  StepNumbers collect() override;
  int started() const override { return pipeline_.started(); }
  ValidationSum validate(const data::Sampler& sampler, std::int64_t windows) override;

  /// The instance that steps are enqueued on.
  const Exec& instance() const { return exec_; }

  /// Runs the last step's deferred update (optimizer_step.hpp) and waits for it. Everything below that reads weights or
  /// the optimizer's state calls it.
  void settle() { optimizer_.settle(exec_); }

  /// This rank's part of every tensor of the state; `mine_only`: without parts that another owner saves, and only these
  /// with checkpoint.background, from a copy made now. Valid until the next call and, unless copied, the next step.
  std::vector<SavedTensor> saved_state(bool mine_only);
  /// Calls `visit` with host memory for this rank's part of every tensor of the state, which it fills.
  void load_state(const std::function<void(const StateTensor&)>& visit);
  StateScalars scalars() const;
  void set_scalars(const StateScalars&);

  /// Call before generate() on one rank and follow() on the others read weights. Collective.
  void begin_generation() {
    settle();
    strategy_->begin_inference();
  }
  /// Continues `prompt` with the current weights; allocates. Every other rank must call follow() for each pass
  /// (options.begins_pass) if parameters are sharded, and may otherwise.
  std::vector<int> generate(const std::vector<int>& prompt, const model::GenerateOptions& options) {
    return step_->generate(prompt, options, *hooks_);
  }
  void follow();

  /// Measures the link between the device and the offloaded state; zeros without parallel.offload.
  /// Async  waits for the end.
  LinkRate measure_link() {
    settle();
    return optimizer_.measure_link(exec_);
  }

  /// The arrays of this rank's weights: the working copy and, if there is one, what its master adds.
  std::vector<parallel::Span> weights() {
    settle();
    return state_.weights();
  }

  /// A hash of this rank's weights, bit for bit. joined_fingerprint(), collective, combines the hashes of ranks that
  /// share a model: equal on all ranks if all models are the same.
  std::uint64_t own_fingerprint() {
    settle();
    return state_.fingerprint();
  }
  std::uint64_t joined_fingerprint(std::uint64_t own) const;
  std::uint64_t weights_fingerprint() { return joined_fingerprint(own_fingerprint()); }

 private:
  const Plan& plan_;
  parallel::World& world_;
  const kernels::SideStream stream_;
  const Exec exec_ = stream_.instance();
  memory::Arena arena_;
  const optim::StateView scalars_;  // on the device
  const kernels::Value<double, Exec> validation_loss_;
  const kernels::Vector<double, Exec> norms_;  // optim::PrepareUpdate::norms
  const State state_;
  OptimizerStep optimizer_;
  const std::unique_ptr<Step> step_;
  std::unique_ptr<parallel::Strategy> strategy_;  // until disconnect(), like the hooks, which drive it
  std::optional<StepHooks> hooks_;
  Pipeline pipeline_;
  std::vector<std::int32_t> row_;             // [T+1] one sequence on its way to the device
  std::array<double, kMaxStarted> data_s_{};  // [slot] StepNumbers::data_s of the step in it
};

}  // namespace tessera::train
