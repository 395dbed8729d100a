#include "parallel/nccl.hpp"

#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <stdexcept>
#include <thread>

#include "kernels/core/events.hpp"
#include "kernels/core/out_of_memory.hpp"
#include "kernels/cuda/event.hpp"
#include "parallel/copy_engine.hpp"
#include "parallel/device.hpp"
#include "parallel/errors.hpp"
#include "parallel/wire.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

using kernels::Device;
using kernels::cuda::Event;

class Stream {
 public:
  explicit Stream(int priority) { CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

int highest_priority() {
  int lowest = 0, highest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  return highest;
}

ncclDataType_t type_of(const Span& span) {
  switch (span.dtype) {
    case Dtype::fp64: return ncclFloat64;
    case Dtype::fp32: return ncclFloat32;
    case Dtype::bf16: return ncclBfloat16;
    case Dtype::fp16: return ncclFloat16;
    case Dtype::int32: break;
  }
  throw std::invalid_argument("nccl all-reduce of " + span.label + ": " + std::string(name_of(span.dtype)) +
                              " is not summed here");
}

void require_device_memory(const char* what, const Span& span) {
  if (span.count == 0 || is_device_memory(span.data)) return;
  throw std::invalid_argument(std::string("nccl ") + what + " of " + span.label + ": its memory is not the device's");
}

/// Throws unless `result` is success: MemoryError if NCCL found no memory, else a Fault, with `advice`.
template <class Fault>
void check(ncclResult_t result, const char* call, ncclComm_t comm, const char* advice) {
  if (result == ncclSuccess) return;
  const std::string text = std::string(call) + ": " + ncclGetErrorString(result) + " (" + ncclGetLastError(comm) + ")";
  if (tells_of_no_memory(text)) {
    throw MemoryError(text +
                      ": NCCL finds no memory left; nvidia-smi shows who holds the GPU's, and smaller batches "
                      "or models leave more");
  }
  throw Fault(text + advice);
}

/// The communicator and its stream.
class Communicator {
 public:
  explicit Communicator(const World& world) : stream_(highest_priority()), clock_stream_(0), compute_(stream_) {
    ncclUniqueId id{};
    const auto connect = [](ncclResult_t result, const char* call) {
      parallel::check<EnvironmentError>(result, call, nullptr,
                                        ": NCCL_DEBUG=INFO tells more; parallel.collectives=\"mpi\" does without");
    };
    if (world.rank() == 0) connect(ncclGetUniqueId(&id), "ncclGetUniqueId");
    const std::string text = world.broadcast(std::string(id.internal, sizeof id.internal));
    std::memcpy(id.internal, text.data(), sizeof id.internal);
    connect(ncclCommInitRank(&comm_, world.size(), id, world.rank()), "ncclCommInitRank");
  }

  ~Communicator() {
    if (must_abandon()) abandon();
    if (abort_.joinable()) {
      abort_.join();
    } else {
      cudaStreamSynchronize(stream_);
      ncclCommDestroy(comm_);
    }
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t get() const { return comm_; }
  cudaStream_t stream() const { return stream_; }
  const Device& instance() const { return compute_; }  // the same stream, for kernels of ours

  /// For calls between connected ranks: a failure there means a lost rank or network.
  void check(ncclResult_t result, const char* call) const {
    parallel::check<LossError>(result, call, comm_, "; resume from the last checkpoint (--resume auto)");
  }

  /// If ranks are lost or leaving, an orderly shutdown would wait for them.
  bool must_abandon() const { return std::uncaught_exceptions() > 0 || !fault().empty(); }

  /// Running kernels end at once. The call itself returns only when the last graph that contains NCCL kernels has been
  /// destroyed, which may be much later: hence the thread.
  void abandon() {
    if (!abort_.joinable()) abort_ = std::thread([comm = comm_] { ncclCommAbort(comm); });
  }

  std::string fault() const {
    if (abort_.joinable()) return "";  // already aborting
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &state) == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) {
      return "";
    }
    return std::string("NCCL reports: ") + ncclGetErrorString(state) + " (" + ncclGetLastError(comm_) + ")";
  }

  /// The host waits for an event or a fault.
  void wait_for(const Event& event) const {
    using namespace std::chrono;
    const auto start = steady_clock::now();
    auto asked = start;
    while (!event.has_happened()) {
      const auto now = steady_clock::now();
      if (now - asked > milliseconds(20)) {
        asked = now;
        if (const std::string text = fault(); !text.empty()) {
          throw LossError(text + "; resume from the last checkpoint (--resume auto)");
        }
      }
      if (now - start > milliseconds(100)) std::this_thread::sleep_for(microseconds(50));
    }
  }

  /// When a timing event happened, on the clock of events::now_s().
  double seconds_at(const Event& event) {
    if (events::now_s() - reference_s_ > 10) {  // differences are floats of milliseconds: keep them short
      CUDA_CHECK(cudaEventRecord(reference_, clock_stream_));
      CUDA_CHECK(cudaEventSynchronize(reference_));
      reference_s_ = events::now_s();
    }
    return reference_s_ + 1e-3 * static_cast<double>(event.milliseconds_since(reference_));
  }

 private:
  Stream stream_, clock_stream_;  // the second never waits: an event recorded there happens at once
  Device compute_;
  Event reference_;
  double reference_s_ = -1e9;
  ncclComm_t comm_ = nullptr;
  std::thread abort_;
};

class NcclAllReduce final : public AllReduce {
 public:
  NcclAllReduce(Communicator& comm, CopyEngines* engines, const Span& span, const Span& wire)
      : comm_(comm),
        engines_(span.count > 0 ? engines : nullptr),
        wire_("nccl", span, wire),
        type_(type_of(wire_.message())) {
    require_device_memory("all-reduce", span);
    require_device_memory("all-reduce", wire);
  }

  void connect() override {
    if (engines_) copies_ = engines_->make_sum(wire_.message());
  }

  void start(const Device& exec) override {
    if (engines_ && !copies_) {
      throw std::logic_error("nccl all-reduce of " + wire_.message().label + ": connect it before the first start");
    }
    CUDA_CHECK(cudaEventRecord(ready_, exec.cuda_stream()));
    CUDA_CHECK(cudaStreamWaitEvent(comm_.stream(), ready_, 0));
    begin_.stamp(comm_.stream());
    wire_.narrow(comm_.instance());
    if (engines_) {
      copies_->enqueue(comm_.instance());
    } else {
      const Span& message = wire_.message();
      comm_.check(ncclAllReduce(message.data, message.data, static_cast<std::size_t>(message.count), type_, ncclSum,
                                comm_.get(), comm_.stream()),
                  "ncclAllReduce");
    }
    wire_.widen(comm_.instance());
    end_.stamp(comm_.stream());
    CUDA_CHECK(cudaEventRecord(done_, comm_.stream()));  // last: a capture requires every fork to be joined
    was_started_ = true;
    was_joined_ = false;
  }

  bool test() override { return end_.has_happened(); }

  void join(const Device& exec) override {
    if (!was_started_) return;
    joined_.stamp(exec.cuda_stream());
    CUDA_CHECK(cudaStreamWaitEvent(exec.cuda_stream(), done_, 0));
    was_joined_ = true;
  }

  Times times() override {
    if (!was_started_ || !test()) {
      throw std::logic_error("nccl all-reduce of " + wire_.message().label + ": asked for times while it runs");
    }
    const double end_s = comm_.seconds_at(end_);
    return {comm_.seconds_at(begin_), end_s, was_joined_ ? comm_.seconds_at(joined_) : end_s};
  }

 private:
  Communicator& comm_;
  CopyEngines* engines_;  // null: NCCL's ring
  Wire wire_;
  ncclDataType_t type_;
  std::unique_ptr<CopyEngineSum> copies_;                               // from connect() on, with copy engines
  Event ready_{cudaEventDisableTiming}, done_{cudaEventDisableTiming};  // order the streams
  Event begin_, end_, joined_;                                          // for timing
  bool was_started_ = false, was_joined_ = false;
};

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const World& world, TransferMethod method, bool has_pinned_ring)
      : world_(world), comm_(world), has_pinned_ring_(has_pinned_ring) {
    if (method == TransferMethod::ring) return;
    engines_.emplace(world);
    why_ring_ = engines_->fault();
    if (why_ring_.empty()) return;
    engines_->close();
    world.barrier();
    engines_.reset();
    if (method == TransferMethod::automatic) return;
    throw EnvironmentError("parallel.all_reduce = \"copy_engine\": " + why_ring_ +
                           "; set parallel.all_reduce = \"ring\"");
  }

  ~NcclCollectives() override {
    if (!engines_) return;
    const bool is_orderly = !comm_.must_abandon();
    if (!is_orderly) abandon();
    cudaStreamSynchronize(comm_.stream());  // sums in flight use the other ranks' memory
    engines_->close();
    if (!is_orderly) return;
    try {
      world_.barrier();
    } catch (const Error&) {  // no rank is left to wait for
    }
  }

  std::string name() const override { return "nccl"; }

  std::string description() const override {
    int version = 0;
    ncclGetVersion(&version);
    const char* algorithm = std::getenv("NCCL_ALGO");
    return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100) + ", NCCL_ALGO=" + (algorithm ? algorithm : "") +
           (has_pinned_ring_ ? " (set here, so that sums repeat bit for bit)" : " (as the environment says)") +
           (engines_ ? ", sums by copy engines" : ", sums by the ring") +
           (why_ring_.empty() ? "" : " (by copy engines they cannot be: " + why_ring_ + ")");
  }

  bool is_asynchronous() const override { return true; }

  std::int64_t device_bytes() const override { return engines_ ? engines_->device_bytes() : 0; }

  std::unique_ptr<AllReduce> make_all_reduce(const Span& span, const Span& wire) override {
    return std::make_unique<NcclAllReduce>(comm_, engines_ ? &*engines_ : nullptr, span, wire);
  }

  void broadcast(const Span& span) override {
    require_device_memory("broadcast", span);
    comm_.check(ncclBroadcast(span.data, span.data, static_cast<std::size_t>(span.bytes()), ncclUint8, 0, comm_.get(),
                              comm_.stream()),
                "ncclBroadcast");
    CUDA_CHECK(cudaEventRecord(broadcasted_, comm_.stream()));
    comm_.wait_for(broadcasted_);
  }

  std::string fault() override { return comm_.fault(); }
  void abandon() override {
    if (engines_) engines_->abandon();
    comm_.abandon();
  }

 private:
  const World& world_;
  Communicator comm_;
  std::optional<CopyEngines> engines_;  // none: NCCL's ring
  std::string why_ring_;
  Event broadcasted_{cudaEventDisableTiming};
  bool has_pinned_ring_;
};

}  // namespace

std::unique_ptr<Collectives> make_nccl_collectives(const World& world, TransferMethod method) {
  // NCCL reads its environment when the first communicator is made.
  const bool is_pinned = std::getenv("NCCL_ALGO") == nullptr;
  if (is_pinned) setenv("NCCL_ALGO", "Ring", 0);
  return std::make_unique<NcclCollectives>(world, method, is_pinned);
}

}  // namespace tessera::parallel
