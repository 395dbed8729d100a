/// What tests of collectives begin with: a World that borrows the MPI which the test's main started, and a sum.
#pragma once

#include "parallel/world.hpp"

namespace tessera::test {

struct TestWorld : parallel::World {
  TestWorld() : World(argc(), argv()) {}

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

/// A sum that runs once, and for which the host waits.
inline void all_reduce(parallel::Collectives& collectives, const parallel::Span& span) {
  const kernels::Device exec;
  const auto sum = collectives.make_all_reduce(span, {});
  sum->start(exec);
  sum->join(exec);
  exec.fence();
}

}  // namespace tessera::test
