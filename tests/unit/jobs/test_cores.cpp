/// Lists of cores, as Linux writes them, and the NUMA node that has them.
#include "jobs/cores.hpp"

#include <gmock/gmock.h>

namespace tessera::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Cores, cores_are_numbers_and_ranges) {
  EXPECT_THAT(cores_in("0-2,8"), ElementsAre(0, 1, 2, 8));
  EXPECT_THAT(cores_in("5"), ElementsAre(5));
  EXPECT_THAT(cores_in(""), IsEmpty());
  EXPECT_THAT(cores_in("0-"), IsEmpty());
  EXPECT_THAT(cores_in("0 2"), IsEmpty());
}

TEST(Cores, a_node_has_all_cores_of_a_rank_or_none_does) {
  const std::vector<std::pair<int, std::string>> nodes{{0, "0-3,8-11"}, {1, "4-7,12-15"}, {2, ""}};
  EXPECT_EQ(node_of("2-3,9", nodes), 0);
  EXPECT_EQ(node_of("12", nodes), 1);
  EXPECT_EQ(node_of("3-4", nodes), -1);
  EXPECT_EQ(node_of("", nodes), -1) << "unknown cores are on no node";
  EXPECT_EQ(node_of("0", {}), -1);
}

}  // namespace
}  // namespace tessera::jobs
