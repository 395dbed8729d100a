/// A barrier of the ranks of one host on a CUDA stream of each. The stream itself sets and waits for flags, by CUDA's
/// stream memory operations: a wait takes no multiprocessor from the kernels of other streams, and no host thread.
///
/// Each rank has a flag for every other one, in host memory that the ranks share and CUDA maps. To arrive is to set
/// one's flag at each of the others; then the stream waits until its own are all set, and clears them.
///
/// Order    work enqueued after a barrier sees the effects of all work that any rank enqueued on its stream before it.
/// Limits   the barriers of a channel alternate between its two sets of flags: a rank that sets a flag again has passed
///          the barrier in between, and the flag's reader, which arrived there, had cleared it by then. All ranks
///          therefore enqueue the same barriers of a channel in the same order, each on one stream. Channels are
///          independent.
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

/// The first rank's text that is not empty, on every rank. Collective. For faults that all ranks then act on together;
/// those that end them go through World::agree.
std::string first_fault(const World& world, const std::string& mine);

class StreamBarrier {
 public:
  /// Of all ranks of `world`, which are on one host, in `channels` channels. Collective. If fault() is not empty, which
  /// it is on every rank or on none, no rank may use it.
  StreamBarrier(const World& world, int channels);
  ~StreamBarrier();
  StreamBarrier(const StreamBarrier&) = delete;
  StreamBarrier& operator=(const StreamBarrier&) = delete;

  const std::string& fault() const { return fault_; }

  /// With the channel's flags `set`, 0 and 1 in turn.
  void enqueue(int channel, int set, cudaStream_t stream) const;

  /// After this, no barrier of this rank waits for long, whether the others arrive or not.
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
