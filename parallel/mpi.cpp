/// Collectives on host memory through MPI.

#include "parallel/mpi_check.hpp"

#include <algorithm>
#include <vector>

#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

constexpr bool kHostDevice = kernels::kIsHost<kernels::Device>;
constexpr std::int64_t kMostElements = std::int64_t{1} << 30;  // MPI counts are ints

class MpiPending final : public Collectives::Pending {
 public:
  explicit MpiPending(std::vector<MPI_Request> requests) : requests_(std::move(requests)) {}

  bool test() override {
    int is_done = 0;
    MPI_CHECK(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &is_done, MPI_STATUSES_IGNORE));
    return is_done != 0;
  }
  void wait() override {
    MPI_CHECK(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE));
  }

 private:
  std::vector<MPI_Request> requests_;
};

class MpiCollectives final : public Collectives {
 public:
  // A communicator of its own, so that gradients in flight cannot meet the exchanges of World.
  MpiCollectives() { MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &comm_)); }
  ~MpiCollectives() override { MPI_Comm_free(&comm_); }

  std::string name() const override { return "mpi"; }

  std::unique_ptr<Pending> start_all_reduce(const kernels::Device& exec, const Span& span) override {
    if constexpr (kHostDevice) {
      static_cast<void>(exec);  // what was launched has been done
    } else {
      exec.fence();  // MPI reads the memory at once
    }
    if (span.dtype != Dtype::fp32 && span.dtype != Dtype::fp64) {
      throw std::invalid_argument("mpi all-reduce of " + span.label + ": only fp32 and fp64 can be summed by MPI");
    }
    const MPI_Datatype type = span.dtype == Dtype::fp64 ? MPI_DOUBLE : MPI_FLOAT;
    std::vector<MPI_Request> requests;
    for (std::int64_t first = 0; first < span.count; first += kMostElements) {
      char* data = static_cast<char*>(span.data) + first * bytes_of(span.dtype);
      const int count = static_cast<int>(std::min(kMostElements, span.count - first));
      requests.push_back(MPI_REQUEST_NULL);
      MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, data, count, type, MPI_SUM, comm_, &requests.back()));
    }
    return std::make_unique<MpiPending>(std::move(requests));
  }

  void broadcast(const Span& span) override {
    char* data = static_cast<char*>(span.data);
    for (std::int64_t first = 0; first < span.bytes(); first += kMostElements) {
      const int count = static_cast<int>(std::min(kMostElements, span.bytes() - first));
      MPI_CHECK(MPI_Bcast(data + first, count, MPI_BYTE, 0, comm_));
    }
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace

std::unique_ptr<Collectives> make_mpi_collectives() { return std::make_unique<MpiCollectives>(); }

}  // namespace tessera::parallel
