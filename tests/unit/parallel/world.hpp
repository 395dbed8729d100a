/// A World for a test: borrows the MPI that the test's main started.
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

}  // namespace tessera::test
