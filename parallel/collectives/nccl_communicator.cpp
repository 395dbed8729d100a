#include "parallel/collectives/nccl_communicator.hpp"

#include <cstring>
#include <exception>
#include <stdexcept>

#include "kernels/core/events.hpp"
#include "kernels/core/out_of_memory.hpp"
#include "parallel/collectives/copy_engine.hpp"
#include "parallel/errors.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

using kernels::cuda::Event;

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

void Family::add(Communicator& member) {
  const std::lock_guard lock(mutex_);
  members_.push_back(&member);
}

void Family::remove(Communicator& member) {
  const std::lock_guard lock(mutex_);
  std::erase(members_, &member);
}

void Family::use(CopyEngines* engines) {
  const std::lock_guard lock(mutex_);
  engines_ = engines;
}

std::string Family::fault() {
  const Lock lock(mutex_, kPatience);
  if (!lock || was_abandoned_) return "";
  for (const Communicator* member : members_) {
    if (const std::string text = member->own_fault(); !text.empty()) return text;
  }
  return "";
}

void Family::abandon() {
  was_abandoned_ = true;
  const Lock lock(mutex_, kPatience);
  if (!lock) return;
  if (engines_) engines_->abandon();
  for (Communicator* member : members_) member->abandon();
}

Communicator::Communicator(const World& world, int priority)
    : Communicator(connect(world), std::make_shared<Family>(), world.recorder(), priority) {}

Communicator::Communicator(Communicator& all, int group, int priority)
    : Communicator(all.split(group), all.family_, all.log_.recorder(), priority) {}

Communicator::Communicator(ncclComm_t comm, std::shared_ptr<Family> family, FlightRecorder& recorder, int priority)
    : stream_(priority), clock_stream_(0), compute_(stream_), log_(recorder), comm_(comm), family_(std::move(family)) {
  check(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank");
  check(ncclCommCount(comm_, &size_), "ncclCommCount");
  family_->add(*this);
}

Communicator::~Communicator() {
  const bool is_orderly = !is_leaving();
  family_->remove(*this);
  if (!is_orderly) abandon();
  if (abort_.joinable()) {
    abort_.join();
  } else {
    cudaStreamSynchronize(stream_);
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

bool Communicator::is_leaving() const {
  if (!family_->fault().empty()) family_->abandon();
  return std::uncaught_exceptions() > 0 || family_->was_abandoned();
}

void Communicator::abandon() {
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
  CUDA_CHECK(cudaEventRecord(drained_, stream_));
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

double Communicator::seconds_at(const Event& event) {
  if (events::now_s() - reference_s_ > 10) {  // differences are floats of milliseconds: keep them short
    CUDA_CHECK(cudaEventRecord(reference_, clock_stream_));
    CUDA_CHECK(cudaEventSynchronize(reference_));
    reference_s_ = events::now_s();
  }
  return reference_s_ + 1e-3 * static_cast<double>(event.milliseconds_since(reference_));
}

}  // namespace tessera::parallel
