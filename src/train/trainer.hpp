/// One optimizer step: load tokens, forward and backward per micro-step, reduce, clip, update.
///
///   begin -> [ tokens -> forward -> head and loss -> backward ] x micro-steps -> reduce -> norm -> clip, lr -> AdamW
///
/// Gradients are sums over tokens divided by the step's tokens over all ranks, so ranks and micro-steps of unequal
/// size weigh as much as they hold. What crosses the network, and when, is the strategy's (parallel/strategy.hpp), which
/// the model's hooks drive. Everything works on one arena: after the first step a step allocates nothing, and no launch
/// waits for the host.
///
/// What computes is in compute.hpp, what follows the gradients in update.hpp, what lasts from step to step in
/// state.hpp, how ranks share it in sharing.hpp, how steps follow each other in pipeline.hpp; this joins them with the
/// ranks and the data.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "config/settings.hpp"
#include "data/sampler.hpp"
#include "memory/arena.hpp"
#include "model/generate.hpp"
#include "optim/step_state.hpp"
#include "parallel/collective.hpp"
#include "parallel/strategy.hpp"
#include "parallel/world.hpp"
#include "train/compute.hpp"
#include "train/pipeline.hpp"
#include "train/plan.hpp"
#include "train/state.hpp"
#include "train/step_hooks.hpp"
#include "train/update.hpp"

namespace tessera::train {

/// What a step did, on this rank.
struct StepNumbers : PhaseTimes {
  double loss_sum = 0;   // nats over this rank's tokens
  double grad_norm = 0;  // global, before clipping
  double learning_rate = 0;
  double loss_scale = 1;     // after the step
  bool was_skipped = false;  // gradients overflowed (fp16) or are not numbers
  bool was_cold = false;     // Pipeline::Ended, as step_s
  double step_s = 0;
};

/// The scalars of the training state that a checkpoint keeps.
struct StateScalars {
  std::int64_t step = 0, optimizer_steps = 0, good_steps = 0;
  double loss_scale = 1;
};

/// Sum of token losses over this rank's share of validation windows, and how many tokens they have.
struct ValidationSum {
  double loss_sum = 0, tokens = 0;
};

/// Steps and validations one after another: what a benchmark drives.
class Steps {
 public:
  static constexpr int kMaxStarted = Pipeline::kMaxStarted;
  virtual ~Steps() = default;

  /// Enqueues one step on the global batch that begins at sample `first_sample`. At most kMaxStarted steps may be
  /// started and not collected. `launch_by_launch`: never from a graph, so that tools see every kernel.
  virtual void start(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch = false) = 0;
  /// Waits for the oldest step that was not collected, and says what it did.
  virtual StepNumbers collect() = 0;
  virtual int started() const = 0;  // and not collected

  /// This rank's share of the first `windows` validation windows.
  virtual ValidationSum validate(const data::Sampler& sampler, std::int64_t windows) = 0;

  /// One step from beginning to end.
  StepNumbers run(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch = false) {
    start(first_sample, sampler, launch_by_launch);
    return collect();
  }
};

class Trainer final : public Steps {
 public:
  using Exec = kernels::Device;

  /// Takes the plan's memory on this rank; keeps references to plan, settings and world. Not collective: connect() it
  /// when every rank has one. `observer` gets every call that the step's own hooks get.
  Trainer(const Plan& plan, const config::Settings& settings, parallel::World& world, model::Hooks* observer = nullptr);
  ~Trainer() override;  // waits for what is under way: it uses the memory that goes
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Connects the ranks. Collective, once, before anything else: where a rank has no trainer, for want of memory, the
  /// others must know before they wait for it here.
  void connect() { strategy_->connect(); }
  /// Waits for what is under way and ends the connection; nothing that runs the model may follow. The other ranks may
  /// have this one's memory open until they have come here, too: a barrier belongs between this and the trainer's end.
  void disconnect();

  /// Weights from seed and label, moments zero. Collective: where nothing is sharded everyone gets rank 0's weights.
  void initialize(std::uint64_t seed);

  void start(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch = false) override;
  StepNumbers collect() override;
  int started() const override { return pipeline_.started(); }
  ValidationSum validate(const data::Sampler& sampler, std::int64_t windows) override;

  /// What this rank owns of every tensor of the state; `mine_only`: without what another rank that owns the same gives.
  /// Good while no step is started.
  std::vector<SavedTensor> saved_state(bool mine_only);
  /// Calls `visit` with host memory for what this rank owns of every tensor of the state; it fills it.
  void load_state(const std::function<void(const StateTensor&)>& visit);
  StateScalars scalars() const;
  void set_scalars(const StateScalars&);

  /// Weights are about to be read outside of steps: by generate() on one rank and follow() on the others, pass by pass.
  /// Collective.
  void begin_generation() { strategy_->begin_inference(); }
  /// Continues `prompt` with the present weights; allocates. Where parameters are sharded, every other rank calls
  /// follow() for each pass (options.begins_pass); elsewhere it may.
  std::vector<int> generate(const std::vector<int>& prompt, const model::GenerateOptions& options) {
    return compute_->generate(exec_, prompt, options, *hooks_);
  }
  void follow() { compute_->walk_validation(*hooks_); }

  /// What the link moves between the device and what is offloaded; zeros without parallel.offload. Waits.
  LinkRate measure_link() const { return update_->measure_link(exec_); }

  const State& state() const { return *state_; }

  /// A hash of this rank's weights, bit for bit; joined_fingerprint() makes that of the whole model out of those of the
  /// ranks that share it: equal on all ranks if they hold the same model. Collective.
  std::uint64_t own_fingerprint() const { return state_->fingerprint(); }
  std::uint64_t joined_fingerprint(std::uint64_t own) const;
  std::uint64_t weights_fingerprint() const { return joined_fingerprint(own_fingerprint()); }

 private:
  using Loss = Kokkos::View<double, Kokkos::HostSpace, kernels::Unmanaged>;
  using HostScalars = Kokkos::View<optim::StepState, kernels::PinnedSpace, kernels::Unmanaged>;

  HostTokens host_tokens(const HostTensors& tensors) const;
  HostScalars host_scalars(const HostTensors& tensors) const;
  template <class NextRow>
  void fill(const HostTokens& tokens, int sequences, const NextRow& next_row);
  void enqueue(const HostTensors& slot, StepMarks& marks);
  void clear_unit(int unit);

  const Plan& plan_;
  const config::Settings& settings_;
  parallel::World& world_;
  const Exec exec_{};
  const memory::Arena<Exec> arena_;
  const optim::StateView<Exec> scalars_;  // on the device
  std::unique_ptr<State> state_;
  std::unique_ptr<Compute> compute_;
  std::unique_ptr<Update> update_;
  std::unique_ptr<parallel::Strategy> strategy_;  // until disconnect(), as the hooks, which drive it
  std::optional<StepHooks> hooks_;
  Pipeline pipeline_;
  bool has_sequences_ = true;      // in the micro-step that is enqueued
  std::vector<std::int32_t> row_;  // [T+1] one sequence on its way to the device
};

}  // namespace tessera::train
