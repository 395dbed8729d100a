/// A training step on this rank's memory: forward and backward of every micro-step, the norm, the update. This
/// interface hides the dtypes of weights, gradients and moments.
/// Async  enqueued on the instance given to make_step(); functions wait only where they say so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "config/settings.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "model/generate.hpp"
#include "model/hooks.hpp"
#include "parallel/strategies/strategy.hpp"
#include "train/optimizer_step.hpp"
#include "train/pipeline.hpp"
#include "train/plan.hpp"
#include "train/state.hpp"
#include "train/step_hooks.hpp"

namespace tessera::train {

class Step {
 public:
  using Exec = kernels::Device;
  virtual ~Step() = default;

  /// Every launch of a step, in order, from the tokens in `slot` to the scalars there. Nothing in it waits, queries the
  /// device or allocates, so it can be recorded.
  virtual void enqueue(const HostTensors& slot, StepMarks& marks, parallel::Strategy& strategy, StepHooks& hooks) = 0;

  /// Call before a unit's gradients are written: if they are sharded, clears what backward adds to.
  virtual void clear_unit(int unit) = 0;

  virtual OptimizerStep& optimizer() = 0;

  /// Adds the loss of a micro-batch, rows 0 .. sequences - 1 of `tokens`, to the validation's.
  virtual void validate(const HostTokens& tokens, int sequences, model::Hooks& hooks) = 0;

  /// Continues `prompt` with the current weights. Allocates and waits.
  virtual std::vector<int> generate(const std::vector<int>& prompt, const model::GenerateOptions& options,
                                    model::Hooks& hooks) = 0;

  // The state; a deferred update must have been settled.

  /// Weights from seed and label, moments zero. Waits.
  virtual void initialize(std::uint64_t seed) = 0;
  virtual std::vector<parallel::Span> weights() const = 0;  // State::weights(), as the next three
  /// State::copied() if the plan has room for a copy, else State::saved().
  virtual std::vector<SavedTensor> saved(const std::function<bool(std::size_t)>& is_wanted) = 0;
  virtual void load(const std::function<void(const StateTensor&)>& visit) = 0;
  virtual std::uint64_t fingerprint() const = 0;
};

/// For rank `rank`. Keeps references to plan, settings and arena. Zeroes all gradients; their padding stays zero.
/// Async  fences.
std::unique_ptr<Step> make_step(const Plan& plan, const config::Settings& settings, int rank,
                                const kernels::Device& exec, const memory::Arena<kernels::Device>& arena);

}  // namespace tessera::train
