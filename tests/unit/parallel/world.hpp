/// For tests of collectives: a World that borrows the MPI started by the test's main, and a sum.
#pragma once

#include <exception>
#include <memory>

#include "parallel/collectives/collective.hpp"
#include "parallel/world.hpp"

namespace tessera::test {

struct TestWorld : parallel::World {
  template <class... Meaning>
  explicit TestWorld(Meaning... meaning) : World(argc(), argv(), meaning...) {}

 private:
  static int& argc() {
    static int none = 0;
    return none;
  }
  static char**& argv() {
    static char** none = nullptr;
    return none;
  }
};

/// Waits for all ranks at the end of a scope. Declare it after the memory that is summed, which other ranks may have
/// mapped, and before the sums, which are then destroyed first.
class BarrierAtEnd {
 public:
  explicit BarrierAtEnd(const parallel::World& world) : world_(world) {}
  ~BarrierAtEnd() {
    if (std::uncaught_exceptions() == 0) world_.barrier();
  }
  BarrierAtEnd(const BarrierAtEnd&) = delete;
  BarrierAtEnd& operator=(const BarrierAtEnd&) = delete;

 private:
  const parallel::World& world_;
};

/// A sum over all ranks that can be started.
inline std::unique_ptr<parallel::Transfer> connected_sum(parallel::World& world, const parallel::Span& span,
                                                         const parallel::Span& wire = {}) {
  auto sum = world.collectives().make_all_reduce(span, wire);
  sum->connect();
  return sum;
}

/// A sum over all ranks that runs once, and for which the host waits.
inline void all_reduce(parallel::World& world, const parallel::Span& span) {
  const BarrierAtEnd barrier(world);
  const kernels::Device exec;
  const auto sum = connected_sum(world, span);
  sum->start(exec);
  sum->join(exec);
  exec.fence();
}

}  // namespace tessera::test
