/// Collectives through MPI in host memory: data on a device is copied to the host and back.

#include "parallel/mpi_check.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/core/events.hpp"
#include "parallel/collective.hpp"
#include "parallel/device.hpp"
#include "parallel/wire.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

using kernels::Device;

constexpr std::int64_t kMaxElements = std::int64_t{1} << 30;  // MPI counts are ints

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

  std::pair<MPI_Datatype, MPI_Op> of(const Span& span) const {
    switch (span.dtype) {
      case Dtype::fp64: return {MPI_DOUBLE, MPI_SUM};
      case Dtype::fp32: return {MPI_FLOAT, MPI_SUM};
      case Dtype::bf16: return {two_bytes_, add_bf16_};
      case Dtype::fp16: return {two_bytes_, add_fp16_};
      case Dtype::int32: break;
    }
    throw std::invalid_argument("mpi all-reduce of " + span.label + ": " + std::string(name_of(span.dtype)) +
                                " is not summed here");
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

  void fetch(const Device& exec) {
    if (!copy_.empty()) Kokkos::deep_copy(exec, on_host(), on_device());
    if constexpr (!kernels::kIsHost<Device>) exec.fence();  // MPI reads immediately
  }
  void put_back(const Device& exec) {
    if (!copy_.empty()) Kokkos::deep_copy(exec, on_device(), on_host());
  }

 private:
  HostBytes on_host() { return HostBytes(copy_.data(), copy_.size()); }
  DeviceBytes on_device() { return DeviceBytes(static_cast<unsigned char*>(span_.data), copy_.size()); }

  Span span_;
  std::vector<unsigned char> copy_;
};

class MpiAllReduce final : public AllReduce {
 public:
  MpiAllReduce(const Span& span, const Span& wire, const std::pair<MPI_Datatype, MPI_Op>& sum, MPI_Comm comm)
      : wire_("mpi", span, wire), message_(wire_.message()), sum_(sum), comm_(comm) {}

  void start(const Device& exec) override {
    exec_ = exec;
    wire_.narrow(exec);
    message_.fetch(exec);
    start_s_ = events::now_s();
    is_complete_ = false;
    requests_.clear();
    const Span& message = wire_.message();
    for (std::int64_t first = 0; first < message.count; first += kMaxElements) {
      const int count = static_cast<int>(std::min(kMaxElements, message.count - first));
      requests_.push_back(MPI_REQUEST_NULL);
      MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, message_.data() + first * bytes_of(message.dtype), count, sum_.first,
                               sum_.second, comm_, &requests_.back()));
    }
  }

  bool test() override {
    if (is_complete_) return true;
    int is_done = 0;
    MPI_CHECK(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &is_done, MPI_STATUSES_IGNORE));
    if (is_done != 0) {
      end_s_ = joined_s_ = events::now_s();
      complete();
    }
    return is_done != 0;
  }

  void join(const Device&) override {
    if (is_complete_) return;
    joined_s_ = events::now_s();
    MPI_CHECK(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE));
    end_s_ = events::now_s();
    complete();
  }

  Times times() override {
    if (!is_complete_)
      throw std::logic_error("mpi all-reduce of " + wire_.message().label + ": asked for times while it runs");
    return {start_s_, end_s_, joined_s_};
  }

 private:
  /// The sums have arrived: copies them back to the span, after the work enqueued on the compute instance.
  void complete() {
    is_complete_ = true;
    message_.put_back(exec_);
    wire_.widen(exec_);
  }

  Wire wire_;
  Reachable message_;
  std::pair<MPI_Datatype, MPI_Op> sum_;
  MPI_Comm comm_;
  Device exec_;
  std::vector<MPI_Request> requests_;
  double start_s_ = 0, end_s_ = 0, joined_s_ = 0;
  bool is_complete_ = true;
};

class MpiCollectives final : public Collectives {
 public:
  // A separate communicator, so that gradients in flight cannot match the exchanges of World.
  MpiCollectives() { MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &comm_)); }
  ~MpiCollectives() override { MPI_Comm_free(&comm_); }

  std::string name() const override { return "mpi"; }
  std::string description() const override {
    return kernels::kIsHost<Device> ? "MPI" : "MPI, gradients copied through the host";
  }
  bool is_asynchronous() const override { return false; }

  std::unique_ptr<AllReduce> make_all_reduce(const Span& span, const Span& wire) override {
    return std::make_unique<MpiAllReduce>(span, wire, sum_.of(wire.count != 0 ? wire : span), comm_);
  }

  void broadcast(const Span& span) override {
    Reachable message(span);
    const Device exec;
    message.fetch(exec);
    for (std::int64_t first = 0; first < span.bytes(); first += kMaxElements) {
      const int count = static_cast<int>(std::min(kMaxElements, span.bytes() - first));
      MPI_CHECK(MPI_Bcast(message.data() + first, count, MPI_BYTE, 0, comm_));
    }
    message.put_back(exec);
    if constexpr (!kernels::kIsHost<Device>) exec.fence();
  }

  std::string fault() override { return ""; }
  void abandon() override {}  // MPI_Abort follows

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  Sum sum_;
};

}  // namespace

std::unique_ptr<Collectives> make_mpi_collectives() { return std::make_unique<MpiCollectives>(); }

}  // namespace tessera::parallel
