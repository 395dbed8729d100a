/// A barrier of the ranks of one host on a CUDA stream of each. The stream itself sets and waits for flags, by CUDA's
/// stream memory operations: a wait takes no multiprocessor from the kernels of other streams, and no host thread.
///
/// Each rank has a flag for every other one, in host memory that the ranks share and CUDA maps. To arrive is to set
/// one's flag at each of the others; then the stream waits until its own are all set, and clears them.
///
/// Order    work enqueued after a barrier sees the effects of all work that any rank enqueued on its stream before it.
/// Limits   barriers alternate between the two sets of flags: a rank that sets a flag again has passed the barrier in
///          between, and the flag's reader, which arrived there, had cleared it by then. All ranks therefore enqueue
///          the same barriers in the same order, each on one stream.
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

class StreamBarrier {
 public:
  /// Of all ranks of `world`, which are on one host. Collective. If fault() is not empty on any rank, no rank may use
  /// it.
  explicit StreamBarrier(const World& world);
  ~StreamBarrier();
  StreamBarrier(const StreamBarrier&) = delete;
  StreamBarrier& operator=(const StreamBarrier&) = delete;

  const std::string& fault() const { return fault_; }

  /// With flags `set`, 0 and 1 in turn.
  void enqueue(int set, cudaStream_t stream) const;

  /// After this, no barrier of this rank waits for long, whether the others arrive or not.
  void abandon();

 private:
  std::size_t place(int set, int of, int from) const;
  void prepare(int set);

  int rank_, ranks_;
  std::unique_ptr<SharedMemory> memory_;                 // flags [2, R, R]: set, whose it is, who sets it
  std::uint32_t* mapped_ = nullptr;                      // the same at the GPU's address
  std::vector<CUstreamBatchMemOpParams> operations_[2];  // of each set's barrier
  std::string fault_;
  std::jthread releaser_;  // of the waits, once abandoned
};

}  // namespace tessera::parallel
