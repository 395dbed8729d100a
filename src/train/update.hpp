/// The optimizer's arithmetic: the norm of all gradients, and the update of this rank's elements.
/// optimizer_step.hpp decides when it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "config/settings.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/update_blocks.hpp"
#include "memory/arena.hpp"
#include "optim/step_state.hpp"
#include "parallel/strategies/ownership.hpp"
#include "train/arrays.hpp"

namespace tessera::train {

/// The update's tensors, large enough for every rank.
struct UpdateTensors {
  memory::TensorId blocks;        // UpdateBlock, as int32
  memory::TensorId norm_partial;  // [blocks] fp64: sums of squares
  bool has_squares;               // norm_partial has room for the transfers' partial sums
};
UpdateTensors declare_update(const Basis& basis, bool has_squares, memory::Layout& layout);

class Update {
 public:
  using Exec = kernels::Device;

  /// For the rank that holds shard `shard`. Uploads the list of blocks to its place in the arena. Keeps references to
  /// its arguments.
  /// Async  fences.
  Update(const Basis& basis, const UpdateTensors& tensors, const config::Settings& settings, int shard,
         const memory::Arena& arena);

  /// Enqueues this rank's share of the squared norm of all gradients, once summed over the ranks: from the gradients it
  /// owns or, if transfers left partial sums (Strategy::squares), from the first `squares` of norm2.partial.
  void norm(const Exec& exec, std::optional<std::int64_t> squares) const;

  /// Enqueues the optimizer over a chunk of owned elements in slot `slot` (offload.hpp). Without offload, chunk 0 is
  /// all of them and slot 0 the arrays themselves.
  void launch(const Exec& exec, std::size_t chunk, int slot) const;

 private:
  using BlockRange = std::pair<std::size_t, std::size_t>;

  template <class Number>
  kernels::Vector<Number, Exec> array_in(memory::TensorId home, int slot) const;

  const Basis& basis_;
  const config::Settings& settings_;
  const memory::Arena& arena_;
  const std::vector<parallel::Range> owned_gradients_;
  const kernels::Vector<double, Exec> norm_partial_;
  const optim::StateView state_;
  kernels::Vector<const kernels::UpdateBlock, Exec> blocks_;
  std::vector<std::vector<BlockRange>> launches_;  // [chunks] in blocks_: one, or one per tensor without train.fused
};

}  // namespace tessera::train
