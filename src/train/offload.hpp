/// The optimizer's state in host memory, updated on the device chunk by chunk: while one chunk is updated, the next is
/// copied in and the previous one is copied out, on two copy streams.
///
/// Order  the update is that of update.hpp, block by block: bitwise equal to a run without offload.
#pragma once

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

  /// For the state of `plan`, which must have some of it on the host. Keeps references to both.
  Offload(const Plan& plan, const memory::Arena<Exec>& arena);

  /// Calls `update(chunk, slot)` for each chunk in turn, to enqueue on `exec` its update in place: in tensor
  /// plan.state.staged[array][slot], for arrays m, v and master.
  /// Async  returns after enqueue on `exec` and the copy streams.
  void stream(const Exec& exec, const std::function<void(const Chunk&, int slot)>& update);

  /// Streams the whole state to the device and back, unchanged.
  /// Async  waits for the end.
  LinkRate measure(const Exec& exec);

  const std::vector<Chunk>& chunks() const { return chunks_; }

 private:
  struct Array {
    memory::TensorId home;
    std::vector<memory::TensorId> staged;  // [slots]
  };
  void copy(const Exec& exec, const Array& array, const Chunk& chunk, int slot, bool is_in) const;

  const memory::Arena<Exec>& arena_;
  std::vector<Array> arrays_;
  std::vector<Chunk> chunks_;
  kernels::SideStream<Exec> in_, out_;
  kernels::StreamOrder<Exec> order_{3 * kChunkSlots + 1};
};

}  // namespace tessera::train
