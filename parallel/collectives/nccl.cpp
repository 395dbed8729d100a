#include "parallel/collectives/nccl.hpp"

#include <nccl.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "parallel/collectives/nccl_communicator.hpp"
#include "parallel/collectives/stream_transfer.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

using kernels::Device;

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

  std::unique_ptr<Transfer> make_all_reduce(const Span& span, const Span& wire, Overlap) override {
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

  Device instance() const override { return comm_.stream().instance(); }

  void broadcast(const Span& span) override {
    const std::unique_ptr<Transfer> transfer = make_broadcast(span);
    transfer->start(instance());
    comm_.drain();
  }

  std::string fault() override { return comm_.family().fault(); }
  void abandon() override { comm_.family().abandon(); }

 private:
  std::unique_ptr<Transfer> make(const Message& message) { return std::make_unique<NcclTransfer>(comm_, message); }

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
