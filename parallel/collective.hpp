/// Collectives over labelled spans of memory. mpi.cpp implements them for host memory; a vendor's library may
/// implement the same interface for device memory.
///
/// Every rank calls the same operations in the same order. A started reduction owns its span until it has completed;
/// it makes progress only inside test() and wait(), so whoever computes meanwhile polls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/scalar.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::parallel {

struct Span {
  std::string label;  // "grad.bucket.2"
  void* data = nullptr;
  std::int64_t count = 0;  // elements
  Dtype dtype = Dtype::fp32;

  std::int64_t bytes() const { return count * bytes_of(dtype); }
};

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual std::string name() const = 0;  // "mpi"

  /// A collective under way.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual bool test() = 0;  // polls; true once complete
    virtual void wait() = 0;
  };

  /// Sum over ranks, in place, behind what was enqueued on `exec` so far. dtype fp32 or fp64. The same bits on every
  /// rank, and from run to run on as many ranks (MPI does not promise it; the tests hold the library to it).
  virtual std::unique_ptr<Pending> start_all_reduce(const kernels::Device& exec, const Span& span) = 0;

  /// Rank 0's content to everyone. Any dtype.
  virtual void broadcast(const Span& span) = 0;
};

}  // namespace tessera::parallel
