/// The model's part of a step: one micro-step forwards and backwards, a validation, a sample of text. All of it is
/// enqueued on the caller's instance; only generation waits.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "config/settings.hpp"
#include "kernels/clear_spans.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "model/generate.hpp"
#include "model/hooks.hpp"
#include "train/plan.hpp"

namespace tessera::train {

/// Rows of token ids on the host, [sequences,T] each; pinned where the model computes on a GPU.
struct HostTokens {
  int* inputs;
  int* targets;
};

class Compute {
 public:
  using Exec = kernels::Device;
  virtual ~Compute() = default;

  /// Clears the loss and, where gradients are not sharded, what backward adds to; sets what gradients are multiplied by:
  /// 1 / `tokens`, of the whole step over all ranks, times the loss scale.
  virtual void begin_step(const Exec& exec, double tokens) = 0;

  /// Every gradient becomes zero, padding included: before the first step, and in a step in which this rank has no
  /// sequences and gradients are not sharded.
  virtual void clear_gradients(const Exec& exec) = 0;

  /// Where gradients are sharded: makes a unit's place ready for its gradients, before each of its backward passes. What
  /// backward adds to becomes zero, and padding; `without_sequences`: everything.
  virtual void clear_unit(const Exec& exec, int unit, bool without_sequences) = 0;

  /// Makes rows first .. first + sequences - 1 of `tokens` the model's micro-batch.
  virtual void load(const Exec& exec, const HostTokens& tokens, int first, int sequences) = 0;

  virtual void forward(const Exec& exec, model::Hooks& hooks) = 0;

  /// Head, loss and backward; `accumulates`: on top of the gradients of the micro-steps before.
  virtual void backward(const Exec& exec, bool accumulates, model::Hooks& hooks) = 0;

  /// What a rank without sequences announces instead of forward() and backward(), and instead of validate().
  virtual void walk(model::Hooks& hooks) = 0;
  virtual void walk_validation(model::Hooks& hooks) = 0;

  /// The loss of the micro-batch is added to the validation's; clear_validation() begins one.
  virtual void clear_validation(const Exec& exec) = 0;
  virtual void validate(const Exec& exec, model::Hooks& hooks) = 0;

  /// Continues `prompt` with the present weights; allocates.
  virtual std::vector<int> generate(const Exec& exec, const std::vector<int>& prompt,
                                    const model::GenerateOptions& options, model::Hooks& hooks) = 0;
};

/// What has to be cleared before backward adds to it: spans of the gradients; where those are sharded, spans of each
/// unit's place, with its padding.
struct ClearLists {
  std::vector<kernels::ClearSpan> spans;
  std::vector<std::pair<std::size_t, std::size_t>> of_unit;  // [units] first and last + 1 in `spans`
};
ClearLists clear_lists(const model::ParamTable& table, const Sharing& sharing);

/// Keeps references to all of them. Fences.
std::unique_ptr<Compute> make_compute(const Plan& plan, const config::Settings& settings,
                                      const memory::Arena<kernels::Device>& arena);

}  // namespace tessera::train
