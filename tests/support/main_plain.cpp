/// main of tests without Kokkos.
#include <gtest/gtest.h>

#include "support/sanitizers.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
