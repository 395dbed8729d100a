/// Collectives through MPI in host memory: data on a device is copied to the host and back.

#include "parallel/mpi_check.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/events.hpp"
#include "parallel/collective.hpp"
#include "parallel/device.hpp"
#include "parallel/flight_recorder.hpp"
#include "parallel/wire.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

using kernels::Device;

constexpr std::int64_t kMaxElements = std::int64_t{1} << 30;  // of one call: MPI counts are ints

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

  std::pair<MPI_Datatype, MPI_Op> of(const char* operation, const Span& span) const {
    switch (span.dtype) {
      case Dtype::fp64: return {MPI_DOUBLE, MPI_SUM};
      case Dtype::fp32: return {MPI_FLOAT, MPI_SUM};
      case Dtype::bf16: return {two_bytes_, add_bf16_};
      case Dtype::fp16: return {two_bytes_, add_fp16_};
      case Dtype::int32: break;
    }
    throw std::invalid_argument("mpi " + std::string(operation) + " of " + span.label + ": " +
                                std::string(name_of(span.dtype)) + " cannot be summed");
  }

 private:
  MPI_Datatype two_bytes_ = MPI_DATATYPE_NULL;
  MPI_Op add_bf16_ = MPI_OP_NULL, add_fp16_ = MPI_OP_NULL;
};

/// A span's bytes in memory that MPI can access: the span itself, or a copy on the host.
class Reachable {
 public:
  explicit Reachable(const Span& span)
      : span_(span), copy_(is_device_memory(span.data) ? static_cast<std::size_t>(span.bytes()) : 0) {}

  char* data() { return copy_.empty() ? static_cast<char*>(span_.data) : reinterpret_cast<char*>(copy_.data()); }

  // Bytes `first` .. `first + count - 1` from the span into the copy, and back.
  void fetch(const Device& exec, std::int64_t first, std::int64_t count) {
    if (!copy_.empty()) Kokkos::deep_copy(exec, on_host(first, count), on_device(first, count));
    if constexpr (!kernels::kIsHost<Device>) exec.fence();  // MPI reads immediately
  }
  void put_back(const Device& exec, std::int64_t first, std::int64_t count) {
    if (!copy_.empty()) Kokkos::deep_copy(exec, on_device(first, count), on_host(first, count));
  }

 private:
  HostBytes on_host(std::int64_t first, std::int64_t count) {
    return HostBytes(copy_.data() + first, static_cast<std::size_t>(count));
  }
  DeviceBytes on_device(std::int64_t first, std::int64_t count) {
    return DeviceBytes(static_cast<unsigned char*>(span_.data) + first, static_cast<std::size_t>(count));
  }

  Span span_;
  std::vector<unsigned char> copy_;
};

/// Elements of each of `ranks` equal parts of a span.
std::int64_t part_of(const std::string& what, const Span& span, int ranks) {
  if (span.count % ranks == 0) return span.count / ranks;
  throw std::invalid_argument("mpi " + what + ": its " + std::to_string(span.count) +
                              " elements cannot be divided into parts for " + std::to_string(ranks) + " ranks");
}

void require_counts(const std::string& what, std::int64_t count) {
  if (count <= std::numeric_limits<int>::max()) return;
  throw std::invalid_argument("mpi " + what + ": " + std::to_string(count) +
                              " are more than MPI can count in one call");
}

/// The ranks that take part, and where what they transfer is recorded.
struct Group {
  MPI_Comm comm = MPI_COMM_NULL;
  FlightRecorder& recorder;
};

std::int64_t message_bytes(const Span& span, const Span& wire) { return wire.count != 0 ? wire.bytes() : span.bytes(); }

/// What the three transfers have in common: requests in progress, and when they began and ended.
class MpiTransfer : public Transfer {
 public:
  void start(const Device& exec) override {
    exec_ = exec;
    prepare(exec);
    start_s_ = events::now_s();
    number_ = recorder_.begin(name_, bytes_);
    is_complete_ = false;
    requests_.clear();
    post();
  }

  bool test() override {
    if (is_complete_) return true;
    int is_done = 0;
    MPI_CHECK(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &is_done, MPI_STATUSES_IGNORE));
    if (is_done != 0) {
      end();
      joined_s_ = end_s_;
    }
    return is_done != 0;
  }

  void join(const Device&) override {
    if (is_complete_) return;
    joined_s_ = events::now_s();
    MPI_CHECK(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE));
    end();
  }

  Times times() override {
    if (!is_complete_) throw std::logic_error("mpi " + what_ + ": times requested while it runs");
    return {start_s_, end_s_, joined_s_};
  }

 protected:
  /// `operation`: "all-reduce"; `bytes` of the whole message.
  MpiTransfer(const std::string& operation, const std::string& label, std::int64_t bytes, const Group& group)
      : what_(operation + " of " + label),
        comm_(group.comm),
        recorder_(group.recorder),
        name_(recorder_.name(operation, "mpi", label)),
        bytes_(bytes) {
    MPI_CHECK(MPI_Comm_rank(comm_, &rank_));
    MPI_CHECK(MPI_Comm_size(comm_, &size_));
  }
  virtual void prepare(const Device& exec) = 0;   // puts what MPI reads in place on the host
  virtual void post() = 0;                        // pushes to requests_
  virtual void complete(const Device& exec) = 0;  // moves what has arrived into place, after the work on `exec`

  /// Calls `one(first element, count)` for pieces whose counts MPI can express.
  template <class One>
  static void in_pieces(std::int64_t count, const One& one) {
    for (std::int64_t first = 0; first < count; first += kMaxElements) {
      one(first, static_cast<int>(std::min(kMaxElements, count - first)));
    }
  }
  MPI_Request* next_request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  const std::string what_;  // "all-reduce of grad.bucket.2"
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;

 private:
  void end() {
    end_s_ = events::now_s();
    recorder_.end(number_);
    is_complete_ = true;
    complete(exec_);
  }

  Device exec_;
  std::vector<MPI_Request> requests_;
  FlightRecorder& recorder_;
  std::uint32_t name_;        // in the recorder
  std::uint64_t number_ = 0;  // of its latest start there
  std::int64_t bytes_;
  double start_s_ = 0, end_s_ = 0, joined_s_ = 0;
  bool is_complete_ = true;
};

class MpiAllReduce final : public MpiTransfer {
 public:
  MpiAllReduce(const Span& span, const Span& wire, const std::pair<MPI_Datatype, MPI_Op>& sum, const Group& group)
      : MpiTransfer("all-reduce", span.label, message_bytes(span, wire), group),
        wire_("mpi all-reduce", span, wire),
        message_(wire_.message()),
        sum_(sum) {}

 private:
  void prepare(const Device& exec) override {
    wire_.narrow(exec);
    message_.fetch(exec, 0, wire_.message().bytes());
  }
  void post() override {
    in_pieces(wire_.message().count, [&](std::int64_t first, int count) {
      MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, message_.data() + first * bytes_of(wire_.message().dtype), count,
                               sum_.first, sum_.second, comm_, next_request()));
    });
  }
  void complete(const Device& exec) override {
    message_.put_back(exec, 0, wire_.message().bytes());
    wire_.widen(exec);
  }

  Wire wire_;
  Reachable message_;
  std::pair<MPI_Datatype, MPI_Op> sum_;
};

class MpiReduceScatter final : public MpiTransfer {
 public:
  MpiReduceScatter(const Span& span, const Span& wire, const std::pair<MPI_Datatype, MPI_Op>& sum, const Group& group)
      : MpiTransfer("reduce-scatter", span.label, message_bytes(span, wire), group),
        wire_("mpi reduce-scatter", span, wire),
        message_(wire_.message()),
        sum_(sum),
        part_(part_of(what_, span, size_)) {
    require_counts(what_, span.count);  // libraries count all parts together
    own_.resize(static_cast<std::size_t>(part_ * bytes_of(wire_.message().dtype)));
  }

 private:
  void prepare(const Device& exec) override {
    wire_.narrow(exec);
    message_.fetch(exec, 0, wire_.message().bytes());
  }
  void post() override {
    MPI_CHECK(MPI_Ireduce_scatter_block(message_.data(), own_.data(), static_cast<int>(part_), sum_.first, sum_.second,
                                        comm_, next_request()));
  }
  void complete(const Device& exec) override {
    const auto bytes = static_cast<std::int64_t>(own_.size());
    std::copy(own_.begin(), own_.end(), message_.data() + rank_ * bytes);
    message_.put_back(exec, rank_ * bytes, bytes);
    wire_.widen(exec, rank_ * part_, part_);
  }

  Wire wire_;
  Reachable message_;
  std::pair<MPI_Datatype, MPI_Op> sum_;
  std::int64_t part_;      // elements
  std::vector<char> own_;  // the sums, separate from what MPI reads
};

class MpiAllGather final : public MpiTransfer {
 public:
  MpiAllGather(const Span& part, const Span& whole, const Group& group)
      : MpiTransfer("all-gather", whole.label, whole.bytes(), group),
        part_(part),
        whole_(whole),
        part_bytes_(part_of(what_, whole, size_) * bytes_of(whole.dtype)),
        is_in_place_(part.data == static_cast<char*>(whole.data) + rank_ * part_bytes_),
        from_(is_in_place_ ? Span{} : part),
        to_(whole) {
    if (part.bytes() != part_bytes_ || part.dtype != whole.dtype) {
      throw std::invalid_argument("mpi " + what_ + ": its part must be one of " + std::to_string(size_) +
                                  " equal ones of the whole");
    }
    require_counts(what_, part_bytes_);
  }

 private:
  void prepare(const Device& exec) override {
    if (is_in_place_) {
      to_.fetch(exec, rank_ * part_bytes_, part_bytes_);
    } else {
      from_.fetch(exec, 0, part_bytes_);
    }
  }
  void post() override {
    const void* from = is_in_place_ ? MPI_IN_PLACE : from_.data();
    const int count = static_cast<int>(part_bytes_);
    MPI_CHECK(
        MPI_Iallgather(from, is_in_place_ ? 0 : count, MPI_BYTE, to_.data(), count, MPI_BYTE, comm_, next_request()));
  }
  void complete(const Device& exec) override { to_.put_back(exec, 0, whole_.bytes()); }

  Span part_, whole_;
  std::int64_t part_bytes_;  // of a part
  bool is_in_place_;
  Reachable from_, to_;
};

class MpiCollectives final : public Collectives {
 public:
  // A separate communicator, so that gradients in flight cannot match the exchanges of World.
  explicit MpiCollectives(FlightRecorder& recorder) : group_{.recorder = recorder} {
    MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &group_.comm));
  }
  MpiCollectives(const Group& all, int group) : group_{.recorder = all.recorder} {
    int rank = 0;
    MPI_CHECK(MPI_Comm_rank(all.comm, &rank));
    MPI_CHECK(MPI_Comm_split(all.comm, group, rank, &group_.comm));
  }
  ~MpiCollectives() override { MPI_Comm_free(&group_.comm); }
  MpiCollectives(const MpiCollectives&) = delete;
  MpiCollectives& operator=(const MpiCollectives&) = delete;

  std::string name() const override { return "mpi"; }
  std::string description() const override { return kernels::kIsHost<Device> ? "MPI" : "MPI, copied through the host"; }
  bool is_asynchronous() const override { return false; }
  int rank() const override {
    int rank = 0;
    MPI_CHECK(MPI_Comm_rank(group_.comm, &rank));
    return rank;
  }
  int size() const override {
    int size = 1;
    MPI_CHECK(MPI_Comm_size(group_.comm, &size));
    return size;
  }

  std::unique_ptr<Transfer> make_all_reduce(const Span& span, const Span& wire) override {
    return std::make_unique<MpiAllReduce>(span, wire, sum_.of("all-reduce", wire.count != 0 ? wire : span), group_);
  }
  std::unique_ptr<Transfer> make_reduce_scatter(const Span& span, const Span& wire) override {
    return std::make_unique<MpiReduceScatter>(span, wire, sum_.of("reduce-scatter", wire.count != 0 ? wire : span),
                                              group_);
  }
  std::unique_ptr<Transfer> make_all_gather(const Span& part, const Span& whole) override {
    return std::make_unique<MpiAllGather>(part, whole, group_);
  }
  std::unique_ptr<Collectives> make_group(int group) override {
    return std::make_unique<MpiCollectives>(group_, group);
  }

  void broadcast(const Span& span) override {
    Reachable message(span);
    const Device exec;
    message.fetch(exec, 0, span.bytes());
    FlightRecorder& recorder = group_.recorder;
    const std::uint64_t number = recorder.begin(recorder.name("broadcast[mpi]", span.label), span.bytes());
    for (std::int64_t first = 0; first < span.bytes(); first += kMaxElements) {
      const int count = static_cast<int>(std::min(kMaxElements, span.bytes() - first));
      MPI_CHECK(MPI_Bcast(message.data() + first, count, MPI_BYTE, 0, group_.comm));
    }
    recorder.end(number);
    message.put_back(exec, 0, span.bytes());
    if constexpr (!kernels::kIsHost<Device>) exec.fence();
  }

  std::string fault() override { return ""; }
  void abandon() override {}  // MPI_Abort follows

 private:
  Group group_;
  Sum sum_;
};

}  // namespace

std::unique_ptr<Collectives> make_mpi_collectives(FlightRecorder& recorder) {
  return std::make_unique<MpiCollectives>(recorder);
}

}  // namespace tessera::parallel
