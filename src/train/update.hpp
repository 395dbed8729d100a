/// The optimizer's arithmetic, by types of arrays: the norm of all gradients, and the update of this rank's elements.
/// optimizer_step.hpp decides when it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "config/settings.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/master_weights.hpp"
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

/// Types as in kernels/weight_update.hpp.
template <class Scalar, class Grad, class Moment, bool kHasMaster>
class Update {
 public:
  using Exec = kernels::Device;

  /// For the rank that holds shard `shard`. Uploads the list of blocks to its place in the arena. Keeps a reference to
  /// the settings.
  /// Async  fences.
  Update(const Basis& basis, const UpdateTensors& tensors, const config::Settings& settings, int shard,
         const memory::Arena<Exec>& arena);

  /// Enqueues this rank's share of the squared norm of all gradients, once summed over the ranks: from the gradients it
  /// owns or, if transfers left partial sums (Strategy::squares), from the first `squares` of norm2.partial.
  void norm(const Exec& exec, std::optional<std::int64_t> squares) const;

  /// Enqueues the optimizer over a chunk of owned elements in slot `slot` (offload.hpp). Without offload, chunk 0 is
  /// all of them and slot 0 the arrays themselves.
  void launch(const Exec& exec, std::size_t chunk, int slot) const;

 private:
  using Real = Accum<Scalar>;
  using Weights = kernels::MasterWeights<Exec, Scalar>;
  using BlockRange = std::pair<std::size_t, std::size_t>;
  struct Arrays {
    std::vector<kernels::Vector<Moment, Exec>> moments;
    kernels::Vector<kernels::MasterWord<Scalar>, Exec> master;
    kernels::Vector<Scalar, Exec> working;
  };

  template <class Rule>
  void launch_by(const Exec& exec, std::size_t chunk, const Arrays& arrays) const;
  static Arrays arrays_in(const ArrayTensors& t, const memory::Arena<Exec>& arena, int slot);

  const config::Settings& settings_;
  const kernels::Vector<const Grad, Exec> grads_;
  const std::vector<parallel::Range> owned_gradients_;
  const double norm_share_;  // 1 / ranks that hold the same part: all ranks' shares are added up
  const kernels::Vector<double, Exec> norm_partial_;
  const optim::StateView state_;
  std::vector<Arrays> slots_;
  kernels::Vector<const kernels::UpdateBlock, Exec> blocks_;
  std::vector<std::vector<BlockRange>> launches_;  // [chunks] in blocks_: one, or one per tensor without train.fused
};

}  // namespace tessera::train
