/// NCCL's communicators: ranks that NCCL has joined, and the stream of their transfers.
///
/// Source  NCCL 2.28 user guide, "Creating a communicator", "Fault tolerance".
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <memory>
#include <string>
#include <thread>

#include "kernels/cuda/event.hpp"
#include "parallel/collectives/family.hpp"
#include "parallel/collectives/stream_transfer.hpp"

namespace tessera::parallel {

class World;

class Communicator final : public Family::Member {
 public:
  /// Of all ranks.
  /// Throws  EnvironmentError if the ranks cannot be connected; MemoryError if NCCL finds no memory.
  Communicator(const World& world, std::shared_ptr<TransferStream> stream, std::shared_ptr<Family> family);

  /// Of those ranks of `all` that give the same `group`, with a stream of their own. Collective in `all`.
  /// Throws  the same; std::invalid_argument for a group below 0.
  Communicator(Communicator& all, int group);

  /// Waits for the other ranks if the family ends in order, else for none.
  ~Communicator() override;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t get() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  TransferStream& stream() const { return *stream_; }
  Family& family() const { return *family_; }

  /// For calls between connected ranks, where a failure means a lost rank or network.
  /// Throws  LossError or MemoryError, unless `result` is success.
  void check(ncclResult_t result, const char* call) const;

  std::string own_fault() const override;

  /// Running kernels end at once. The call itself returns only when the last graph that contains NCCL kernels has been
  /// destroyed, which may be much later: hence the thread.
  void abandon_own() override;

  /// The host waits for what has been enqueued on the stream, or for a fault.
  /// Throws  LossError at a fault.
  void drain() const;

 private:
  Communicator(const World& world, ncclComm_t comm, std::shared_ptr<TransferStream> stream,
               std::shared_ptr<Family> family);
  static ncclComm_t connect(const World& world);
  ncclComm_t split(int group) const;

  const World& world_;
  std::shared_ptr<TransferStream> stream_;
  std::shared_ptr<Family> family_;
  kernels::cuda::Event drained_{cudaEventDisableTiming};
  ncclComm_t comm_;
  int rank_ = 0, size_ = 1;
  std::thread abort_;
};

}  // namespace tessera::parallel
