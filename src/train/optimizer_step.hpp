/// The optimizer's part of a step: prepares learning rate and clip factor, and decides when the update runs: at the end
/// of the step or, with offloaded state, deferred to the next step's forward pass, unit by unit in its order. A step
/// makes the same calls either way:
///
///   begin                    starts what the step before has deferred
///     await(unit)            before the unit's weights are read
///   join                     before the first gradient is overwritten
///   begin_last_backward
///     end_backward(unit)     after each unit of every backward pass
///   end                      the gradients' norm is complete: returns whether to update now
///
/// Copies to the host and from it run on under backward, as far as the slots on the device allow, until settle(); with
/// train.graph, they end with join().
///
/// Where nothing but a unit's gradients decides its update (one rank, no clipping, no loss scale), the last half of the
/// state is updated under the last backward pass. If the norm then turns out not to be finite, that half has been
/// updated all the same, and the step counts as skipped.
///
/// A graph thus contains all of its own work: the update that opens it is that of the step before. It reads from device
/// memory whether there is one (UpdateScalars::skip).
#pragma once

#include <functional>
#include <optional>

#include "config/settings.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "optim/step_state.hpp"
#include "train/arrays.hpp"
#include "train/offload.hpp"

namespace tessera::train {

/// Whether the last half of offloaded state is updated under backward.
bool updates_early(const Basis& basis, const config::Optimizer& optimizer);

class OptimizerStep {
 public:
  using Exec = kernels::Device;

  /// `update_chunk` enqueues the optimizer over a chunk of offloaded state. Keeps references to settings and arena.
  OptimizerStep(const Basis& basis, const config::Settings& settings, const memory::Arena<Exec>& arena,
                Offload::UpdateChunk update_chunk);

  /// Whether updates are deferred at all. If not, only end() does anything.
  bool is_deferred() const { return offload_.has_value(); }

  void begin(const Exec& exec);
  /// What is enqueued on `exec` after this sees the updated weights of a unit, if they are this rank's.
  void await(const Exec& exec, int unit) {
    if (offload_) offload_->await(exec, unit);
  }
  /// What is enqueued on `exec` after this sees all of them, and may overwrite gradients.
  void join(const Exec& exec) {
    if (offload_) offload_->join(exec);
  }
  void begin_last_backward(const Exec& exec);
  /// What is enqueued on `exec` so far has completed the gradients of a unit, and no longer reads its weights.
  void end_backward(const Exec& exec, int unit) {
    if (offload_) offload_->release(exec, unit);
  }
  /// Enqueues clip factor, learning rate and what else changes with the step, which the optimizer reads. Returns
  /// whether it is to run now, because updates are not deferred. A step whose gradients are not finite leaves weights
  /// and moments unchanged.
  bool end(const Exec& exec);

  /// A step has been started, launch by launch or as a graph, which calls none of the above.
  void note_step() { is_due_ = is_deferred(); }
  /// Does what is due, after which anything may read and write weights and state.
  /// Async  waits for the end, if anything is due.
  void settle(const Exec& exec);

  /// Streams the offloaded state to the device and back, unchanged, and returns how fast; zeros if nothing is
  /// offloaded. Call settle() before.
  /// Async  waits for the end.
  LinkRate measure_link(const Exec& exec) { return offload_ ? offload_->measure(exec) : LinkRate{}; }

 private:
  void prepare(const Exec& exec) const;
  void start(const Exec& exec, Offload::Part part);

  const config::Settings& settings_;
  const optim::StateView<Exec> state_;
  const Offload::UpdateChunk update_chunk_;
  const bool scales_loss_;
  const bool is_early_;  // Part::backward has chunks
  std::optional<Offload> offload_;
  bool is_due_ = false;  // the update of the last step that was started
};

}  // namespace tessera::train
