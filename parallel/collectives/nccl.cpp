#include "parallel/collectives/nccl.hpp"

#include <nccl.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/core/events.hpp"
#include "kernels/cuda/event.hpp"
#include "kernels/cuda/stream.hpp"
#include "parallel/collectives/copy_engine.hpp"
#include "parallel/device.hpp"
#include "parallel/errors.hpp"
#include "parallel/collectives/nccl_communicator.hpp"
#include "parallel/collectives/parts.hpp"
#include "parallel/collectives/wire.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

using kernels::Device;
using kernels::cuda::Event;

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

/// What is transferred.
struct Message {
  Operation operation;
  Span span;                     // an all-gather's whole
  Span wire = {};                // of a sum
  Span part = {};                // this rank's, of an all-gather; of a reduce-scatter where its sum goes, or empty
  Beside beside = Beside::work;  // of an all-reduce
};

class NcclTransfer final : public Transfer {
 public:
  /// `engines`: null if it goes by NCCL's ring; `label`: that of the collectives.
  NcclTransfer(Communicator& comm, CopyEngines* engines, const Message& message, const std::string& label)
      : comm_(comm),
        engines_(message.span.count > 0 ? engines : nullptr),
        operation_(message.operation),
        beside_(message.beside),
        what_("nccl " + std::string(name_of(operation_)) + " of " + message.span.label),
        name_(comm.log().recorder().name(label, message.span.label)),
        wire_(("nccl " + std::string(name_of(operation_))).c_str(), message.span, message.wire),
        part_(own_part(message)),
        moved_part_(operation_ == Operation::reduce_scatter && wire_.is_narrow() ? place_in(wire_.message()) : part_),
        type_(sums() ? summed_type_of(what_, wire_.message()) : ncclUint8) {
    if (operation_ == Operation::all_gather) require_part_of(message.span);
    for (const Span& span : {message.span, message.wire, part_}) require_device_memory(what_, span);
  }

  void connect() override {
    if (engines_) copies_ = engines_->make(operation_, wire_.message(), moved_part_.data, squares_, beside_);
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
    const Device& on = fork(exec);
    begin_.stamp(on.cuda_stream());
    comm_.log().start(begin_, on.cuda_stream(), name_, wire_.message().bytes());
    wire_.narrow(on);
    if (engines_) {
      copies_->enqueue(on);
    } else {
      enqueue_ring();
    }
    if (operation_ == Operation::reduce_scatter) {
      wire_.widen(on, comm_.rank() * part_.count, part_);
    } else {
      wire_.widen(on);
    }
    if (channel()) {  // the communication stream passes the ends in the order of the starts
      CUDA_CHECK(cudaEventRecord(ready_, on.cuda_stream()));
      CUDA_CHECK(cudaStreamWaitEvent(comm_.stream(), ready_, 0));
    }
    is_captured_ = end_.stamp(comm_.stream());
    if (is_captured_) CUDA_CHECK(cudaEventRecord(done_, comm_.stream()));  // last: every fork has to be joined
    comm_.log().end(end_, comm_.stream());
    was_started_ = true;
    was_joined_ = false;
  }

  bool test() override { return end_.has_happened(); }

  void join(const Device& exec) override {
    if (!was_started_ || exec.cuda_stream() == comm_.stream()) return;  // what follows there waits for nothing
    joined_.stamp(exec.cuda_stream());
    CUDA_CHECK(cudaStreamWaitEvent(exec.cuda_stream(), is_captured_ ? done_ : end_, 0));
    was_joined_ = true;
  }

  Times times() override {
    if (!was_started_ || !test()) throw std::logic_error(what_ + ": times requested while it runs");
    const double end_s = comm_.seconds_at(end_);
    return {comm_.seconds_at(begin_), end_s, was_joined_ ? comm_.seconds_at(joined_) : end_s};
  }

 private:
  const Device* channel() const { return copies_ ? copies_->channel() : nullptr; }

  /// The instance on which the transfer runs, behind the work of `exec`: that of its channel, or the communication stream's.
  const Device& fork(const Device& exec) {
    const Device& on = channel() ? *channel() : comm_.instance();
    if (exec.cuda_stream() == on.cuda_stream()) return on;
    CUDA_CHECK(cudaEventRecord(ready_, exec.cuda_stream()));
    CUDA_CHECK(cudaStreamWaitEvent(on.cuda_stream(), ready_, 0));
    return on;
  }

  bool sums() const { return operation_ == Operation::all_reduce || operation_ == Operation::reduce_scatter; }

  /// What this rank gives to an all-gather, or where its part of a reduce-scatter ends; of others, nothing.
  Span own_part(const Message& message) const {
    switch (operation_) {
      case Operation::all_gather: return message.part;
      case Operation::reduce_scatter: return sum_place(what_, message.part, message.span, comm_.rank(), comm_.size());
      case Operation::all_reduce:
      case Operation::broadcast: break;
    }
    return {};
  }

  /// This rank's place among the parts of `whole`.
  Span place_in(const Span& whole) const { return sum_place(what_, {}, whole, comm_.rank(), comm_.size()); }

  void require_part_of(const Span& whole) const {
    require_part(what_, part_, whole, comm_.size());
    if (overlap(part_, whole) && part_.data != place_in(whole).data) {
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
  Beside beside_;
  std::string what_;    // "nccl all-reduce of grad.bucket.2"
  std::uint32_t name_;  // in the recorder
  Wire wire_;           // not narrow in an all-gather
  Span part_;           // own_part()
  Span moved_part_;     // the same as it crosses the network: of a reduce-scatter in narrower numbers, in the wire
  ncclDataType_t type_;
  double* squares_ = nullptr;                   // where to leave partial sums of squares; null: nowhere
  std::unique_ptr<CopyEngineTransfer> copies_;  // from connect() on, with copy engines
  Event ready_{cudaEventDisableTiming}, done_{cudaEventDisableTiming};  // order the streams; done_ under capture alone
  Event begin_, end_, joined_;                                          // time them; end_ orders them outside of one
  bool was_started_ = false, was_joined_ = false, is_captured_ = false;
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
      engines_->free();
    } catch (const Error&) {  // no rank is left to wait for
    }
  }

  std::string name() const override { return "nccl"; }
  std::string means_of(Operation operation) const override { return engines_for(operation) ? "copy_engine" : "nccl"; }

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
  bool can_yield() const override { return engines_ != nullptr && size() > 1; }

  std::int64_t device_bytes() const override { return engines_ ? engines_->device_bytes() : 0; }

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }

  std::unique_ptr<Transfer> make_all_reduce(const Span& span, const Span& wire, Beside beside) override {
    return make({.operation = Operation::all_reduce, .span = span, .wire = wire, .beside = beside});
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
    engines->free();
    if (method == TransferMethod::automatic) return nullptr;
    throw EnvironmentError("parallel.all_reduce = \"copy_engine\": " + why_ring_ +
                           "; set parallel.all_reduce = \"ring\"");
  }

  /// Null: NCCL's ring.
  CopyEngines* engines_for(Operation operation) const {
    return operation == Operation::broadcast ? nullptr : engines_.get();
  }

  std::unique_ptr<Transfer> make(const Message& message) {
    const Operation operation = message.operation;
    return std::make_unique<NcclTransfer>(comm_, engines_for(operation), message, label(operation));
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
