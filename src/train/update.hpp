/// The end of a step: the norm of all gradients, the clip factor, the learning rate, and AdamW over the elements that
/// this rank owns.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "config/settings.hpp"
#include "kernels/adamw.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "parallel/ownership.hpp"
#include "train/plan.hpp"

namespace tessera::train {

class Update {
 public:
  virtual ~Update() = default;

  /// Enqueues all of it. The gradients of the owned elements are sums over the ranks by then. A step whose gradients
  /// are not finite leaves weights and moments as they are.
  virtual void enqueue(const kernels::Device& exec) = 0;
};

/// What AdamW updates: the part of every tensor that lies in the `owned` ranges, with decay where the tensor has one.
/// Weights and gradients lie at their place in the flat index space, the optimizer's state range behind range.
std::vector<kernels::AdamwSpan> adamw_spans(const model::ParamTable& table, std::span<const parallel::Range> owned);

/// Uploads the list of blocks to its place in the arena. Keeps references to plan, settings and arena. Fences.
std::unique_ptr<Update> make_update(const Plan& plan, const config::Settings& settings,
                                    const memory::Arena<kernels::Device>& arena);

}  // namespace tessera::train
