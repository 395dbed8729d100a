#include "parallel/collectives/nccl_communicator.hpp"

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "kernels/core/out_of_memory.hpp"
#include "parallel/errors.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

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
  check<EnvironmentError>(result, call, comm,
                          ": NCCL_DEBUG=INFO shows more; parallel.collectives=\"mpi\" does without NCCL");
}

}  // namespace

Communicator::Communicator(const World& world, std::shared_ptr<TransferStream> stream, std::shared_ptr<Family> family)
    : Communicator(world, connect(world), std::move(stream), std::move(family)) {}

Communicator::Communicator(Communicator& all, int group)
    : Communicator(all.world_, all.split(group),
                   std::make_shared<TransferStream>(all.world_.recorder(), kernels::cuda::highest_priority()),
                   all.family_) {}

Communicator::Communicator(const World& world, ncclComm_t comm, std::shared_ptr<TransferStream> stream,
                           std::shared_ptr<Family> family)
    : world_(world), stream_(std::move(stream)), family_(std::move(family)), comm_(comm) {
  check(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank");
  check(ncclCommCount(comm_, &size_), "ncclCommCount");
  family_->add(*this);
}

Communicator::~Communicator() {
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

ncclComm_t Communicator::connect(const World& world) {
  ncclUniqueId id{};
  if (world.rank() == 0) check_connection(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
  const std::string text = world.broadcast(std::string(id.internal, sizeof id.internal));
  std::memcpy(id.internal, text.data(), sizeof id.internal);
  ncclComm_t comm = nullptr;
  check_connection(ncclCommInitRank(&comm, world.size(), id, world.rank()), "ncclCommInitRank", nullptr);
  return comm;
}

ncclComm_t Communicator::split(int group) const {
  if (group < 0) throw std::invalid_argument("nccl: a group of ranks is 0 or above, not " + std::to_string(group));
  drain();  // NCCL may wait for the ranks, and they for what is under way
  ncclComm_t comm = nullptr;
  check_connection(ncclCommSplit(comm_, group, rank_, &comm, nullptr), "ncclCommSplit", comm_);
  return comm;
}

void Communicator::check(ncclResult_t result, const char* call) const {
  parallel::check<LossError>(result, call, comm_, kAfterLoss);
}

void Communicator::abandon_own() {
  if (!abort_.joinable()) abort_ = std::thread([comm = comm_] { ncclCommAbort(comm); });
}

std::string Communicator::own_fault() const {
  ncclResult_t state = ncclSuccess;
  if (ncclCommGetAsyncError(comm_, &state) == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) {
    return "";
  }
  return std::string("NCCL reports: ") + ncclGetErrorString(state) + " (" + ncclGetLastError(comm_) + ")";
}

void Communicator::drain() const {
  using namespace std::chrono;
  CUDA_CHECK(cudaEventRecord(drained_, stream_->get()));
  const auto start = steady_clock::now();
  auto asked = start;
  while (!drained_.has_happened()) {
    const auto now = steady_clock::now();
    if (now - asked > milliseconds(20)) {
      asked = now;
      if (const std::string text = family_->fault(); !text.empty()) {
        throw LossError(text + kAfterLoss);
      }
    }
    if (now - start > milliseconds(100)) std::this_thread::sleep_for(microseconds(50));
  }
}

}  // namespace tessera::parallel
