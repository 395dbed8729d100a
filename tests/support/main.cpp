/// main of tests that run on one rank: Kokkos around GoogleTest. TESSERA_TEST_TEAM sets the threads of a host's teams.
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include <cstdlib>

#include "kernels/core/team.hpp"
#include "support/sanitizers.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();  // ctest lists the tests of every executable: needs no GPU
  Kokkos::initialize(argc, argv);
  if (const char* team = std::getenv("TESSERA_TEST_TEAM")) tessera::kernels::host_team_size = std::atoi(team);
  const int result = RUN_ALL_TESTS();
  Kokkos::finalize();
  return result;
}
