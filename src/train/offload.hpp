/// The optimizer's state in the host's memory, updated on the device chunk by chunk: while one chunk is updated, the next
/// ones come in and the last ones go out, on two copy streams.
///
/// The update is the one of update.hpp, block by block, so the bits are those of a run without offload.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/core/side_stream.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "train/plan.hpp"

namespace tessera::train {

/// Elements first .. first + count - 1 of the owned state, that are on the device together.
struct Chunk {
  std::int64_t first, count;
};

/// Chunks at a time on the device: coming in, updated, going out.
inline constexpr int kChunkSlots = 3;

/// Elements of a chunk: enough for the link's full rate, and several chunks even in small models.
std::int64_t chunk_elements(std::int64_t owned_count);
std::vector<Chunk> chunks_of(std::int64_t owned_count);

/// What the link moved in both directions at once.
struct LinkRate {
  double bytes = 0;    // each way
  double seconds = 0;  // of all of it
};

/// Streams arrays of the arena's host space through places on the device.
class Offload {
 public:
  using Exec = kernels::Device;

  /// For the state of `plan`, which has some of it on the host. Keeps references.
  Offload(const Plan& plan, const memory::Arena<Exec>& arena);

  /// Calls `update(chunk, slot)` for each chunk in turn, to enqueue on `exec` what changes it where it lies: in tensor
  /// plan.state.staged[array][slot], for arrays m, v and master. Enqueued as a whole on `exec` and the copy streams.
  void stream(const Exec& exec, const std::function<void(const Chunk&, int slot)>& update);

  /// Streams the whole state through without a change. Waits.
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
