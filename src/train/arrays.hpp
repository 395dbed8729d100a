/// The arrays of a training step, declared to the layout; views of them in the arena; operations on whole arrays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/settings.hpp"
#include "kernels/clear_spans.hpp"
#include "kernels/core/byte_copies.hpp"
#include "kernels/core/compat.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "memory/layout.hpp"
#include "model/activations.hpp"
#include "model/params.hpp"
#include "optim/optimizer.hpp"
#include "optim/step_state.hpp"
#include "parallel/collectives/collective.hpp"
#include "train/batch_plan.hpp"
#include "train/offload.hpp"
#include "train/sharing.hpp"

namespace tessera::train {

/// An array of the optimizer's besides the master weights.
struct MomentTensor {
  std::string group;  // of a checkpoint: "moments/m"
  memory::TensorId tensor;
};

/// Weights, gradients and optimizer state. W: elements of all units, each padded to equal parts for the ranks that
/// share it. O: elements of this rank's parts (parallel/strategies/ownership.hpp). Unsharded, both are
/// table.flat_count().
struct ArrayTensors {
  memory::TensorId params;  // [W], or [O] if parameters are sharded: dtype of the activations
  memory::TensorId master =
      memory::kAbsent;     // [O]  the part of the master weights that params lack (master_weights.hpp)
  memory::TensorId grads;  // [W], or [O] if gradients are sharded: precision.gradients
  memory::TensorId wire =
      memory::kAbsent;                // [W]  bf16: what crosses the network; kAbsent if gradients are sent as they are
  std::vector<MomentTensor> moments;  // [O] each: precision.moments
  std::vector<memory::TensorId> gathered;    // [places] of whole units' weights, if parameters are sharded
  std::vector<memory::TensorId> unit_grads;  // [places] of whole units' gradients, if gradients are sharded
  std::vector<memory::TensorId> unit_wires;  // [places] of the same on the network; empty if sent as they are
  StagedTensors staged;                      // those of params, master and moments kept on the host
  memory::TensorId copy = memory::kAbsent;   // what a checkpoint saves of them, for checkpoint.background
};
/// Lifetime of gradients in transit: a micro-step's last transfers may still run when the next one has begun.
memory::Lifetime transit_of(const BatchPlan& batch, const model::ParamTable& table);

/// The numbers of a step.
struct NumberTensors {
  memory::TensorId state;                    // optim::StepState, as fp64
  memory::TensorId grad_scale;               // one number
  memory::TensorId validation_loss;          // one number
  memory::TensorId norms = memory::kAbsent;  // [train.spike_window] fp64; only with train.spike_deviations
};
NumberTensors declare_numbers(Dtype weights, const config::Train& train, memory::Layout& layout);

/// Spans to clear before backward adds to them: of the gradients or, if those are sharded, of each unit's place,
/// padding included.
struct ClearLists {
  std::vector<kernels::ClearSpan> spans;
  std::vector<std::pair<std::size_t, std::size_t>> of_unit;  // [units] first and last + 1 in `spans`
};
ClearLists clear_lists(const model::ParamTable& table, const Sharing& sharing);

/// Declares room for clear_lists().spans: ClearSpan, as int32.
memory::TensorId declare_cleared(const model::ParamTable& table, const Sharing& sharing, memory::Layout& layout);

/// What the host writes for a step in progress, or reads from it, in the layout's host space.
struct HostTensors {
  memory::TensorId inputs, targets;            // [sequences,T] int32
  memory::TensorId scalars = memory::kAbsent;  // optim::StepState after the step, as fp64
};

/// Adds <label>.inputs, <label>.targets and, where asked for, <label>.scalars to the host space, for the whole run.
HostTensors declare_host_tensors(const std::string& label, std::int64_t sequences, std::int64_t T, bool has_scalars,
                                 memory::Layout& layout);

/// Common to the parts of a step: the model, its batch, the arrays, and how ranks share them.
struct Basis {
  model::Shape shape;
  model::ParamTable table;
  BatchPlan batch;
  optim::Traits optimizer;
  model::ActivationOptions options;
  Sharing sharing;
  model::ActivationTensors activations = {};
  ArrayTensors arrays = {};
  NumberTensors numbers = {};
};

/// Gradients are of type `gradients`; `has_wire`: they cross the network in bf16.
ArrayTensors declare_arrays(const Basis& basis, const config::Settings& settings, Dtype gradients, bool has_wire,
                            memory::Layout& layout);

/// Declares `copy` in host memory: room for what the rank with the most saves, every part on a multiple of kPartBytes.
void declare_copy(const Basis& basis, ArrayTensors& arrays, memory::Layout& layout);
inline constexpr std::int64_t kPartBytes = 16;

/// A tensor under a label; empty if it is absent.
inline parallel::Span span_of(const memory::Arena& arena, memory::TensorId id, const std::string& label) {
  if (id == memory::kAbsent) return {};
  return {label, arena.raw(id), arena.layout()[id].count, arena.layout()[id].dtype};
}

/// Sets every byte of an array on the device to zero.
/// Async  returns after enqueue on `exec`.
template <class Array>
void clear_bytes(const kernels::Device& exec, const Array& array) {
  kernels::clear_bytes(exec, array.data(), array.size() * sizeof(*array.data()));
}

/// Copies `from` to an array of the same length on the device.
///
/// Async   fences.
/// Throws  std::logic_error if the lengths differ.
template <class Number, class Array>
void upload(const std::vector<Number>& from, const Array& to) {
  static_assert(std::is_same_v<Number, typename Array::value_type>);
  if (from.size() != to.size()) throw std::logic_error("upload: an array of another length");
  kernels::upload_bytes(from.data(), to.data(), from.size() * sizeof(Number));
}

/// Copies a list of small structs to its place in the arena, where it is declared as integers.
/// Async  fences.
template <class Item>
kernels::Vector<const Item, kernels::Device> upload_list(const std::vector<Item>& items, const memory::Arena& arena,
                                                         memory::TensorId id) {
  const kernels::Vector<Item, kernels::Device> target(reinterpret_cast<Item*>(arena.data<std::int32_t>(id)),
                                                      items.size());
  upload(items, target);
  return target;
}

/// [sequences,T] each; pinned if the model computes on a GPU.
struct HostTokens {
  int* inputs;
  int* targets;

  /// Fills rows 0 .. sequences - 1, row i from the T + 1 tokens of `next(i)`: each token's target is the next one.
  template <class Next>
  void fill(int sequences, const Next& next) const {
    for (int i = 0; i < sequences; ++i) {
      const std::span<const std::int32_t> window = next(i);
      const std::size_t T = window.size() - 1;
      std::copy_n(window.begin(), T, inputs + static_cast<std::size_t>(i) * T);
      std::copy_n(window.begin() + 1, T, targets + static_cast<std::size_t>(i) * T);
    }
  }
};

inline HostTokens tokens_in(const memory::Arena& arena, const HostTensors& tensors) {
  return {arena.data<std::int32_t>(tensors.inputs), arena.data<std::int32_t>(tensors.targets)};
}

using HostScalars = Kokkos::View<optim::StepState, kernels::PinnedSpace, kernels::Unmanaged>;
inline HostScalars scalars_in(const memory::Arena& arena, const HostTensors& tensors) {
  return HostScalars(reinterpret_cast<optim::StepState*>(arena.data<double>(tensors.scalars)));
}

/// Enqueues copies of rows first .. first + sequences - 1, T tokens each, into the batch of `transformer`.
template <class Exec, class Transformer>
void load_batch(const Exec& exec, Transformer& transformer, const HostTokens& tokens, std::int64_t T, int first,
                int sequences) {
  transformer.set_batch(sequences, static_cast<int>(T));
  const auto copy = [&](const kernels::Vector<int, Exec>& to, const int* rows) {
    kernels::send_bytes(exec, rows + first * T, to.data(), static_cast<std::size_t>(sequences * T) * sizeof(int));
  };
  copy(transformer.inputs(), tokens.inputs);
  copy(transformer.targets(), tokens.targets);
}

}  // namespace tessera::train
