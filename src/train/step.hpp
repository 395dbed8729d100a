/// One optimizer step: load tokens, forward and backward per micro-step, reduce, clip, update.
///
///   begin -> [ tokens -> forward -> head and loss -> backward ] x micro-steps -> reduce -> norm -> clip, lr -> AdamW
///
/// Gradients are sums over tokens divided by the step's tokens over all ranks, so ranks and micro-steps of unequal
/// size weigh as much as they hold. The reduction runs in buckets under the last backward pass. Everything works on
/// one arena: after the first step a step allocates nothing, and no launch waits for the host.
///
/// On a GPU the host only enqueues: start() returns while the step runs, and its numbers are collected one step later,
/// so that the next one is waiting when it ends. Two sets of everything that the host touches (tokens, numbers, time
/// marks) take turns. With train.graph each set records the step as a graph once it has run launch by launch, and
/// replays it from then on.
///
/// `Trainer` hides the precision; make_trainer() chooses it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/settings.hpp"
#include "data/sampler.hpp"
#include "model/generate.hpp"
#include "parallel/world.hpp"
#include "train/plan.hpp"

namespace tessera::train {

/// What a step did, on this rank; seconds are this rank's, on the clock of what it computes on.
struct StepNumbers {
  double loss_sum = 0;   // nats over this rank's tokens
  double grad_norm = 0;  // global, before clipping
  double learning_rate = 0;
  double loss_scale = 1;     // after the step
  bool was_skipped = false;  // gradients overflowed (fp16) or are not numbers
  bool was_cold = false;  // the trainer's first step, or with train.graph one that ran before its graph or recorded it
  double forward_s = 0, backward_s = 0, exposed_comm_s = 0, optimizer_s = 0;
  double total_s = 0;  // first launch to last
  /// From the end of the step before, where that one was still to be collected when this one was started; else from
  /// the call of start().
  double step_s = 0;
};

/// A parameter-shaped tensor of the training state on the host, on its way out of a checkpoint: unpadded.
struct StateTensor {
  std::string group;  // "params" (the master weights), "moments/m", "moments/v"
  const model::Param* param;
  std::span<float> data;
};

/// The same on its way into one. `data` fetches it from the device: the host never holds more than one tensor of it.
struct SavedTensor {
  std::string group;
  const model::Param* param;
  std::function<std::span<const float>()> data;  // valid until that of another one is asked for
};

/// The scalars of the training state that a checkpoint keeps.
struct StateScalars {
  std::int64_t step = 0, optimizer_steps = 0, good_steps = 0;
  double loss_scale = 1;
};

class Trainer {
 public:
  virtual ~Trainer() = default;

  /// Connects the sums over the ranks. Collective, once, before anything else: where a rank has no trainer, for want of
  /// memory, the others must know before they wait for it here.
  virtual void connect() = 0;
  /// Waits for what is under way and closes the sums; there are no steps afterwards. The other ranks may have this
  /// one's gradients open until they have come here, too: a barrier belongs between this and the trainer's end.
  virtual void disconnect() = 0;

  /// Weights from seed and label, moments zero; then rank 0's weights to everyone.
  virtual void initialize(std::uint64_t seed) = 0;

  /// Enqueues one step on the global batch that begins at sample `first_sample`. At most kMostStarted steps may be
  /// started and not collected. `launch_by_launch`: never from a graph, so that tools see every kernel.
  static constexpr int kMostStarted = 2;
  virtual void start(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch = false) = 0;
  /// Waits for the oldest step that was not collected, and says what it did.
  virtual StepNumbers collect() = 0;
  virtual int started() const = 0;  // and not collected

  /// One step from beginning to end.
  StepNumbers run(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch = false) {
    start(first_sample, sampler, launch_by_launch);
    return collect();
  }

  /// Sum of token losses over this rank's share of the first `windows` validation windows, and how many tokens.
  struct ValidationSum {
    double loss_sum = 0, tokens = 0;
  };
  virtual ValidationSum validate(const data::Sampler& sampler, std::int64_t windows) = 0;

  /// Every tensor of the state; only those with index % ranks == rank when `mine_only`. Good while no step is started.
  virtual std::vector<SavedTensor> saved_state(bool mine_only) = 0;
  /// Calls `visit` with host memory for every tensor of the state; it fills it.
  virtual void load_state(const std::function<void(const StateTensor&)>& visit) = 0;
  virtual StateScalars scalars() = 0;
  virtual void set_scalars(const StateScalars&) = 0;

  /// Continues `prompt` with the present weights; allocates.
  virtual std::vector<int> generate(const std::vector<int>& prompt, const model::GenerateOptions& options) = 0;

  /// A hash of the weights, bit for bit: equal on all ranks when they hold the same model.
  virtual std::uint64_t weights_fingerprint() = 0;
};

/// Takes the plan's memory on this rank. Not collective: connect() it when every rank has one.
std::unique_ptr<Trainer> make_trainer(const Plan& plan, const config::Settings& settings, parallel::World& world);

}  // namespace tessera::train
