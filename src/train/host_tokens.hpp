/// Rows of token ids on the host, and their way into a model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/core/compat.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::train {

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
