/// main of tests that run on one rank: Kokkos around GoogleTest.
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include "support/sanitizers.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();  // ctest lists the tests of every executable: needs no GPU
  Kokkos::initialize(argc, argv);
  const int result = RUN_ALL_TESTS();
  Kokkos::finalize();
  return result;
}
