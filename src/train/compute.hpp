/// The model's part of a step: forward and backward of a micro-step, validation, text generation.
///
/// Async  everything is enqueued on the caller's instance; only generate() waits.
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
#include "train/arrays.hpp"
#include "train/host_tokens.hpp"

namespace tessera::train {

class Compute {
 public:
  using Exec = kernels::Device;
  virtual ~Compute() = default;

  /// Clears the loss. Sets the factor on gradients to the loss scale / `tokens`, the tokens of the whole step over all
  /// ranks.
  virtual void begin_step(const Exec& exec, double tokens) = 0;

  /// Before the first backward pass of a step: unless gradients are sharded, clears what backward adds to.
  virtual void clear_sums(const Exec& exec) = 0;

  /// Sets every gradient to zero, including padding: before the first step, and in a step in which this rank has no
  /// sequences and gradients are not sharded.
  virtual void clear_gradients(const Exec& exec) = 0;

  /// If gradients are sharded: prepares a unit's place before each of its backward passes, by clearing what backward
  /// adds to, and padding; `without_sequences`: everything.
  virtual void clear_unit(const Exec& exec, int unit, bool without_sequences) = 0;

  /// Makes rows first .. first + sequences - 1 of `tokens` the model's micro-batch.
  virtual void load(const Exec& exec, const HostTokens& tokens, int first, int sequences) = 0;

  virtual void forward(const Exec& exec, model::Hooks& hooks) = 0;

  /// Head, loss and backward; `accumulates`: adds to the gradients of earlier micro-steps.
  virtual void backward(const Exec& exec, bool accumulates, model::Hooks& hooks) = 0;

  /// Announces, on a rank without sequences, what forward() and backward(), or validate(), would.
  virtual void walk(model::Hooks& hooks) = 0;
  virtual void walk_validation(model::Hooks& hooks) = 0;

  /// validate() adds the loss of the micro-batch to the validation's, which clear_validation() sets to zero.
  virtual void clear_validation(const Exec& exec) = 0;
  virtual void validate(const Exec& exec, model::Hooks& hooks) = 0;

  /// Continues `prompt` with the current weights. Allocates and waits.
  virtual std::vector<int> generate(const Exec& exec, const std::vector<int>& prompt,
                                    const model::GenerateOptions& options, model::Hooks& hooks) = 0;
};

/// What must be cleared before backward adds to it: spans of the gradients or, if those are sharded, spans of each
/// unit's place, including padding.
struct ClearLists {
  std::vector<kernels::ClearSpan> spans;
  std::vector<std::pair<std::size_t, std::size_t>> of_unit;  // [units] first and last + 1 in `spans`
};
ClearLists clear_lists(const model::ParamTable& table, const Sharing& sharing);

/// Declares room for clear_lists().spans: ClearSpan, as int32.
memory::TensorId declare_cleared(const model::ParamTable& table, const Sharing& sharing, memory::Layout& layout);

/// `cleared`: the room for that list. Keeps references to the other arguments.
/// Async  fences.
std::unique_ptr<Compute> make_compute(const Basis& basis, memory::TensorId cleared, const config::Settings& settings,
                                      const memory::Arena<kernels::Device>& arena);

}  // namespace tessera::train
