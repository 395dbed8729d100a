/// State in host memory, updated on the device chunk by chunk: while one chunk is updated, others are copied in and
/// out, on two copy streams; the update itself runs on a third. Chunks take turns in a ring of slots on the device.
///
///   start(exec, part, ...)    follows what is enqueued on exec
///     await(exec, unit)       what is enqueued on exec after this reads the unit's updated weights
///     release(exec, unit)     what is enqueued on exec so far was the last to write gradients of units from this on
///   join(exec)                await() for all units; gradients may be overwritten from here on
///
/// Part::forward updates units in forward order, so a forward pass can follow close behind; on host spaces a chunk is
/// updated only when awaited. Part::backward follows a backward pass in the opposite order, as units are released.
///
/// With Copies::run_on, join() waits for the updates alone: the last copies out, and the next part's first copies in,
/// overlap later work. The arrays on the host stay in use, not to be read or written by others, until a part with
/// Copies::joined has been joined.
///
/// Order  the update goes block by block: bitwise equal to a run without offload. A chunk is copied in once its slot
///        is empty. The host then has its latest state: copies out run in order, and there are no more slots than
///        chunks, so the chunk was copied out no later than the slot's previous occupant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/core/side_stream.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "memory/layout.hpp"
#include "parallel/strategies/ownership.hpp"

namespace tessera::train {

/// Elements first .. first + count - 1 of the owned state: the unit of streaming.
struct Chunk {
  std::int64_t first, count;
};

/// Elements of a chunk: enough for the link's full rate, yet several chunks even in small models. The number of
/// chunks, and all of them in order.
std::int64_t chunk_elements(std::int64_t owned_count);
std::int64_t chunk_count(std::int64_t owned_count);
std::vector<Chunk> chunks_of(std::int64_t owned_count);

/// Slots on the device for chunks of a rank's state: parallel.offload_slots; its default is capped at the chunk count.
/// Throws  Failure(Exit::usage) if a deck sets more slots than there are chunks.
int chunk_slots(std::int64_t asked, std::int64_t owned_count);

/// An array that is kept on the host, and where its chunks lie on the device.
struct StagedArray {
  memory::TensorId home;
  memory::TensorId slots;  // [chunk_slots, chunk_elements()]
};

/// All arrays on the host. `slots`: chunks of each that fit on the device; 0 if there are no arrays.
struct StagedTensors {
  std::vector<StagedArray> arrays;
  int slots = 0;

  bool is_empty() const { return arrays.empty(); }
  /// Where an array's chunks lie on the device; kAbsent if it is not kept on the host.
  memory::TensorId slots_of(memory::TensorId home) const {
    for (const StagedArray& array : arrays) {
      if (array.home == home) return array.slots;
    }
    return memory::kAbsent;
  }
  bool holds(memory::TensorId home) const { return slots_of(home) != memory::kAbsent; }
};

/// Declares slots for those `arrays`, of `owned_count` elements each, that the layout places on the host; some may be
/// kAbsent. `asked`: parallel.offload_slots.
StagedTensors declare_staged(const std::vector<memory::TensorId>& arrays, std::int64_t asked, std::int64_t owned_count,
                             memory::Layout& layout);

/// What the link moved in both directions at once.
struct LinkRate {
  double bytes = 0;    // in each direction
  double seconds = 0;  // in total
};

/// Streams arrays of the arena's host space through slots on the device.
class Offload {
 public:
  using Exec = kernels::Device;

  /// Enqueues the in-place update of chunk `chunk`, which is in slot `slot` of each array.
  using UpdateChunk = std::function<void(const Exec&, std::size_t chunk, int slot)>;

  enum class Part { forward, backward };  // together each chunk once
  enum class Copies { joined, run_on };   // joined: all run between start() and join()

  /// `staged` has at least one array. `has_weights`: one is the working copy of the weights. `has_backward`:
  /// Part::backward is the last half of the chunks; else it is empty. Keeps a reference to the arena.
  Offload(const StagedTensors& staged, const parallel::Ownership& ownership, const memory::Arena& arena,
          bool has_weights, bool has_backward);
  ~Offload();  // waits for the copies in progress
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  /// Starts streaming a part. The previous part must have been joined; if its copies run on, this must be the other
  /// part, unless that is empty.
  /// Async   returns after enqueue on its own streams. A graph captures start() and join() together, with
  ///         Copies::joined for this part and the previous one.
  /// Throws  std::logic_error if parts follow each other in any other way.
  void start(const Exec& exec, Part part, Copies copies, UpdateChunk update);

  /// Work enqueued on `exec` after this sees the unit's weights as updated by Part::forward, if that is under way.
  void await(const Exec& exec, int unit);

  /// Call after each unit of a backward pass. Lets Part::backward, if under way, update the units from this one on;
  /// otherwise enqueues some of the copies that run on.
  void release(const Exec& exec, int unit);

  /// Completes the part: work enqueued on `exec` after this sees the updates of all its chunks.
  void join(const Exec& exec);

  /// Streams the whole state to the device and back, unchanged. No part or copy may be under way.
  /// Async  waits for the end.
  LinkRate measure(const Exec& exec);

  const std::vector<Chunk>& chunks() const { return chunks_; }

 private:
  std::size_t number_of(std::size_t place) const;
  std::size_t chunk_at(std::size_t place) const;
  int slot_of(std::size_t place) const { return static_cast<int>(place % slots_); }
  void advance(std::size_t end);
  void copy_in(std::size_t end);
  void copy_out(std::size_t end);
  void mark_done(const Exec& exec, std::size_t place);
  void copy(const Exec& exec, const StagedArray& array, std::size_t place, bool is_in) const;

  const memory::Arena& arena_;
  const std::vector<StagedArray> arrays_;
  const std::size_t slots_;
  const bool has_weights_;  // a unit is up to date once it has been copied out
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> begins_, ends_;  // [units] the first chunk that begins in it; the last that does + 1
  std::size_t middle_;                      // chunks of Part::forward: those before it
  std::size_t most_held_;                   // most updated chunks whose copies out are not enqueued
  kernels::SideStream in_, out_;
  kernels::SideStream update_stream_{kernels::StreamPriority::raised};  // copies out wait for them
  kernels::StreamOrder order_;
  kernels::StreamOrder filled_, updated_, emptied_;  // [slots]
  UpdateChunk update_;
  Part part_ = Part::forward;
  Copies copies_ = Copies::joined;
  bool is_under_way_ = false;

  // Places: chunks in streaming order, counted from the latest part that followed Copies::joined. Places before in_end_
  // have their copies in enqueued; before updated_end_, their updates; before out_end_ <= updated_end_, copies out.
  std::size_t in_end_ = 0, updated_end_ = 0, out_end_ = 0;
  std::size_t begin_ = 0, end_ = 0;  // of the part under way, or of the latest
  std::size_t origin_ = 0;           // number_of(0)
};

}  // namespace tessera::train
