/// The end of a step: the norm of all gradients, the clip factor, the learning rate, and AdamW over the elements that
/// this rank owns.
///
/// With offloaded state AdamW is deferred: it runs under the next step's forward pass, unit by unit in its order.
///
///   begin_early            before a step's last backward pass
///     early(unit)          after each unit of it
///   norm  apply            the end of the step
///   begin                  of the next one: starts what is deferred
///     await(unit)          before the unit's weights are read
///   join                   before the first gradient is overwritten
///
/// Copies to the host and from it run on under backward, as far as the slots on the device allow, until settle(); with
/// train.graph, they end with join().
///
/// Where nothing but a unit's gradients decides its update (one rank, no clipping, no loss scale), the last half of the
/// state is updated under the last backward pass: early(). If the norm then turns out not to be finite, that half has been
/// updated all the same, and the step counts as skipped.
///
/// A graph thus contains all of its own work: the update that opens it is that of the step before. It reads from device
/// memory whether there is one (drop()).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "config/settings.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "train/arrays.hpp"
#include "train/offload.hpp"

namespace tessera::train {

class Update {
 public:
  virtual ~Update() = default;

  /// Enqueues this rank's share of the square norm of all gradients, which are sums over the ranks by then: a pass over
  /// those that it owns, or the total of the first `squares` partial sums of norm2.partial, where transfers have left
  /// them (Strategy::squares).
  virtual void norm(const kernels::Device& exec, std::optional<std::int64_t> squares) = 0;

  /// Enqueues the rest, after the sum of squares has been summed over all gradients; if is_deferred(), all but AdamW. A
  /// step whose gradients are not finite leaves weights and moments unchanged.
  virtual void apply(const kernels::Device& exec) = 0;

  virtual bool is_deferred() const = 0;

  // Of a deferred update; else nothing.

  /// Enqueues what begins early, if anything may.
  virtual void begin_early(const kernels::Device& exec) = 0;
  /// What is enqueued on `exec` so far has completed the gradients of a unit, and no longer reads its weights. Call it
  /// after each unit of every backward pass.
  virtual void early(const kernels::Device& exec, int unit) = 0;
  /// Enqueues AdamW by the latest apply(), but for what it was early for, on streams of its own.
  virtual void begin(const kernels::Device& exec) = 0;
  /// What is enqueued on `exec` after this sees the updated weights of a unit, if they are this rank's.
  virtual void await(const kernels::Device& exec, int unit) = 0;
  /// What is enqueued on `exec` after this sees all of them, and may overwrite gradients.
  virtual void join(const kernels::Device& exec) = 0;
  /// begin() and join(), after which what is enqueued on `exec` may read and write the state on the host, until the next
  /// begin() or begin_early().
  virtual void settle(const kernels::Device& exec) = 0;
  /// Enqueues that the next begin() changes nothing: its update is done.
  virtual void drop(const kernels::Device& exec) = 0;

  /// Streams the offloaded state to the device and back, unchanged, and returns how fast; zeros if nothing is
  /// offloaded.
  /// Async  waits for the end.
  virtual LinkRate measure_link(const kernels::Device& exec) = 0;
};

/// What it declares to the layout: room enough for every rank.
struct UpdateTensors {
  memory::TensorId blocks;        // AdamwBlock, as int32
  memory::TensorId norm_partial;  // [blocks] fp64: sums of squares
  bool has_squares;               // norm_partial has room for those that transfers leave
};
UpdateTensors declare_update(const Basis& basis, bool has_squares, memory::Layout& layout);

/// Whether the last half of offloaded state is updated under backward: nothing but a unit's own gradients decides its
/// update.
bool updates_early(const Basis& basis, const config::Optimizer& optimizer);

/// For the rank that holds shard `shard`. Uploads the list of blocks to its place in the arena. Keeps references to
/// basis, settings and arena.
/// Async  fences.
std::unique_ptr<Update> make_update(const Basis& basis, const UpdateTensors& tensors, const config::Settings& settings,
                                    int shard, const memory::Arena<kernels::Device>& arena);

}  // namespace tessera::train
