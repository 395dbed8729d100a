/// Bandwidths of collective operations against values worked out by hand from nccl-tests' doc/PERFORMANCE.md.
#include "lab/bus_bandwidth.hpp"

#include <gtest/gtest.h>

namespace tessera::lab {
namespace {

using parallel::Operation;

TEST(BusBandwidth, of_a_billion_bytes_in_ten_milliseconds_is_what_nccl_tests_say) {
  struct Expected {
    Operation operation;
    int ranks;
    double bus;
  };
  // The algorithm moves 1e9 bytes in 0.01 s: 100 GB/s.
  for (const auto& [operation, ranks, bus] : {Expected{Operation::all_reduce, 2, 100},
                                              {Operation::all_reduce, 4, 150},
                                              {Operation::all_reduce, 8, 175},
                                              {Operation::reduce_scatter, 2, 50},
                                              {Operation::reduce_scatter, 4, 75},
                                              {Operation::reduce_scatter, 8, 87.5},
                                              {Operation::all_gather, 2, 50},
                                              {Operation::all_gather, 4, 75},
                                              {Operation::all_gather, 8, 87.5},
                                              {Operation::broadcast, 2, 100},
                                              {Operation::broadcast, 8, 100}}) {
    EXPECT_DOUBLE_EQ(algorithm_gbyte_per_s(1'000'000'000, 0.01), 100);
    EXPECT_DOUBLE_EQ(bus_gbyte_per_s(operation, ranks, 1'000'000'000, 0.01), bus)
        << static_cast<int>(operation) << " on " << ranks;
  }
}

TEST(BusBandwidth, an_all_reduce_costs_the_bus_a_reduce_scatter_and_an_all_gather) {
  for (const int ranks : {2, 3, 7, 64}) {
    EXPECT_DOUBLE_EQ(bus_factor(Operation::all_reduce, ranks),
                     bus_factor(Operation::reduce_scatter, ranks) + bus_factor(Operation::all_gather, ranks));
  }
}

TEST(MessageElements, are_what_was_asked_for_where_nothing_has_to_be_cut) {
  EXPECT_EQ(message_elements(Operation::all_reduce, 3, 1'000'000, 4), 250'000);
  EXPECT_EQ(message_elements(Operation::broadcast, 7, 1'000'000, 2), 500'000);
  EXPECT_EQ(message_elements(Operation::all_gather, 2, 1'000'000, 4), 250'000);
}

TEST(MessageElements, of_parts_are_whole_parts_of_whole_16_bytes) {
  for (const Operation operation : {Operation::reduce_scatter, Operation::all_gather}) {
    // 1e6 / 3 = 333333.3, of which 20833 times 16 bytes: 333328 in each part, 83332 floats
    EXPECT_EQ(message_elements(operation, 3, 1'000'000, 4), 3 * 83'332);
    EXPECT_EQ(message_elements(operation, 8, 1'000'000, 2), 8 * 62'496);  // 125000 = 7812.5 x 16
  }
}

}  // namespace
}  // namespace tessera::lab
