#include "parallel/collectives/nccl.hpp"

#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "kernels/core/words.hpp"
#include "kernels/cuda/event.hpp"
#include "parallel/collectives/family.hpp"
#include "parallel/collectives/stream_transfer.hpp"
#include "parallel/errors.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

using kernels::Device;

/// Throws unless `result` is success: MemoryError if NCCL found no memory, else a Fault, with `advice`.
template <class Fault>
void check(ncclResult_t result, const char* call, ncclComm_t comm, const char* advice) {
  if (result == ncclSuccess) return;
  const std::string text = std::string(call) + ": " + ncclGetErrorString(result) + " (" + ncclGetLastError(comm) + ")";
  if (tells_of_no_memory(text)) {
    throw MemoryError(text +
                      ": NCCL has run out of memory; nvidia-smi shows what uses the GPU's, and smaller batches "
                      "or models leave more");
  }
  throw Fault(text + advice);
}

void check_connection(ncclResult_t result, const char* call, ncclComm_t comm) {
  check<EnvironmentError>(result, call, comm, ": NCCL_DEBUG=INFO shows more; parallel.collectives=\"mpi\" avoids NCCL");
}

/// Ranks that NCCL has joined, and the stream of their transfers.
class Communicator final : public Family::Member {
 public:
  /// Of all ranks.
  Communicator(const World& world, std::shared_ptr<TransferStream> stream, std::shared_ptr<Family> family)
      : Communicator(world, connect(world), std::move(stream), std::move(family)) {}

  /// The ranks of `all` that pass the same `group`, with their own stream. Collective in `all`.
  Communicator(Communicator& all, int group)
      : Communicator(all.world_, all.split(group),
                     std::make_shared<TransferStream>(all.world_.recorder(), kernels::cuda::highest_priority()),
                     all.family_) {}

  /// Waits for the other ranks if the family ends in order, else for none.
  ~Communicator() override {
    const bool ends_in_order = family_->ends_in_order(world_);
    family_->remove(*this);
    if (!ends_in_order) abandon_own();
    if (abort_.joinable()) {
      abort_.join();
    } else {
      cudaStreamSynchronize(stream_->get());
      ncclCommDestroy(comm_);
    }
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t get() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  TransferStream& stream() const { return *stream_; }
  Family& family() const { return *family_; }

  /// For calls between connected ranks, where a failure means a lost rank or network.
  void check(ncclResult_t result, const char* call) const {
    parallel::check<LossError>(result, call, comm_, kAfterLoss);
  }

  std::string own_fault() const override {
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &state) == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) {
      return "";
    }
    return std::string("NCCL reports: ") + ncclGetErrorString(state) + " (" + ncclGetLastError(comm_) + ")";
  }

  /// Running kernels end at once, but the call returns only once the last graph with NCCL kernels has been destroyed,
  /// possibly much later: hence the thread.
  void abandon_own() override {
    if (!abort_.joinable()) abort_ = std::thread([comm = comm_] { ncclCommAbort(comm); });
  }

  /// The host waits for the work enqueued on the stream, or for a fault.
  void drain() const {
    using namespace std::chrono;
    CUDA_CHECK(cudaEventRecord(drained_, stream_->get()));
    const auto start = steady_clock::now();
    auto asked = start;
    while (!drained_.has_happened()) {
      const auto now = steady_clock::now();
      if (now - asked > milliseconds(20)) {
        asked = now;
        if (const std::string text = family_->fault(); !text.empty()) throw LossError(text + kAfterLoss);
      }
      if (now - start > milliseconds(100)) std::this_thread::sleep_for(microseconds(50));
    }
  }

 private:
  Communicator(const World& world, ncclComm_t comm, std::shared_ptr<TransferStream> stream,
               std::shared_ptr<Family> family)
      : world_(world), stream_(std::move(stream)), family_(std::move(family)), comm_(comm) {
    check(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank");
    check(ncclCommCount(comm_, &size_), "ncclCommCount");
    family_->add(*this);
  }

  static ncclComm_t connect(const World& world) {
    ncclUniqueId id{};
    if (world.rank() == 0) check_connection(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
    const std::string text = world.broadcast(std::string(id.internal, sizeof id.internal));
    std::memcpy(id.internal, text.data(), sizeof id.internal);
    ncclComm_t comm = nullptr;
    check_connection(ncclCommInitRank(&comm, world.size(), id, world.rank()), "ncclCommInitRank", nullptr);
    return comm;
  }

  ncclComm_t split(int group) const {
    if (group < 0) throw std::invalid_argument("nccl: a group of ranks is 0 or above, not " + std::to_string(group));
    drain();  // NCCL may wait for the ranks, and they for transfers in flight
    ncclComm_t comm = nullptr;
    check_connection(ncclCommSplit(comm_, group, rank_, &comm, nullptr), "ncclCommSplit", comm_);
    return comm;
  }

  const World& world_;
  std::shared_ptr<TransferStream> stream_;
  std::shared_ptr<Family> family_;
  kernels::cuda::Event drained_{cudaEventDisableTiming};
  ncclComm_t comm_;
  int rank_ = 0, size_ = 1;
  std::thread abort_;
};

ncclDataType_t summed_type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp64: return ncclFloat64;
    case Dtype::fp32: return ncclFloat32;
    case Dtype::bf16: return ncclBfloat16;
    case Dtype::fp16: return ncclFloat16;
    case Dtype::int32: break;  // is not summed
  }
  return ncclInt32;
}

class NcclTransfer final : public StreamTransfer {
 public:
  NcclTransfer(Communicator& comm, const Message& message)
      : StreamTransfer("nccl", comm.stream(), message, comm.rank(), comm.size()), comm_(comm) {}

 private:
  void move(const Device&) override {
    const Span& whole = message();
    const Span& part = moved_part();
    const ncclDataType_t type = sums() ? summed_type_of(whole.dtype) : ncclUint8;
    const auto count = [&](const Span& span) { return static_cast<std::size_t>(sums() ? span.count : span.bytes()); };
    switch (operation_) {
      case Operation::all_reduce:
        return comm_.check(
            ncclAllReduce(whole.data, whole.data, count(whole), type, ncclSum, comm_.get(), stream_.get()),
            "ncclAllReduce");
      case Operation::reduce_scatter:
        return comm_.check(
            ncclReduceScatter(whole.data, part.data, count(part), type, ncclSum, comm_.get(), stream_.get()),
            "ncclReduceScatter");
      case Operation::all_gather:
        return comm_.check(ncclAllGather(part.data, whole.data, count(part), type, comm_.get(), stream_.get()),
                           "ncclAllGather");
      case Operation::broadcast:
        return comm_.check(ncclBroadcast(whole.data, whole.data, count(whole), type, 0, comm_.get(), stream_.get()),
                           "ncclBroadcast");
    }
  }

  Communicator& comm_;
};

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const World& world, std::shared_ptr<TransferStream> stream, std::shared_ptr<Family> family,
                  std::string role, bool has_pinned_ring)
      : comm_(world, std::move(stream), std::move(family)), role_(std::move(role)), has_pinned_ring_(has_pinned_ring) {}
  NcclCollectives(NcclCollectives& all, int group)
      : comm_(all.comm_, group), role_(kRingMovesAll), has_pinned_ring_(all.has_pinned_ring_) {}

  std::string name() const override { return "nccl"; }

  std::string description() const override {
    int version = 0;
    ncclGetVersion(&version);
    const char* algorithm = std::getenv("NCCL_ALGO");
    return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100) + ", NCCL_ALGO=" + (algorithm ? algorithm : "") +
           (has_pinned_ring_ ? " (set here, so that sums repeat bit for bit)" : " (as the environment says)") + ", " +
           role_;
  }

  bool is_asynchronous() const override { return true; }
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }

  std::unique_ptr<Transfer> make(const Message& message) override {
    return std::make_unique<NcclTransfer>(comm_, message);
  }
  std::unique_ptr<Collectives> make_group(int group) override {
    return std::make_unique<NcclCollectives>(*this, group);
  }

  Device instance() const override { return comm_.stream().instance(); }

  void broadcast(const Span& span) override {
    const std::unique_ptr<Transfer> transfer = make_broadcast(span);
    transfer->start(instance());
    comm_.drain();
  }

  std::string fault() override { return comm_.family().fault(); }
  void abandon() override { comm_.family().abandon(); }

 private:
  Communicator comm_;
  std::string role_;
  bool has_pinned_ring_;
};

}  // namespace

std::unique_ptr<Collectives> make_nccl_collectives(const World& world, std::shared_ptr<TransferStream> stream,
                                                   std::shared_ptr<Family> family, std::string role) {
  // NCCL reads its environment when the first communicator is made.
  const bool is_pinned = std::getenv("NCCL_ALGO") == nullptr;
  if (is_pinned) setenv("NCCL_ALGO", "Ring", 0);
  return std::make_unique<NcclCollectives>(world, std::move(stream), std::move(family), std::move(role), is_pinned);
}

}  // namespace tessera::parallel
