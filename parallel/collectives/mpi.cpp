#include "parallel/collectives/mpi.hpp"  // the contract is there; here is how

#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/device_info.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/side_stream.hpp"
#include "parallel/watch/flight_recorder.hpp"
#include "parallel/collectives/mpi_check.hpp"
#include "parallel/collectives/parts.hpp"

namespace tessera::parallel {
namespace {

using kernels::Device;

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;  // of one call: MPI counts are ints

using HostBytes = Kokkos::View<unsigned char*, Kokkos::HostSpace, kernels::Unmanaged>;
using DeviceBytes = Kokkos::View<unsigned char*, Device::memory_space, kernels::Unmanaged>;

/// Sums of 16-bit floats, which MPI lacks. Each addition rounds once.
template <class Scalar>
void add_16_bit(void* from, void* to, int* count, MPI_Datatype*) {
  const auto* a = static_cast<const Scalar*>(from);
  auto* b = static_cast<Scalar*>(to);
  for (int i = 0; i < *count; ++i) b[i] = Scalar(static_cast<float>(a[i]) + static_cast<float>(b[i]));
}

/// How MPI sums a dtype.
class Sum {
 public:
  Sum() {
    MPI_CHECK(MPI_Type_contiguous(2, MPI_BYTE, &two_bytes_));
    MPI_CHECK(MPI_Type_commit(&two_bytes_));
    MPI_CHECK(MPI_Op_create(&add_16_bit<bfloat16>, 1, &add_bf16_));
    MPI_CHECK(MPI_Op_create(&add_16_bit<float16>, 1, &add_fp16_));
  }
  ~Sum() {
    MPI_Op_free(&add_fp16_);
    MPI_Op_free(&add_bf16_);
    MPI_Type_free(&two_bytes_);
  }
  Sum(const Sum&) = delete;
  Sum& operator=(const Sum&) = delete;

  std::pair<MPI_Datatype, MPI_Op> of(const std::string& what, Dtype dtype) const {
    switch (dtype) {
      case Dtype::fp64: return {MPI_DOUBLE, MPI_SUM};
      case Dtype::fp32: return {MPI_FLOAT, MPI_SUM};
      case Dtype::bf16: return {two_bytes_, add_bf16_};
      case Dtype::fp16: return {two_bytes_, add_fp16_};
      case Dtype::int32: break;
    }
    throw std::invalid_argument(what + ": " + std::string(name_of(dtype)) + " cannot be summed");
  }

 private:
  MPI_Datatype two_bytes_ = MPI_DATATYPE_NULL;
  MPI_Op add_bf16_ = MPI_OP_NULL, add_fp16_ = MPI_OP_NULL;
};

/// MPI reads host memory immediately, and copies out of staging must have finished.
void finish_copies(const Device& exec) {
  if constexpr (!kernels::kIsHost<Device>) exec.fence();
}

/// A span's bytes, in memory that MPI can access or on the device.
class Bytes {
 public:
  explicit Bytes(const Span& span)
      : data_(static_cast<char*>(span.data)), is_on_device_(kernels::is_device_memory(span.data)) {}

  bool is_reachable() const { return !is_on_device_; }
  char* at(std::int64_t first) const { return data_ + first; }

  // Bytes `first` .. `first + count - 1` into host memory and back, after the work on `exec`.
  void fetch(const Device& exec, std::int64_t first, std::int64_t count, char* to) const {
    if (is_on_device_) {
      Kokkos::deep_copy(exec, on_host(to, count), on_device(first, count));
    } else {
      finish_copies(exec);
      std::copy_n(at(first), count, to);
    }
  }
  void put_back(const Device& exec, std::int64_t first, std::int64_t count, char* from) const {
    if (is_on_device_) {
      Kokkos::deep_copy(exec, on_device(first, count), on_host(from, count));
    } else {
      std::copy_n(from, count, at(first));
    }
  }

 private:
  static HostBytes on_host(char* data, std::int64_t count) {
    return HostBytes(reinterpret_cast<unsigned char*>(data), static_cast<std::size_t>(count));
  }
  DeviceBytes on_device(std::int64_t first, std::int64_t count) const {
    return DeviceBytes(reinterpret_cast<unsigned char*>(at(first)), static_cast<std::size_t>(count));
  }

  char* data_;
  bool is_on_device_;
};

class MpiTransfer;

/// The transfers in progress on a communicator, first come first served: at most kPiecesInFlight pieces at a time.
/// Every rank starts the same transfers in the same order, so all call MPI in the same order, whenever they poll.
class PieceQueue {
 public:
  /// Pieces may stage `bytes` each from here on.
  void reserve(std::int64_t bytes) {
    staged_ = std::max(staged_, static_cast<std::size_t>(bytes));
    for (Slot& slot : slots_) {
      if (slot.is_free) slot.staging.resize(staged_);
    }
  }

  void push(MpiTransfer& transfer) {
    waiting_.push_back(&transfer);
    post();
  }

  /// Takes pieces that have arrived and posts those that have room, without waiting.
  void poll() {
    int has_arrived = 1;
    while (in_flight_ > 0) {
      MPI_CHECK(MPI_Test(&slots_[oldest_].request, &has_arrived, MPI_STATUS_IGNORE));
      if (has_arrived == 0) break;
      take();
    }
    post();
  }

  /// The same after waiting for the oldest piece.
  void wait() {
    MPI_CHECK(MPI_Wait(&slots_[oldest_].request, MPI_STATUS_IGNORE));
    take();
    poll();
  }

  /// A rank that leaves may destroy a transfer in progress.
  void forget(const MpiTransfer& transfer) {
    if (!waiting_.empty() && waiting_.front() == &transfer) next_piece_ = 0;
    std::erase(waiting_, &transfer);
    for (Slot& slot : slots_) {
      if (slot.transfer == &transfer) slot.transfer = nullptr;
    }
  }

 private:
  struct Slot {
    MPI_Request request = MPI_REQUEST_NULL;
    bool is_free = true;
    MpiTransfer* transfer = nullptr;  // null: forgotten
    std::int64_t piece = 0;
    std::vector<char> staging;
  };

  void take();
  void post();

  std::array<Slot, kPiecesInFlight> slots_;
  int oldest_ = 0, in_flight_ = 0;
  std::size_t staged_ = 0;             // bytes of a piece
  std::vector<MpiTransfer*> waiting_;  // with pieces that are not posted
  std::int64_t next_piece_ = 0;        // of the first of them
};

/// The participating ranks, their transfers in flight, and the recorder.
struct Group {
  Group(MPI_Comm all, FlightRecorder& recorder, std::function<void()> on_piece)
      : comm(all), recorder(recorder), on_piece(std::move(on_piece)) {
    MPI_CHECK(MPI_Comm_rank(comm, &rank));
    MPI_CHECK(MPI_Comm_size(comm, &size));
  }

  MPI_Comm comm;
  int rank = 0, size = 1;
  FlightRecorder& recorder;
  std::function<void()> on_piece;
  std::shared_ptr<PieceQueue> queue = std::make_shared<PieceQueue>();
};

/// Common to the transfers: they cross the network in pieces, each in one call of MPI; times of begin and end.
class MpiTransfer : public Transfer {
 public:
  ~MpiTransfer() override { queue_->forget(*this); }

  void start(const Device& exec) override {
    exec_ = exec;
    prepare(exec);
    start_s_ = events::now_s();
    number_ = recorder_.begin(name_, bytes_);
    is_complete_ = is_joining_ = false;
    was_started_ = true;
    missing_ = pieces_;
    if (missing_ == 0) return end();
    queue_->push(*this);
  }

  bool test() override {
    if (!is_complete_) queue_->poll();
    return is_complete_;
  }

  void join(const Device& exec) override {
    if (!is_complete_) {
      is_joining_ = true;
      joined_s_ = events::now_s();
      while (!is_complete_) queue_->wait();
    }
    if (was_started_) arrived_.wait(exec, 0);  // what was enqueued where the transfer was started
  }

  Times times() override {
    if (!is_complete_) throw std::logic_error(what_ + ": times requested while it runs");
    return {start_s_, end_s_, joined_s_};
  }

 protected:
  MpiTransfer(const Message& message, const Group& group)
      : what_("mpi " + std::string(name_of(message.operation)) + " of " + message.span.label),
        comm_(group.comm),
        rank_(group.rank),
        size_(group.size),
        queue_(group.queue),
        recorder_(group.recorder),
        on_piece_(group.on_piece),
        name_(recorder_.name(label_of(message.operation, "mpi"), message.span.label)),
        bytes_(message.wire.count != 0 ? message.wire.bytes() : message.span.bytes()) {}

  /// `count` elements, or bytes, go in pieces of `most`, each of which stages `staged` bytes.
  void cut(std::int64_t count, std::int64_t most, std::int64_t staged) {
    count_ = count;
    most_ = std::min(most, std::max<std::int64_t>(count, 1));
    pieces_ = (count + most_ - 1) / most_;
    queue_->reserve(staged);
  }

  // Of elements, or bytes, first .. first + count - 1:
  virtual void prepare(const Device&) {}  // before the first piece, enqueued
  virtual void send(std::int64_t first, int count, char* staging, MPI_Request* request) = 0;
  virtual void receive(std::int64_t first, int count, char* staging) = 0;
  virtual void complete(const Device&) {}  // after the last piece, enqueued

  const std::string what_;  // "mpi all-reduce of grad.bucket.2"
  MPI_Comm comm_;
  const int rank_, size_;
  Device exec_;

 private:
  friend class PieceQueue;

  int count_of(std::int64_t piece) const { return static_cast<int>(std::min(most_, count_ - piece * most_)); }
  void post(std::int64_t piece, char* staging, MPI_Request* request) {
    send(piece * most_, count_of(piece), staging, request);
  }
  void take(std::int64_t piece, char* staging) {  // which has arrived
    receive(piece * most_, count_of(piece), staging);
    on_piece_();
    if (--missing_ == 0) end();
  }

  void end() {
    end_s_ = events::now_s();
    if (!is_joining_) joined_s_ = end_s_;
    recorder_.end(number_);
    is_complete_ = true;
    complete(exec_);
    arrived_.record(exec_, 0);
  }

  std::shared_ptr<PieceQueue> queue_;
  FlightRecorder& recorder_;
  std::function<void()> on_piece_;
  std::uint32_t name_;        // in the recorder
  std::uint64_t number_ = 0;  // of its latest start there
  std::int64_t bytes_;
  std::int64_t count_ = 0, most_ = 1, pieces_ = 0, missing_ = 0;
  double start_s_ = 0, end_s_ = 0, joined_s_ = 0;
  bool is_complete_ = true, is_joining_ = false, was_started_ = false;
  kernels::StreamOrder arrived_{1};
};

void PieceQueue::take() {
  Slot& slot = slots_[oldest_];
  oldest_ = (oldest_ + 1) % kPiecesInFlight;
  --in_flight_;
  slot.is_free = true;
  MpiTransfer* const transfer = std::exchange(slot.transfer, nullptr);
  if (transfer != nullptr) transfer->take(slot.piece, slot.staging.data());
}

void PieceQueue::post() {
  while (in_flight_ < kPiecesInFlight && !waiting_.empty()) {
    Slot& slot = slots_[(oldest_ + in_flight_++) % kPiecesInFlight];
    slot.is_free = false;
    slot.staging.resize(staged_);  // if a larger piece was announced while it was in use
    slot.transfer = waiting_.front();
    slot.piece = next_piece_++;
    if (next_piece_ == slot.transfer->pieces_) {
      waiting_.erase(waiting_.begin());
      next_piece_ = 0;
    }
    slot.transfer->post(slot.piece, slot.staging.data(), &slot.request);
  }
}

class MpiAllReduce final : public MpiTransfer {
 public:
  MpiAllReduce(const Message& message, const Sum& sum, const Group& group)
      : MpiTransfer(message, group),
        wire_(what_, message.span, message.wire),
        message_(wire_.message()),
        size_of_one_(bytes_of(wire_.message().dtype)),
        sum_(sum.of(what_, wire_.message().dtype)) {
    const std::int64_t count = wire_.message().count, most = kPieceBytes / size_of_one_;
    cut(count, most, message_.is_reachable() ? 0 : std::min(most, count) * size_of_one_);
  }

 private:
  void prepare(const Device& exec) override { wire_.narrow(exec); }
  void send(std::int64_t first, int count, char* staging, MPI_Request* request) override {
    char* const data = message_.is_reachable() ? message_.at(first * size_of_one_) : staging;
    if (data == staging) message_.fetch(exec_, first * size_of_one_, count * size_of_one_, staging);
    finish_copies(exec_);
    MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, data, count, sum_.first, sum_.second, comm_, request));
  }
  void receive(std::int64_t first, int count, char* staging) override {
    if (message_.is_reachable()) return;
    message_.put_back(exec_, first * size_of_one_, count * size_of_one_, staging);
  }
  void complete(const Device& exec) override { wire_.widen(exec); }

  Wire wire_;
  Bytes message_;
  std::int64_t size_of_one_;
  std::pair<MPI_Datatype, MPI_Op> sum_;
};

/// A piece is a range of every part. Packing keeps the sums apart from what MPI reads.
class MpiReduceScatter final : public MpiTransfer {
 public:
  MpiReduceScatter(const Message& message, const Sum& sum, const Group& group)
      : MpiTransfer(message, group),
        wire_(what_, message.span, message.wire),
        message_(wire_.message()),
        part_(sum_place(what_, message.part, message.span, rank_, size_)),
        sums_(wire_.is_narrow() ? sum_place(what_, {}, message.wire, rank_, size_) : part_),
        size_of_one_(bytes_of(wire_.message().dtype)),
        sum_(sum.of(what_, wire_.message().dtype)) {
    // Where MPI cannot reach the part, the sums lie behind what was packed.
    const std::int64_t staged = size_of_one_ * (size_ + (sums_.is_reachable() ? 0 : 1));
    const std::int64_t most = std::max<std::int64_t>(1, kPieceBytes / staged);
    cut(part_.count, most, std::min(most, part_.count) * staged);
  }

 private:
  std::int64_t place_of(int rank, std::int64_t first) const { return (rank * part_.count + first) * size_of_one_; }

  void prepare(const Device& exec) override { wire_.narrow(exec); }
  void send(std::int64_t first, int count, char* staging, MPI_Request* request) override {
    const std::int64_t bytes = count * size_of_one_;
    for (int rank = 0; rank < size_; ++rank) {
      message_.fetch(exec_, place_of(rank, first), bytes, staging + rank * bytes);
    }
    finish_copies(exec_);
    char* const sums = sums_.is_reachable() ? sums_.at(first * size_of_one_) : staging + size_ * bytes;
    MPI_CHECK(MPI_Ireduce_scatter_block(staging, sums, count, sum_.first, sum_.second, comm_, request));
  }
  void receive(std::int64_t first, int count, char* staging) override {
    if (sums_.is_reachable()) return;
    const std::int64_t bytes = count * size_of_one_;
    sums_.put_back(exec_, first * size_of_one_, bytes, staging + size_ * bytes);
  }
  void complete(const Device& exec) override { wire_.widen(exec, rank_ * part_.count, part_); }

  Wire wire_;
  Bytes message_;
  Span part_;   // where the sum ends
  Bytes sums_;  // where MPI leaves it: the part, or its place in the wire
  std::int64_t size_of_one_;
  std::pair<MPI_Datatype, MPI_Op> sum_;
};

/// Received in place and at once if MPI can reach both spans and count the whole; else in pieces, each a range of every
/// part, received in staging.
class MpiAllGather final : public MpiTransfer {
 public:
  MpiAllGather(const Message& message, const Group& group)
      : MpiTransfer(message, group),
        part_bytes_(part_count(what_, message.span, size_) * bytes_of(message.span.dtype)),
        is_in_place_(message.part.data == static_cast<char*>(message.span.data) + rank_ * part_bytes_),
        part_(message.part),
        whole_(message.span) {
    const Span& whole = message.span;
    require_part(what_, message.part, whole, size_);
    is_direct_ = part_.is_reachable() && whole_.is_reachable() && whole.bytes() <= kMaxBytes;
    const std::int64_t most = is_direct_ ? kMaxBytes : std::max<std::int64_t>(1, kPieceBytes / size_);
    cut(part_bytes_, most, is_direct_ ? 0 : std::min(most, part_bytes_) * size_);
  }

 private:
  void send(std::int64_t first, int count, char* staging, MPI_Request* request) override {
    if (is_direct_) {
      finish_copies(exec_);
      MPI_CHECK(MPI_Iallgather(is_in_place_ ? MPI_IN_PLACE : part_.at(0), is_in_place_ ? 0 : count, MPI_BYTE,
                               whole_.at(0), count, MPI_BYTE, comm_, request));
      return;
    }
    part_.fetch(exec_, first, count, staging + std::int64_t{rank_} * count);
    finish_copies(exec_);
    MPI_CHECK(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, staging, count, MPI_BYTE, comm_, request));
  }
  void receive(std::int64_t first, int count, char* staging) override {
    for (int rank = 0; rank < size_ && !is_direct_; ++rank) {
      whole_.put_back(exec_, rank * part_bytes_ + first, count, staging + std::int64_t{rank} * count);
    }
  }

  std::int64_t part_bytes_;  // of a part
  bool is_in_place_, is_direct_;
  Bytes part_, whole_;
};

class MpiBroadcast final : public MpiTransfer {
 public:
  MpiBroadcast(const Message& message, const Group& group) : MpiTransfer(message, group), message_(message.span) {
    const std::int64_t most = message_.is_reachable() ? kMaxBytes : kPieceBytes;
    cut(message.span.bytes(), most, message_.is_reachable() ? 0 : std::min(most, message.span.bytes()));
  }

 private:
  void send(std::int64_t first, int count, char* staging, MPI_Request* request) override {
    char* const data = message_.is_reachable() ? message_.at(first) : staging;
    if (data == staging && rank_ == 0) message_.fetch(exec_, first, count, staging);
    finish_copies(exec_);
    MPI_CHECK(MPI_Ibcast(data, count, MPI_BYTE, 0, comm_, request));
  }
  void receive(std::int64_t first, int count, char* staging) override {
    if (!message_.is_reachable()) message_.put_back(exec_, first, count, staging);
  }

  Bytes message_;
};

class MpiCollectives final : public Collectives {
 public:
  MpiCollectives(MPI_Comm own, FlightRecorder& recorder, std::function<void()> on_piece)
      : group_(own, recorder, std::move(on_piece)) {}
  ~MpiCollectives() override { MPI_Comm_free(&group_.comm); }
  MpiCollectives(const MpiCollectives&) = delete;
  MpiCollectives& operator=(const MpiCollectives&) = delete;

  std::string name() const override { return "mpi"; }
  std::string description() const override { return kernels::kIsHost<Device> ? "MPI" : "MPI, copied through the host"; }
  bool is_asynchronous() const override { return false; }
  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  std::unique_ptr<Transfer> make(const Message& message) override {
    switch (message.operation) {
      case Operation::all_reduce: return std::make_unique<MpiAllReduce>(message, sum_, group_);
      case Operation::reduce_scatter: return std::make_unique<MpiReduceScatter>(message, sum_, group_);
      case Operation::all_gather: return std::make_unique<MpiAllGather>(message, group_);
      case Operation::broadcast: break;
    }
    return std::make_unique<MpiBroadcast>(message, group_);
  }
  std::unique_ptr<Collectives> make_group(int group) override {
    MPI_Comm own = MPI_COMM_NULL;
    MPI_CHECK(MPI_Comm_split(group_.comm, group, rank(), &own));
    return std::make_unique<MpiCollectives>(own, group_.recorder, group_.on_piece);
  }

  void broadcast(const Span& span) override {
    const Device exec;
    MpiBroadcast transfer({.operation = Operation::broadcast, .span = span}, group_);
    transfer.start(exec);
    transfer.join(exec);
    finish_copies(exec);
  }

  std::string fault() override { return ""; }
  void abandon() override {}  // MPI_Abort follows

 private:
  Group group_;
  Sum sum_;
};

}  // namespace

std::unique_ptr<Collectives> make_mpi_collectives(FlightRecorder& recorder, std::function<void()> on_piece) {
  MPI_Comm own = MPI_COMM_NULL;  // so that gradients in flight cannot match the exchanges of World
  MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &own));
  return std::make_unique<MpiCollectives>(own, recorder, std::move(on_piece));
}

}  // namespace tessera::parallel
