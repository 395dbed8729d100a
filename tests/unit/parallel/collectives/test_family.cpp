#include "parallel/collectives/family.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "unit/parallel/world.hpp"

namespace tessera::parallel {
namespace {

struct Member final : Family::Member {
  std::string own_fault() const override { return fault; }
  void abandon_own() override { is_abandoned = true; }

  std::string fault;
  bool is_abandoned = false;
};

struct FamilyEnds : ::testing::Test {
  FamilyEnds() {
    family.add(first);
    family.add(second);
  }
  bool is_last() const { return world.rank() == world.size() - 1; }

  test::TestWorld world;
  Family family;
  Member first, second;
};

TEST_F(FamilyEnds, in_order_if_no_rank_has_a_fault) {
  EXPECT_TRUE(family.ends_in_order(world));
  EXPECT_FALSE(first.is_abandoned || second.is_abandoned);
}

TEST_F(FamilyEnds, in_disorder_on_all_ranks_if_a_member_of_one_has_a_fault) {
  if (is_last()) second.fault = "lost";
  EXPECT_EQ(family.fault(), is_last() ? "lost" : "");
  EXPECT_FALSE(family.ends_in_order(world));
  EXPECT_TRUE(first.is_abandoned && second.is_abandoned);
  EXPECT_EQ(family.fault(), "") << "it is abandoned";
  family.remove(second);
  EXPECT_FALSE(family.ends_in_order(world)) << "the next member ends as the first";
}

TEST_F(FamilyEnds, in_disorder_on_all_ranks_if_one_has_abandoned_it) {
  if (is_last()) family.abandon();
  EXPECT_FALSE(family.ends_in_order(world));
  EXPECT_TRUE(first.is_abandoned && second.is_abandoned);
}

TEST_F(FamilyEnds, alone_and_without_waiting_for_others_where_an_exception_unwinds) {
  if (is_last()) {  // the others do not ask
    struct Asks {
      ~Asks() { EXPECT_FALSE(test.family.ends_in_order(test.world)); }
      FamilyEnds& test;
    };
    EXPECT_THROW(
        {
          const Asks asks{*this};
          throw std::runtime_error("unwinds");
        },
        std::runtime_error);
  }
  EXPECT_FALSE(first.is_abandoned);
  world.barrier();
}

}  // namespace
}  // namespace tessera::parallel
