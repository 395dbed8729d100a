/// The model's part of a step: forward and backward of a micro-step, validation, text generation.
///
/// Async  everything is enqueued on the caller's instance; only generate() waits.
#pragma once

#include <utility>
#include <vector>

#include "config/settings.hpp"
#include "kernels/clear_spans.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "model/generate.hpp"
#include "model/hooks.hpp"
#include "model/transformer.hpp"
#include "optim/step_state.hpp"
#include "train/arrays.hpp"
#include "train/host_tokens.hpp"

namespace tessera::train {

/// What must be cleared before backward adds to it: spans of the gradients or, if those are sharded, spans of each
/// unit's place, including padding.
struct ClearLists {
  std::vector<kernels::ClearSpan> spans;
  std::vector<std::pair<std::size_t, std::size_t>> of_unit;  // [units] first and last + 1 in `spans`
};
ClearLists clear_lists(const model::ParamTable& table, const Sharing& sharing);

/// Declares room for clear_lists().spans: ClearSpan, as int32.
memory::TensorId declare_cleared(const model::ParamTable& table, const Sharing& sharing, memory::Layout& layout);

/// Scalar: of weights and activations; Grad: of gradients.
template <class Scalar, class Grad>
class Compute {
 public:
  using Exec = kernels::Device;
  using Real = Accum<Scalar>;

  /// `cleared`: declare_cleared(). Keeps references to the other arguments.
  /// Async  fences.
  Compute(const Basis& basis, memory::TensorId cleared, const config::Settings& settings,
          const memory::Arena<Exec>& arena);

  /// Clears the loss. Sets the factor on gradients to the loss scale / `tokens`, the tokens of the whole step over all
  /// ranks.
  void begin_step(const Exec& exec, double tokens) {
    optim::BeginStep<Exec, Real>{state_, grad_scale_, tokens}.launch(exec);
  }

  /// Before the first backward pass of a step: unless gradients are sharded, clears what backward adds to.
  void clear_sums(const Exec& exec) {
    if (!basis_.sharing.shards_gradients()) kernels::ClearSpans<Exec, Grad>{cleared_, grads_}.launch(exec);
  }

  /// Sets every gradient to zero, including padding: before the first step, and in a step in which this rank has no
  /// sequences and gradients are not sharded.
  void clear_gradients(const Exec& exec) { clear_bytes(exec, grads_); }

  /// If gradients are sharded: prepares a unit's place before each of its backward passes, by clearing what backward
  /// adds to, and padding; `without_sequences`: everything.
  void clear_unit(const Exec& exec, int unit, bool without_sequences);

  /// Makes rows first .. first + sequences - 1 of `tokens` the model's micro-batch.
  void load(const Exec& exec, const HostTokens& tokens, int first, int sequences) {
    load_batch(exec, transformer_, tokens, basis_.shape.T, first, sequences);
  }

  void forward(const Exec& exec, model::Hooks& hooks) { transformer_.forward(exec, model::Pass::forward, hooks); }

  /// Head, loss and backward; `accumulates`: adds to the gradients of earlier micro-steps.
  void backward(const Exec& exec, bool accumulates, model::Hooks& hooks);

  /// Announces, on a rank without sequences, what forward() and backward() would.
  void walk(model::Hooks& hooks) { transformer_.walk(hooks); }

  /// Adds the loss of the micro-batch to the validation's.
  void validate(const Exec& exec, model::Hooks& hooks);

  /// Continues `prompt` with the current weights. Allocates and waits.
  std::vector<int> generate(const Exec& exec, const std::vector<int>& prompt, const model::GenerateOptions& options,
                            model::Hooks& hooks);

 private:
  static model::UnitPlaces<Scalar, Grad> places_of(const Basis& basis, const memory::Arena<Exec>& arena);

  const Basis& basis_;
  const config::Settings& settings_;
  const kernels::Vector<Grad, Exec> grads_;
  const model::UnitPlaces<Scalar, Grad> places_;
  const optim::StateView<Exec> state_;
  const kernels::Value<Real, Exec> grad_scale_;
  const kernels::Value<double, Exec> validation_loss_;
  const ClearLists lists_;
  const kernels::Vector<const kernels::ClearSpan, Exec> cleared_;
  model::Transformer<Exec, Scalar, Grad> transformer_;
};

}  // namespace tessera::train
