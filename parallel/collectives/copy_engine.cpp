#include "parallel/collectives/copy_engine.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>

#include "kernels/core/byte_copies.hpp"
#include "kernels/core/words.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/cuda/check.hpp"
#include "parallel/errors.hpp"
#include "parallel/collectives/family.hpp"
#include "parallel/collectives/parts.hpp"
#include "parallel/collectives/squares.hpp"
#include "parallel/collectives/stream_transfer.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

using kernels::ceil_div;
using kernels::Device;
using kernels::round_up;

constexpr std::int64_t kAlignment = 256;  // of parts [bytes]
constexpr std::uintptr_t kPage = 4096;    // of the receive buffer [bytes]

// The receive buffer's parts [bytes]; a run uses the reduce-scatters' or the channels'. Each piece's sum may have to
// wait for SMs, and each piece takes two barriers: fewer are better. In a step of four H200s (large, 4 x 512 each)
// pieces of 5, 8 and 16 MiB took 35.7, 32.9 and 32.8 ms.
constexpr std::int64_t kOfReduceScatters = std::int64_t{64} << 20;

/// An array's address for another process: its allocation and the offset in it.
struct Address {
  cudaIpcMemHandle_t allocation;
  std::int64_t offset;
};

/// Empty if the allocation cannot be shared with another process.
std::string address_of(void* data) {
  CUdeviceptr begin = 0;
  Address address{};
  if (cuMemGetAddressRange(&begin, nullptr, reinterpret_cast<CUdeviceptr>(data)) != CUDA_SUCCESS) return "";
  if (cudaIpcGetMemHandle(&address.allocation, reinterpret_cast<void*>(begin)) != cudaSuccess) {
    cudaGetLastError();  // clears it
    return "";
  }
  address.offset = static_cast<std::int64_t>(reinterpret_cast<CUdeviceptr>(data) - begin);
  return std::string(reinterpret_cast<const char*>(&address), sizeof address);
}

static_assert(kMaxCopyEngineRanks <= kernels::SumParts<Device, float>::kMaxParts);

/// Enqueues nothing if the bytes are already in place.
void copy(char* to, const char* from, std::int64_t bytes, cudaStream_t stream) {
  if (bytes == 0 || to == from) return;
  CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
}

/// Each rank starts with its successor, so that no two send to the same rank at once.
template <class Action>
void for_each_peer(int rank, int ranks, const Action& action) {
  for (int i = 1; i < ranks; ++i) action((rank + i) % ranks);
}

}  // namespace

PeerArray::PeerArray(const World& world, void* mine) : arrays_(world.size()) {
  const std::vector<std::string> addresses = world.all_gather(address_of(mine));
  std::string fault;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank()) {
      arrays_[rank] = static_cast<char*>(mine);
      continue;
    }
    Address address{};
    if (addresses[rank].size() != sizeof address) {
      fault = "memory of rank " + std::to_string(rank) + " cannot be shared between processes";
      break;
    }
    std::memcpy(&address, addresses[rank].data(), sizeof address);
    void* begin = nullptr;
    const cudaError_t status = cudaIpcOpenMemHandle(&begin, address.allocation, cudaIpcMemLazyEnablePeerAccess);
    if (status != cudaSuccess) {
      cudaGetLastError();  // clears it
      fault = "rank " + std::to_string(world.rank()) + " cannot reach the memory of rank " + std::to_string(rank) +
              ": " + cudaGetErrorString(status);
      break;
    }
    opened_.push_back(begin);
    arrays_[rank] = static_cast<char*>(begin) + address.offset;
  }
  fault_ = first_fault(world, fault);
}

PeerArray::~PeerArray() {
  for (void* begin : opened_) cudaIpcCloseMemHandle(begin);
}

CopyEngines::CopyEngines(const World& world) : world_(world), rank_(world.rank()), ranks_(world.size()) {
  if (world.any(world.local_size() != ranks_)) {
    fault_ = "the ranks are on several hosts";
  } else if (ranks_ > kMaxCopyEngineRanks) {
    fault_ = "there are more than " + std::to_string(kMaxCopyEngineRanks) + " ranks";
  }
  if (!fault_.empty() || ranks_ == 1) return;
  memory_ = static_cast<char*>(
      Kokkos::kokkos_malloc<Device::memory_space>("tessera::parallel::receive", receive_bytes(ranks_) + kPage));
  buffer_ = reinterpret_cast<char*>(round_up(reinterpret_cast<std::uintptr_t>(memory_), kPage));
  buffers_ = std::make_unique<PeerArray>(world, buffer_);
  barrier_ = std::make_unique<StreamBarrier>(world, 1 + kChannels);
  fault_ = buffers_->fault().empty() ? barrier_->fault() : buffers_->fault();
}

void CopyEngines::close() {
  for (const auto& channel : channels_) cudaStreamSynchronize(channel.instance().cuda_stream());
  buffers_.reset();
}

void CopyEngines::free() { Kokkos::kokkos_free<Device::memory_space>(std::exchange(memory_, nullptr)); }

std::int64_t CopyEngines::part_bytes(Operation operation, const Span& span) const {
  const std::int64_t bytes = ceil_div(span.bytes(), ranks_);
  return operation == Operation::all_reduce ? round_up(bytes, kAlignment) : bytes;
}

CopyEngines::Range CopyEngines::own_part(Operation operation, const Span& span) const {
  const std::int64_t part = part_bytes(operation, span), first = std::min(rank_ * part, span.bytes());
  return {first, std::min(part, span.bytes() - first)};
}

int CopyEngines::take_channel(Operation operation, Overlap overlap) {
  if (ranks_ == 1 || operation != Operation::all_reduce || overlap == Overlap::none) return kNoChannel;
  return std::exchange(next_channel_, (next_channel_ + 1) % kChannels);
}

CopyEngines::Range CopyEngines::room(int channel) const {
  static_assert(receive_bytes(1) == kOfReduceScatters);
  if (channel == kNoChannel) return {0, kOfReduceScatters};
  const std::int64_t bytes = (receive_bytes(ranks_) - kOfReduceScatters) / kChannels;
  return {kOfReduceScatters + channel * bytes, bytes};
}

std::int64_t CopyEngines::slot_bytes(int channel) const {
  return room(channel).count / (ranks_ - 1) / kAlignment * kAlignment;
}

std::unique_ptr<CopyEngineMove> CopyEngines::make(Operation operation, const Span& span, void* part, double* squares,
                                                  Overlap overlap) {
  if (operation == Operation::broadcast) throw std::invalid_argument("copy engines: no broadcast goes by them");
  std::unique_ptr<CopyEngineMove> transfer(
      new CopyEngineMove(*this, operation, span, part, squares, take_channel(operation, overlap)));
  if (const std::string& fault = transfer->arrays_.fault(); !fault.empty()) {
    const std::string text = std::string(name_of(operation)) + " of " + span.label + " by copy engines: " + fault +
                             "; parallel.transfers=\"ring\" avoids them";
    if (tells_of_no_memory(fault)) throw MemoryError(text);
    throw EnvironmentError(text);
  }
  return transfer;
}

CopyEngineMove::CopyEngineMove(const CopyEngines& engines, Operation operation, const Span& span, void* part,
                               double* squares, int channel)
    : engines_(engines),
      operation_(operation),
      span_(span),
      part_bytes_(engines.part_bytes(operation, span)),
      part_(static_cast<char*>(part)),
      squares_(squares),
      channel_(channel),
      arrays_(engines.world_, span.data) {}

const Device* CopyEngineMove::channel() const {
  return channel_ == CopyEngines::kNoChannel ? nullptr
                                             : &engines_.channels_[static_cast<std::size_t>(channel_)].instance();
}

void CopyEngineMove::enqueue(const Device& exec) const {
  if (operation_ == Operation::all_gather) {
    gather(exec);
  } else if (engines_.ranks_ > 1 && operation_ == Operation::all_reduce && channel_ == CopyEngines::kNoChannel) {
    sum_by_kernel(exec);  // nothing is computed beside it
  } else if (engines_.ranks_ > 1) {
    sum(exec);
  } else if (part_ != nullptr) {
    copy(part_, arrays_.of(0), span_.bytes(), exec.cuda_stream());
  }
}

void CopyEngineMove::sum(const Device& exec) const {
  const CopyEngines& e = engines_;
  const cudaStream_t stream = exec.cuda_stream();
  const bool gathers = operation_ == Operation::all_reduce;
  const std::int64_t most =
      (e.slot_bytes(channel_) - kAlignment) / Squares::kBytes * Squares::kBytes;  // of each part in a piece
  for (std::int64_t done = 0; done < part_bytes_; done += most) {
    const std::int64_t end = std::min(done + most, part_bytes_);
    const auto begin_of = [&](int rank) { return std::min(rank * part_bytes_ + done, span_.bytes()); };
    const auto bytes_of_piece = [&](int rank) {
      return std::min(rank * part_bytes_ + end, span_.bytes()) - begin_of(rank);
    };
    const char* const mine = arrays_.of(e.rank_);
    char* const own = arrays_.of(e.rank_) + begin_of(e.rank_);

    for_each_peer(e.rank_, e.ranks_, [&](int peer) {
      copy(slot(e.rank_, peer, arrays_.of(peer) + begin_of(peer)), mine + begin_of(peer), bytes_of_piece(peer), stream);
    });
    e.meet(channel_, 0, stream);
    add(exec, own, done, bytes_of_piece(e.rank_));
    if (gathers) {
      for_each_peer(e.rank_, e.ranks_, [&](int peer) {
        copy(arrays_.of(peer) + begin_of(e.rank_), own, bytes_of_piece(e.rank_), stream);
      });
    }
    e.meet(channel_, 1, stream);
  }
}

/// Adds this rank's part of every rank's span, and writes the sum to all of them, by one kernel.
void CopyEngineMove::sum_by_kernel(const Device& exec) const {
  const CopyEngines& e = engines_;
  const CopyEngines::Range own = e.own_part(operation_, span_);
  std::array<const void*, kMaxCopyEngineRanks> parts{};
  std::array<void*, kMaxCopyEngineRanks> copies{};
  std::size_t copied = 0;
  for (int rank = 0; rank < e.ranks_; ++rank) parts[rank] = arrays_.of(rank) + own.first;
  for_each_peer(e.rank_, e.ranks_, [&](int peer) { copies[copied++] = arrays_.of(peer) + own.first; });
  e.meet(channel_, 0, exec.cuda_stream());
  if (own.count > 0) {
    sum_parts(exec, std::span(parts).first(e.ranks_),
              {span_.label, arrays_.of(e.rank_) + own.first, own.count / bytes_of(span_.dtype), span_.dtype}, squares_,
              std::span(copies).first(copied));
  }
  e.meet(channel_, 1, exec.cuda_stream());
}

/// Its own part comes last: that copy needs SMs and may have to wait for them, which should delay no other rank.
void CopyEngineMove::gather(const Device& exec) const {
  const CopyEngines& e = engines_;
  const cudaStream_t stream = exec.cuda_stream();
  const auto place_in_whole_of = [&](int rank) { return arrays_.of(rank) + e.rank_ * part_bytes_; };
  if (e.ranks_ > 1) {
    e.meet(channel_, 0, stream);
    for_each_peer(e.rank_, e.ranks_, [&](int peer) { copy(place_in_whole_of(peer), part_, part_bytes_, stream); });
    e.meet(channel_, 1, stream);
  }
  if (char* const own = place_in_whole_of(e.rank_); own != part_) {
    kernels::copy_bytes(exec, part_, own, static_cast<std::size_t>(part_bytes_));
  }
}

/// Address in the buffer of `receiver` for `sender`'s contribution to `own`, the receiver's part of a span. Aligned
/// like `own`: copies between addresses of different alignment take almost twice as long.
char* CopyEngineMove::slot(int sender, int receiver, const char* own) const {
  const int index = sender < receiver ? sender : sender - 1;
  return engines_.buffers_->of(receiver) + engines_.room(channel_).first + index * engines_.slot_bytes(channel_) +
         reinterpret_cast<std::uintptr_t>(own) % kAlignment;
}

/// Sums a piece of this rank's part, `done` bytes after its begin, in rank order: its own values and, from the receive
/// buffer, the others'.
void CopyEngineMove::add(const Device& exec, char* own, std::int64_t done, std::int64_t bytes) const {
  if (bytes == 0) return;
  const CopyEngines& e = engines_;
  std::array<const void*, kMaxCopyEngineRanks> parts{};
  for (int rank = 0; rank < e.ranks_; ++rank) parts[rank] = rank == e.rank_ ? own : slot(rank, e.rank_, own);
  char* const to = part_ == nullptr ? own : part_ + done;
  sum_parts(exec, std::span(parts).first(e.ranks_), {span_.label, to, bytes / bytes_of(span_.dtype), span_.dtype},
            squares_ == nullptr ? nullptr : squares_ + Squares::count_of(done));
}

namespace {

class CopyEngineTransfer final : public StreamTransfer {
 public:
  CopyEngineTransfer(CopyEngines& engines, TransferStream& stream, const Message& message, int rank, int size)
      : StreamTransfer("copy_engine", stream, message, rank, size), engines_(engines), overlap_(message.overlap) {}

  void connect() override {
    if (moves_bytes()) copies_ = engines_.make(operation_, message(), moved_part().data, squares_, overlap_);
  }

  bool leave_squares(Squares& room) override {
    if (!moves_bytes() || !sums() || size_ == 1) return false;
    squares_ = room.take(engines_.own_bytes(operation_, message()));
    return true;
  }

 private:
  bool moves_bytes() const { return message().count > 0; }

  const Device& runs_on() const override {
    if (moves_bytes() && !copies_) throw std::logic_error(what_ + ": connect it before the first start");
    const Device* const channel = copies_ ? copies_->channel() : nullptr;
    return channel ? *channel : StreamTransfer::runs_on();
  }
  void move(const Device& on) override {
    if (copies_) copies_->enqueue(on);
  }

  CopyEngines& engines_;
  Overlap overlap_;
  double* squares_ = nullptr;               // where to leave partial sums of squares; null: nowhere
  std::unique_ptr<CopyEngineMove> copies_;  // from connect() on
};

class CopyEngineCollectives final : public Collectives, private Family::Member {
 public:
  CopyEngineCollectives(const World& world, std::unique_ptr<CopyEngines> engines,
                        std::shared_ptr<TransferStream> stream, std::shared_ptr<Family> family,
                        std::unique_ptr<Collectives> others)
      : world_(world),
        stream_(std::move(stream)),
        family_(std::move(family)),
        others_(std::move(others)),
        engines_(std::move(engines)) {
    family_->add(*this);
  }

  ~CopyEngineCollectives() override {
    const bool ends_in_order = family_->ends_in_order(world_);
    if (!ends_in_order) family_->abandon();
    cudaStreamSynchronize(stream_->get());  // transfers in flight use the other ranks' memory
    family_->remove(*this);
    engines_->close();
    if (!ends_in_order) return;
    try {
      world_.barrier();
      engines_->free();
    } catch (const Error&) {  // no rank is left to wait for
    }
  }

  std::string name() const override { return "copy_engine"; }
  std::string means_of(Operation operation) const override {
    return operation == Operation::broadcast ? others_->means_of(operation) : name();
  }
  std::string description() const override { return others_->description(); }

  bool is_asynchronous() const override { return true; }
  bool can_yield() const override { return size() > 1; }
  std::int64_t device_bytes() const override { return engines_->device_bytes(); }
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }

  std::unique_ptr<Transfer> make(const Message& message) override {
    if (message.operation == Operation::broadcast) return others_->make(message);
    return std::make_unique<CopyEngineTransfer>(*engines_, *stream_, message, rank(), size());
  }
  void broadcast(const Span& span) override { others_->broadcast(span); }
  std::unique_ptr<Collectives> make_group(int group) override { return others_->make_group(group); }

  Device instance() const override { return stream_->instance(); }
  std::string fault() override { return family_->fault(); }
  void abandon() override { family_->abandon(); }

 private:
  void abandon_own() override { engines_->abandon(); }

  const World& world_;
  std::shared_ptr<TransferStream> stream_;
  std::shared_ptr<Family> family_;
  std::unique_ptr<Collectives> others_;
  std::unique_ptr<CopyEngines> engines_;
};

}  // namespace

std::unique_ptr<Collectives> make_copy_engine_collectives(const World& world, std::unique_ptr<CopyEngines> engines,
                                                          std::shared_ptr<TransferStream> stream,
                                                          std::shared_ptr<Family> family,
                                                          std::unique_ptr<Collectives> others) {
  return std::make_unique<CopyEngineCollectives>(world, std::move(engines), std::move(stream), std::move(family),
                                                 std::move(others));
}

}  // namespace tessera::parallel
