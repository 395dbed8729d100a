/// The optimizer's part of a step: prepares learning rate and clip factor, and decides when the update runs: at the end
/// of the step or, with offloaded state, deferred to the next step's forward pass, unit by unit in its order. A step
/// makes the same calls either way:
///
///   begin                    starts the update that the previous step deferred
///     await(unit)            before the unit's weights are read
///   join                     before the first gradient is overwritten
///   begin_last_backward
///     end_backward(unit)     after each unit of every backward pass
///   norm                     once gradients are summed over the ranks
///   end                      the norm is complete
///
/// If a unit's update depends on its gradients alone (one rank, no clipping, no loss scale, and a bad step stops the
/// run), the last half of the state is updated under the last backward pass. If the norm then proves not finite, that
/// half has been updated nevertheless, and the step counts as skipped.
///
/// With graphs, each deferred update is captured at the start of the next step's graph, which reads from device memory
/// whether one is due (UpdateScalars::skip).
#pragma once

#include <optional>

#include "config/settings.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "optim/step_state.hpp"
#include "train/arrays.hpp"
#include "train/offload.hpp"
#include "train/update.hpp"

namespace tessera::train {

/// Whether the last half of offloaded state is updated under backward.
bool updates_early(const Basis& basis, const config::Settings& settings);

class OptimizerStep {
 public:
  using Exec = kernels::Device;

  /// As Update.
  OptimizerStep(const Basis& basis, const UpdateTensors& tensors, const config::Settings& settings, int shard,
                const memory::Arena& arena);

  /// Whether updates are deferred at all. If not, only norm() and end() do anything.
  bool is_deferred() const { return offload_.has_value(); }

  void begin(const Exec& exec);
  /// Work enqueued on `exec` after this sees the updated weights of this rank's part of a unit.
  void await(const Exec& exec, int unit) {
    if (offload_) offload_->await(exec, unit);
  }
  /// Work enqueued on `exec` after this sees all updated weights, and may overwrite gradients.
  void join(const Exec& exec) {
    if (offload_) offload_->join(exec);
  }
  void begin_last_backward(const Exec& exec);
  /// Call once a unit's backward is enqueued: its gradients are final, and its weights are not read again.
  void end_backward(const Exec& exec, int unit) {
    if (offload_) offload_->release(exec, unit);
  }
  void norm(const Exec& exec, std::optional<std::int64_t> squares) const { update_.norm(exec, squares); }  // as Update
  /// Enqueues the optimizer's scalars for this step (clip factor, learning rate) and, unless updates are deferred, the
  /// optimizer. If gradients are not finite, the step leaves weights and moments unchanged.
  void end(const Exec& exec);

  /// Call after starting a step, also from a graph, which calls none of the above.
  void note_step() { is_due_ = is_deferred(); }
  /// Runs the update that is due, if any; then anything may read and write weights and state.
  /// Async  waits for the end, if an update is due.
  void settle(const Exec& exec);

  /// Measures the link by streaming the offloaded state to the device and back, unchanged; zeros if nothing is
  /// offloaded. Call settle() first.
  /// Async  waits for the end.
  LinkRate measure_link(const Exec& exec) { return offload_ ? offload_->measure(exec) : LinkRate{}; }

 private:
  /// A graph must contain all copies that its updates need.
  Offload::Copies copies() const { return settings_.train.graph ? Offload::Copies::joined : Offload::Copies::run_on; }
  void prepare(const Exec& exec) const;
  void start(const Exec& exec, Offload::Part part, Offload::Copies copies);

  const config::Settings& settings_;
  const optim::StateView state_;
  const kernels::Vector<double, Exec> norms_;  // of PrepareUpdate
  const Update update_;
  const bool scales_loss_;
  const bool is_early_;  // Part::backward has chunks
  std::optional<Offload> offload_;
  bool is_due_ = false;  // the last started step's update
};

}  // namespace tessera::train
