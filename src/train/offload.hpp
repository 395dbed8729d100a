/// State in host memory, updated on the device chunk by chunk: while one chunk is updated, the next is copied in and the
/// previous one is copied out, on two copy streams; the update itself runs on a third.
///
///   start(exec, part, update)   follows what is enqueued on exec
///     await(exec, unit)         what is enqueued on exec after this reads the unit's updated weights
///     release(exec, unit)       what is enqueued on exec so far was the last to write gradients of units from this on
///   join(exec)                  the same as await(), of everything; gradients may be overwritten from here on
///
/// Part::forward goes in the order of the units, which is that of a forward pass, so a forward pass can run behind the
/// update; on host spaces a chunk is updated when it is waited for, not before. Part::backward goes in the opposite order
/// behind a backward pass, as far as that releases units.
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

  enum class Part { forward, backward };  // together each chunk once

  /// For the state of `plan`, which must have some of it on the host. `has_backward`: Part::backward is the last half of
  /// the chunks; else it is empty. Keeps references to both.
  Offload(const Plan& plan, const memory::Arena<Exec>& arena, bool has_backward);

  /// Begins to stream a part. The previous one must have been joined.
  /// Async  returns after enqueue on streams of its own. In a graph, start() and join() lie in the same capture.
  void start(const Exec& exec, Part part, UpdateChunk update);

  /// What is enqueued on `exec` after this sees a unit's weights as updated by Part::forward, if that is under way.
  void await(const Exec& exec, int unit);

  /// Lets Part::backward, if that is under way, update the units from this one on.
  void release(const Exec& exec, int unit);

  /// The same for all units and the whole state.
  void join(const Exec& exec);

  /// Streams the whole state to the device and back, unchanged.
  /// Async  waits for the end.
  LinkRate measure(const Exec& exec);

  const std::vector<Chunk>& chunks() const { return chunks_; }

 private:
  std::size_t chunk_at(std::size_t place) const;
  void advance(std::size_t end);
  void copy(const Exec& exec, const StagedArray& array, const Chunk& chunk, int slot, bool is_in) const;

  const memory::Arena<Exec>& arena_;
  const std::vector<StagedArray>& arrays_;
  const bool has_weights_;  // among the arrays: a unit is up to date once it has been copied out
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> begins_, ends_;  // [units] the first chunk that begins in it; the last that does + 1
  std::size_t middle_;                      // chunks of Part::forward: those before it
  kernels::SideStream<Exec> in_, update_stream_, out_;
  kernels::StreamOrder<Exec> order_;
  UpdateChunk update_;
  Part part_ = Part::forward;
  std::size_t next_ = 0, count_ = 0;  // chunks of part_ that are enqueued, and all
  bool is_under_way_ = false;
};

}  // namespace tessera::train
