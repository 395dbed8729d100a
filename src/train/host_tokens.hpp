/// Rows of token ids on the host, and their way into a model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/compat.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "memory/layout.hpp"
#include "optim/step_state.hpp"

namespace tessera::train {

/// What the host writes for a step in progress, or reads from it, in the layout's host space.
struct HostTensors {
  memory::TensorId inputs, targets;  // [sequences,T] int32
  memory::TensorId scalars;          // optim::StepState after the step, as fp64; kAbsent: none
};

/// Adds <label>.inputs, <label>.targets and, where asked for, <label>.scalars to the host space, for the whole run.
inline HostTensors declare_host_tensors(const std::string& label, std::int64_t sequences, std::int64_t T,
                                        bool has_scalars, memory::Layout& layout) {
  const auto add = [&](const char* name, std::vector<std::int64_t> shape, Dtype dtype) {
    return layout.add(label + name, std::move(shape), dtype, memory::Category::data, memory::Lifetime::whole_run(),
                      memory::Space::host);
  };
  HostTensors t;
  t.inputs = add(".inputs", {sequences, T}, Dtype::int32);
  t.targets = add(".targets", {sequences, T}, Dtype::int32);
  t.scalars = has_scalars ? add(".scalars", {sizeof(optim::StepState) / 8}, Dtype::fp64) : memory::kAbsent;
  return t;
}

/// [sequences,T] each; pinned if the model computes on a GPU.
struct HostTokens {
  int* inputs;
  int* targets;

  /// Row i from a window of T + 1 tokens: each one's target is its successor.
  void set_row(int i, std::span<const std::int32_t> window) const {
    const std::size_t T = window.size() - 1;
    std::copy_n(window.begin(), T, inputs + static_cast<std::size_t>(i) * T);
    std::copy_n(window.begin() + 1, T, targets + static_cast<std::size_t>(i) * T);
  }
};

inline HostTokens tokens_in(const memory::Arena<kernels::Device>& arena, const HostTensors& tensors) {
  return {arena.data<std::int32_t>(tensors.inputs), arena.data<std::int32_t>(tensors.targets)};
}

using HostScalars = Kokkos::View<optim::StepState, kernels::PinnedSpace, kernels::Unmanaged>;
inline HostScalars scalars_in(const memory::Arena<kernels::Device>& arena, const HostTensors& tensors) {
  return HostScalars(reinterpret_cast<optim::StepState*>(arena.data<double>(tensors.scalars)));
}

/// Enqueues that rows first .. first + sequences - 1, of T tokens each, become the batch of `transformer`.
template <class Exec, class Transformer>
void load_batch(const Exec& exec, Transformer& transformer, const HostTokens& tokens, std::int64_t T, int first,
                int sequences) {
  transformer.set_batch(sequences, static_cast<int>(T));
  const auto copy = [&](const kernels::Vector<int, Exec>& to, const int* rows) {
    using Pinned = Kokkos::View<const int*, kernels::PinnedSpace, kernels::Unmanaged>;
    Kokkos::deep_copy(exec, to, Pinned(rows + first * T, static_cast<std::size_t>(sequences * T)));
  };
  copy(transformer.inputs(), tokens.inputs);
  copy(transformer.targets(), tokens.targets);
}

}  // namespace tessera::train
