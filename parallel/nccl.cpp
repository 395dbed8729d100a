#include "parallel/nccl.hpp"

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/events.hpp"
#include "kernels/core/out_of_memory.hpp"
#include "kernels/cuda/event.hpp"
#include "kernels/cuda/stream.hpp"
#include "parallel/copy_engine.hpp"
#include "parallel/device.hpp"
#include "parallel/errors.hpp"
#include "parallel/parts.hpp"
#include "parallel/stream_log.hpp"
#include "parallel/wire.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

using kernels::Device;
using kernels::cuda::Event;
using kernels::cuda::Stream;

/// How NCCL sums the elements of `message`, for the transfer `what`.
ncclDataType_t summed_type_of(const std::string& what, const Span& message) {
  switch (message.dtype) {
    case Dtype::fp64: return ncclFloat64;
    case Dtype::fp32: return ncclFloat32;
    case Dtype::bf16: return ncclBfloat16;
    case Dtype::fp16: return ncclFloat16;
    case Dtype::int32: break;
  }
  throw std::invalid_argument(what + ": " + std::string(name_of(message.dtype)) + " cannot be summed");
}

void require_device_memory(const std::string& what, const Span& span) {
  if (span.count == 0 || is_device_memory(span.data)) return;
  throw std::invalid_argument(what + ": its memory is not the device's");
}

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

class Communicator;

/// Communicators that are abandoned together: that of all ranks, and those split off it. The watchdog queries them from
/// its own thread while the main thread makes and destroys them.
class Family {
 public:
  void add(Communicator& member);
  void remove(Communicator& member);
  void use(CopyEngines* engines);  // null: none

  /// The fault of the first member that has one; empty: none.
  std::string fault();

  void abandon();
  bool was_abandoned() const { return was_abandoned_; }

 private:
  // A thread that holds it may hang in NCCL, so neither fault() nor abandon() waits for long.
  using Lock = std::unique_lock<std::timed_mutex>;
  static constexpr std::chrono::seconds kPatience{1};

  std::timed_mutex mutex_;
  std::vector<Communicator*> members_;
  CopyEngines* engines_ = nullptr;
  std::atomic<bool> was_abandoned_ = false;
};

/// Ranks that NCCL has joined, and their stream.
class Communicator {
 public:
  /// Of all ranks. `priority`: of the stream.
  Communicator(const World& world, int priority)
      : Communicator(connect(world), std::make_shared<Family>(), world.recorder(), priority) {}

  /// Of those ranks of `all` that give the same `group`. Collective in `all`.
  Communicator(Communicator& all, int group, int priority)
      : Communicator(all.split(group), all.family_, all.log_.recorder(), priority) {}

  ~Communicator() {
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
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t get() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  cudaStream_t stream() const { return stream_; }
  const Device& instance() const { return compute_; }  // the same stream, for kernels of ours
  Family& family() const { return *family_; }
  StreamLog& log() { return log_; }

  /// For calls between connected ranks, where a failure means a lost rank or network.
  void check(ncclResult_t result, const char* call) const {
    parallel::check<LossError>(result, call, comm_, "; resume from the last checkpoint (--resume auto)");
  }

  /// Whether an orderly shutdown would wait for ranks that are lost or leave: a fault of one member is one of all.
  bool is_leaving() const {
    if (!family_->fault().empty()) family_->abandon();
    return std::uncaught_exceptions() > 0 || family_->was_abandoned();
  }

  /// Running kernels end at once. The call itself returns only when the last graph that contains NCCL kernels has been
  /// destroyed, which may be much later: hence the thread. Only for one thread at a time, as is own_fault().
  void abandon() {
    if (!abort_.joinable()) abort_ = std::thread([comm = comm_] { ncclCommAbort(comm); });
  }

  std::string own_fault() const {
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &state) == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) {
      return "";
    }
    return std::string("NCCL reports: ") + ncclGetErrorString(state) + " (" + ncclGetLastError(comm_) + ")";
  }

  /// The host waits for what has been enqueued on the stream.
  void drain() const {
    CUDA_CHECK(cudaEventRecord(drained_, stream_));
    wait_for(drained_);
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
  Communicator(ncclComm_t comm, std::shared_ptr<Family> family, FlightRecorder& recorder, int priority)
      : stream_(priority),
        clock_stream_(0),
        compute_(stream_),
        log_(recorder, stream_),
        comm_(comm),
        family_(std::move(family)) {
    check(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank");
    check(ncclCommCount(comm_, &size_), "ncclCommCount");
    family_->add(*this);
  }

  static void check_connection(ncclResult_t result, const char* call, ncclComm_t comm) {
    parallel::check<EnvironmentError>(result, call, comm,
                                      ": NCCL_DEBUG=INFO shows more; parallel.collectives=\"mpi\" does without NCCL");
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
    drain();  // NCCL may wait for the ranks, and they for what is under way
    ncclComm_t comm = nullptr;
    check_connection(ncclCommSplit(comm_, group, rank_, &comm, nullptr), "ncclCommSplit", comm_);
    return comm;
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
        if (const std::string text = family_->fault(); !text.empty()) {
          throw LossError(text + "; resume from the last checkpoint (--resume auto)");
        }
      }
      if (now - start > milliseconds(100)) std::this_thread::sleep_for(microseconds(50));
    }
  }

  Stream stream_, clock_stream_;  // the second never waits: an event recorded there happens at once
  Device compute_;
  StreamLog log_;
  Event drained_{cudaEventDisableTiming}, reference_;
  double reference_s_ = -1e9;
  ncclComm_t comm_;
  int rank_ = 0, size_ = 1;
  std::shared_ptr<Family> family_;
  std::thread abort_;
};

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

/// What is transferred.
struct Message {
  Operation operation;
  Span span;       // an all-gather's whole
  Span wire = {};  // of a sum
  Span part = {};  // this rank's, of an all-gather; of a reduce-scatter where its sum goes, or empty
};

class NcclTransfer final : public Transfer {
 public:
  NcclTransfer(Communicator& comm, CopyEngines* engines, const Message& message)
      : comm_(comm),
        engines_(message.span.count > 0 && message.operation != Operation::broadcast ? engines : nullptr),
        operation_(message.operation),
        what_("nccl " + std::string(name_of(operation_)) + " of " + message.span.label),
        name_(comm.log().recorder().name(name_of(operation_), "nccl", message.span.label)),
        wire_(("nccl " + std::string(name_of(operation_))).c_str(), message.span, message.wire),
        part_(own_part(message)),
        moved_part_(operation_ == Operation::reduce_scatter && wire_.is_narrow() ? place_in(wire_.message()) : part_),
        type_(sums() ? summed_type_of(what_, wire_.message()) : ncclUint8) {
    if (operation_ == Operation::all_gather) require_part_of(message.span);
    for (const Span& span : {message.span, message.wire, part_}) require_device_memory(what_, span);
  }

  void connect() override {
    if (!engines_) return;
    void* const part = operation_ == Operation::all_reduce ? nullptr : moved_part_.data;
    copies_ = engines_->make(operation_, wire_.message(), part, squares_);
  }

  std::optional<std::int64_t> squares() const override {
    if (!engines_ || !sums() || comm_.size() == 1) return std::nullopt;
    return engines_->squares_of(operation_, wire_.message());
  }

  void leave_squares(const Span& partial) override {
    if (!squares() || copies_ || partial.dtype != Dtype::fp64 || partial.count != *squares()) {
      throw std::logic_error(what_ + ": it leaves no squares, or not as many as '" + partial.label + "' has room for");
    }
    require_device_memory(what_, partial);
    squares_ = static_cast<double*>(partial.data);
  }

  void start(const Device& exec) override {
    if (engines_ && !copies_) throw std::logic_error(what_ + ": connect it before the first start");
    CUDA_CHECK(cudaEventRecord(ready_, exec.cuda_stream()));
    CUDA_CHECK(cudaStreamWaitEvent(comm_.stream(), ready_, 0));
    begin_.stamp(comm_.stream());
    comm_.log().start(begin_, name_, wire_.message().bytes());
    wire_.narrow(comm_.instance());
    if (engines_) {
      copies_->enqueue(comm_.instance());
    } else {
      enqueue_ring();
    }
    if (operation_ == Operation::reduce_scatter) {
      wire_.widen(comm_.instance(), comm_.rank() * part_.count, part_);
    } else {
      wire_.widen(comm_.instance());
    }
    end_.stamp(comm_.stream());
    CUDA_CHECK(cudaEventRecord(done_, comm_.stream()));  // last: a capture requires every fork to be joined
    comm_.log().end(end_);
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
    if (!was_started_ || !test()) throw std::logic_error(what_ + ": times requested while it runs");
    const double end_s = comm_.seconds_at(end_);
    return {comm_.seconds_at(begin_), end_s, was_joined_ ? comm_.seconds_at(joined_) : end_s};
  }

 private:
  bool sums() const { return operation_ == Operation::all_reduce || operation_ == Operation::reduce_scatter; }

  /// What this rank gives to an all-gather, or where its part of a reduce-scatter ends; of others, all.
  Span own_part(const Message& message) const {
    switch (operation_) {
      case Operation::all_gather: return message.part;
      case Operation::reduce_scatter: return sum_place(what_, message.part, message.span, comm_.rank(), comm_.size());
      case Operation::all_reduce:
      case Operation::broadcast: break;
    }
    return wire_.message();
  }

  /// This rank's place among the parts of `whole`.
  Span place_in(const Span& whole) const { return sum_place(what_, {}, whole, comm_.rank(), comm_.size()); }

  void require_part_of(const Span& whole) const {
    require_part(what_, part_, whole, comm_.size());
    const auto begin = reinterpret_cast<std::uintptr_t>(part_.data),
               place = reinterpret_cast<std::uintptr_t>(whole.data);
    const bool is_outside = begin + part_.bytes() <= place || place + whole.bytes() <= begin;
    if (!is_outside && part_.data != place_in(whole).data) {
      throw std::invalid_argument(what_ + ": its part lies inside the whole, but not at its own place");
    }
  }

  void enqueue_ring() {
    const Span& whole = wire_.message();
    const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    switch (operation_) {
      case Operation::all_reduce:
        return comm_.check(
            ncclAllReduce(whole.data, whole.data, count(whole.count), type_, ncclSum, comm_.get(), comm_.stream()),
            "ncclAllReduce");
      case Operation::reduce_scatter:
        return comm_.check(ncclReduceScatter(whole.data, moved_part_.data, count(moved_part_.count), type_, ncclSum,
                                             comm_.get(), comm_.stream()),
                           "ncclReduceScatter");
      case Operation::all_gather:
        return comm_.check(
            ncclAllGather(part_.data, whole.data, count(part_.bytes()), type_, comm_.get(), comm_.stream()),
            "ncclAllGather");
      case Operation::broadcast:
        return comm_.check(
            ncclBroadcast(whole.data, whole.data, count(whole.bytes()), type_, 0, comm_.get(), comm_.stream()),
            "ncclBroadcast");
    }
  }

  Communicator& comm_;
  CopyEngines* engines_;  // null: NCCL's ring
  Operation operation_;
  std::string what_;    // "nccl all-reduce of grad.bucket.2"
  std::uint32_t name_;  // in the recorder
  Wire wire_;           // not narrow in an all-gather
  Span part_;           // own_part()
  Span moved_part_;     // the same as it crosses the network: of a reduce-scatter in narrower numbers, in the wire
  ncclDataType_t type_;
  double* squares_ = nullptr;                   // where to leave partial sums of squares; null: nowhere
  std::unique_ptr<CopyEngineTransfer> copies_;  // from connect() on, with copy engines
  Event ready_{cudaEventDisableTiming}, done_{cudaEventDisableTiming};  // order the streams
  Event begin_, end_, joined_;                                          // for timing
  bool was_started_ = false, was_joined_ = false;
};

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const World& world, TransferMethod method, bool has_pinned_ring)
      : world_(world),
        engines_(method == TransferMethod::ring ? nullptr : make_engines(method)),
        comm_(world, engines_ ? kernels::cuda::lowest_priority() : kernels::cuda::highest_priority()),
        has_pinned_ring_(has_pinned_ring) {
    if (engines_) comm_.family().use(engines_.get());
  }

  NcclCollectives(NcclCollectives& all, int group)
      : world_(all.world_),
        why_ring_(all.engines_ ? "they serve all ranks together" : all.why_ring_),
        comm_(all.comm_, group, kernels::cuda::highest_priority()),
        has_pinned_ring_(all.has_pinned_ring_) {}

  ~NcclCollectives() override {
    if (!engines_) return;
    const bool is_orderly = !comm_.is_leaving();
    if (!is_orderly) abandon();
    cudaStreamSynchronize(comm_.stream());  // transfers in flight use the other ranks' memory
    comm_.family().use(nullptr);
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
           (engines_ ? ", transfers by copy engines" : ", transfers by the ring") +
           (why_ring_.empty() ? "" : " (copy engines are not available: " + why_ring_ + ")");
  }

  bool is_asynchronous() const override { return true; }

  std::int64_t device_bytes() const override { return engines_ ? engines_->device_bytes() : 0; }

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }

  std::unique_ptr<Transfer> make_all_reduce(const Span& span, const Span& wire) override {
    return make({.operation = Operation::all_reduce, .span = span, .wire = wire});
  }
  std::unique_ptr<Transfer> make_reduce_scatter(const Span& span, const Span& wire, const Span& part) override {
    return make({.operation = Operation::reduce_scatter, .span = span, .wire = wire, .part = part});
  }
  std::unique_ptr<Transfer> make_all_gather(const Span& part, const Span& whole) override {
    return make({.operation = Operation::all_gather, .span = whole, .part = part});
  }

  std::unique_ptr<Transfer> make_broadcast(const Span& span) override {
    return make({.operation = Operation::broadcast, .span = span});
  }

  std::unique_ptr<Collectives> make_group(int group) override {
    return std::make_unique<NcclCollectives>(*this, group);
  }

  Device instance() const override { return comm_.instance(); }

  void broadcast(const Span& span) override {
    const std::unique_ptr<Transfer> transfer = make_broadcast(span);
    transfer->start(instance());
    comm_.drain();
  }

  std::string fault() override { return comm_.family().fault(); }
  void abandon() override { comm_.family().abandon(); }

 private:
  /// Null, with the reason in why_ring_, if the ranks cannot use them. Collective.
  std::unique_ptr<CopyEngines> make_engines(TransferMethod method) {
    auto engines = std::make_unique<CopyEngines>(world_);
    why_ring_ = engines->fault();
    if (why_ring_.empty()) return engines;
    engines->close();
    world_.barrier();
    if (method == TransferMethod::automatic) return nullptr;
    throw EnvironmentError("parallel.all_reduce = \"copy_engine\": " + why_ring_ +
                           "; set parallel.all_reduce = \"ring\"");
  }

  std::unique_ptr<Transfer> make(const Message& message) {
    return std::make_unique<NcclTransfer>(comm_, engines_.get(), message);
  }

  const World& world_;
  std::string why_ring_;
  std::unique_ptr<CopyEngines> engines_;  // null: NCCL's ring
  Communicator comm_;
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
