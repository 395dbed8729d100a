/// Where the ranks run: as files say it, and those of a group that shares one copy of what is sharded
/// (parallel.shard_ranks).
#pragma once

#include <span>
#include <string>

#include "config/settings.hpp"
#include "io/launch.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

io::Launch launch_of(const parallel::World& world);

/// Of the groups that each `shard_ranks` consecutive ranks form, how many have ranks on several hosts; `hosts` has one
/// name for each rank.
int groups_across_hosts(std::span<const std::string> hosts, int shard_ranks);

/// A line that says so and how to start the ranks instead; "" if no fewer would be, were the ranks numbered host by
/// host.
std::string note_on_groups(std::span<const std::string> hosts, int shard_ranks);

/// The same for the ranks of `world`; "" if they form no groups.
std::string note_on_groups(const parallel::World& world, const config::Parallel& parallel);

}  // namespace tessera::jobs
