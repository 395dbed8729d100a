/// State in host memory, updated on the device chunk by chunk: while one chunk is updated, the next is copied in and the
/// previous one is copied out, on two copy streams; the update itself runs on a third.
///
///   start(exec, update)         follows what is enqueued on exec
///     await(exec, unit)         what is enqueued on exec after this reads the unit's updated weights
///   join(exec)                  the same of everything; gradients may be overwritten from here on
///
/// Chunks go in the order of the units, which is that of a forward pass, so a forward pass can run behind the update.
/// On host spaces a chunk is updated when it is waited for, not before.
///
/// Order  the update is that of update.hpp, block by block: bitwise equal to a run without offload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/core/side_stream.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "train/plan.hpp"

namespace tessera::train {

/// Elements first .. first + count - 1 of the owned state, which are on the device together.
struct Chunk {
  std::int64_t first, count;
};

/// Chunks on the device at a time: one copied in, one updated, one copied out.
inline constexpr int kChunkSlots = 3;

/// Elements of a chunk: enough for the link's full rate, and several chunks even in small models.
std::int64_t chunk_elements(std::int64_t owned_count);
std::vector<Chunk> chunks_of(std::int64_t owned_count);

/// What the link moved in both directions at once.
struct LinkRate {
  double bytes = 0;    // in each direction
  double seconds = 0;  // in total
};

/// Streams arrays of the arena's host space through slots on the device.
class Offload {
 public:
  using Exec = kernels::Device;

  /// Enqueues on an instance the update of chunk number `chunk` in place: in tensor plan.state.staged[array].slots[slot]
  /// for each of its arrays.
  using UpdateChunk = std::function<void(const Exec&, std::size_t chunk, int slot)>;

  /// For the state of `plan`, which must have some of it on the host. Keeps references to both.
  Offload(const Plan& plan, const memory::Arena<Exec>& arena);

  /// Begins to stream every chunk once. The previous time must have been joined.
  /// Async  returns after enqueue on streams of its own. In a graph, start() and join() lie in the same capture.
  void start(const Exec& exec, UpdateChunk update);

  /// What is enqueued on `exec` after this sees the updated weights of a unit, and on the host those of the units
  /// before it. Nothing to do if everything has been joined.
  void await(const Exec& exec, int unit);

  /// The same for all units and the whole state.
  void join(const Exec& exec);

  /// Streams the whole state to the device and back, unchanged.
  /// Async  waits for the end.
  LinkRate measure(const Exec& exec);

  const std::vector<Chunk>& chunks() const { return chunks_; }

 private:
  void advance(std::size_t end);
  void copy(const Exec& exec, const StagedArray& array, const Chunk& chunk, int slot, bool is_in) const;

  const memory::Arena<Exec>& arena_;
  const std::vector<StagedArray>& arrays_;
  const bool has_weights_;  // among the arrays: a unit is up to date once it has been copied out
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> ends_;  // [units] chunks up to the end of each
  kernels::SideStream<Exec> in_, update_stream_, out_;
  kernels::StreamOrder<Exec> order_;
  UpdateChunk update_;
  std::size_t next_ = 0;  // chunk that has not been enqueued
  bool is_under_way_ = false;
};

}  // namespace tessera::train
