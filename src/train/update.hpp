/// The end of a step: the norm of all gradients, the clip factor, the learning rate, and AdamW over the elements that
/// this rank owns.
#pragma once

#include <cstdint>
#include <memory>

#include "config/settings.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "train/offload.hpp"
#include "train/plan.hpp"

namespace tessera::train {

class Update {
 public:
  virtual ~Update() = default;

  /// Enqueues the sum of squares of the gradients that this rank owns, after they have been summed over the ranks.
  virtual void norm(const kernels::Device& exec) = 0;

  /// Enqueues the rest, after the sum of squares has been summed over all gradients. A step whose gradients are not
  /// finite leaves weights and moments unchanged.
  virtual void apply(const kernels::Device& exec) = 0;

  /// Streams the offloaded state to the device and back, unchanged, and returns how fast; zeros if nothing is
  /// offloaded.
  /// Async  waits for the end.
  virtual LinkRate measure_link(const kernels::Device& exec) = 0;
};

/// Upper bounds, equal on every rank, for the arrays of norm() and apply(): partial sums, blocks of AdamW.
std::int64_t norm_blocks(const Sharing& sharing);
std::int64_t max_adamw_blocks(const model::ParamTable& table, const Sharing& sharing, bool is_offloaded);

/// For the rank that holds shard `shard`. Uploads the list of blocks to its place in the arena. Keeps references to
/// plan, settings and arena.
/// Async  fences.
std::unique_ptr<Update> make_update(const Plan& plan, const config::Settings& settings, int shard,
                                    const memory::Arena<kernels::Device>& arena);

}  // namespace tessera::train
