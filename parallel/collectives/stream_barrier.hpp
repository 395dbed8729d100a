/// A barrier of the ranks of one host, on one CUDA stream of each. The streams set flags and wait for them by CUDA's
/// stream memory operations, so a wait takes no SM from other streams' kernels, and no host thread.
///
/// Each rank has a flag for every other one, in shared host memory that CUDA maps. On arrival a stream sets its rank's
/// flag at each other rank; then it waits until all of its own are set, and clears them.
///
/// Order    work enqueued after a barrier sees the effects of all work that any rank enqueued on its stream before it.
/// Limits   the barriers of a channel alternate between two sets of flags: before a rank sets a flag again, it passes
///          the barrier in between, where the flag's reader arrived after clearing it. So all ranks must enqueue the
///          same barriers of a channel in the same order, each on one stream. Channels are independent.
/// Async    enqueue() returns at once, and may be captured in a graph.
/// Source   CUDA Driver API, "Stream Memory Operations".
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "parallel/shared_memory.hpp"

namespace tessera::parallel {

class World;

/// The first non-empty text of any rank, on every rank. Collective. For faults that all ranks handle together; fatal
/// ones go through World::agree.
std::string first_fault(const World& world, const std::string& mine);

class StreamBarrier {
 public:
  /// For all ranks of `world`, on one host, with `channels` channels. Collective. If fault() is not empty (the same on
  /// every rank), no rank may use it.
  StreamBarrier(const World& world, int channels);
  ~StreamBarrier();
  StreamBarrier(const StreamBarrier&) = delete;
  StreamBarrier& operator=(const StreamBarrier&) = delete;

  const std::string& fault() const { return fault_; }

  /// With the channel's flags `set`, 0 and 1 in turn.
  void enqueue(int channel, int set, cudaStream_t stream) const;

  /// After this, no barrier of this rank waits long, even if the others never arrive.
  void abandon();

 private:
  std::size_t place(int set, int of, int from) const;
  void prepare(int set);

  int rank_, ranks_, sets_;
  std::unique_ptr<SharedMemory> memory_;  // flags [sets, R, R]: set, two of each channel; whose it is; who sets it
  std::uint32_t* mapped_ = nullptr;       // the same at the GPU's address
  std::vector<std::vector<CUstreamBatchMemOpParams>> operations_;  // of each set's barrier
  std::string fault_;
  std::jthread releaser_;  // of the waits, once abandoned
};

}  // namespace tessera::parallel
