/// Groups of ranks on several hosts, and when the launcher can help it.
#include "jobs/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::jobs {
namespace {

using ::testing::HasSubstr;
using Hosts = std::vector<std::string>;

TEST(Placement, groups_are_consecutive_ranks) {
  const Hosts by_host{"b", "b", "a", "a"}, in_turn{"b", "a", "b", "a"}, halves{"a", "a", "b", "a"};
  EXPECT_EQ(groups_across_hosts(by_host, 2), 0);
  EXPECT_EQ(groups_across_hosts(in_turn, 2), 2);
  EXPECT_EQ(groups_across_hosts(halves, 2), 1);
  EXPECT_EQ(groups_across_hosts(in_turn, 1), 0);
  EXPECT_EQ(groups_across_hosts(by_host, 4), 1);
}

TEST(Placement, of_ranks_in_turn_is_told_what_to_tell_the_launcher) {
  const Hosts cyclic{"b", "a", "b", "a", "b", "a", "b", "a"};
  const std::string note = note_on_groups(cyclic, 4);
  EXPECT_THAT(
      note,
      HasSubstr("2 of 2 groups of 4 consecutive ranks (parallel.shard_ranks) lie on several hosts each; none if"));
  EXPECT_THAT(note, HasSubstr("srun --distribution=block"));
  EXPECT_THAT(note, HasSubstr("mpirun --map-by slot"));
  EXPECT_EQ(note.find('\n'), note.size() - 1) << "one line";
}

TEST(Placement, that_cannot_be_better_is_not_noted) {
  EXPECT_EQ(note_on_groups(Hosts{"a", "a", "b", "b"}, 2), "") << "host by host";
  EXPECT_EQ(note_on_groups(Hosts{"a", "a", "b", "b"}, 4), "") << "no host has room for a group";
  EXPECT_EQ(note_on_groups(Hosts{"a", "b", "a", "b"}, 4), "");
  EXPECT_EQ(note_on_groups(Hosts{"a", "a", "a", "b", "b", "b"}, 2), "") << "host by host, three ranks each";
  EXPECT_THAT(note_on_groups(Hosts{"a", "b", "a", "b", "a", "b"}, 2), HasSubstr("3 of 3 groups of 2 consecutive"));
  EXPECT_THAT(note_on_groups(Hosts{"a", "b", "a", "b", "a", "b"}, 2), HasSubstr("each; 1 if the ranks"));
}

}  // namespace
}  // namespace tessera::jobs
