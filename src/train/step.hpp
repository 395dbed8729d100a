/// A training step on this rank's memory: forward and backward of every micro-step, the norm, the update. This
/// interface hides the dtypes of weights and gradients.
/// Async  enqueued on the instance given to make_step(); functions wait only where they say so.
#pragma once

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

  /// Adds the loss of a micro-batch, rows 0 .. sequences - 1 of `tokens`, to the validation's.
  virtual void validate(const HostTokens& tokens, int sequences, model::Hooks& hooks) = 0;

  /// Continues `prompt` with the current weights. Allocates and waits.
  virtual std::vector<int> generate(const std::vector<int>& prompt, const model::GenerateOptions& options,
                                    model::Hooks& hooks) = 0;
};

/// For rank `rank`. Keeps references to plan, settings, arena and optimizer. Zeroes all gradients; their padding
/// stays zero.
/// Async  fences.
std::unique_ptr<Step> make_step(const Plan& plan, const config::Settings& settings, int rank,
                                const kernels::Device& exec, const memory::Arena& arena, OptimizerStep& optimizer);

}  // namespace tessera::train
