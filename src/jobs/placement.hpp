/// Where the ranks run, as written to files, and how groups that share one copy (parallel.shard_ranks) lie on hosts.
#pragma once

#include <span>
#include <string>

#include "config/settings.hpp"
#include "io/origin.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

io::Launch launch_of(const parallel::World& world);

/// How many groups of `shard_ranks` consecutive ranks span several hosts; `hosts` has one name for each rank.
int groups_across_hosts(std::span<const std::string> hosts, int shard_ranks);

/// A line with that number and a better way to start the ranks; "" if numbering them host by host would not reduce it.
std::string note_on_groups(std::span<const std::string> hosts, int shard_ranks);

/// The same for the ranks of `world`; "" if they form no groups.
std::string note_on_groups(const parallel::World& world, const config::Parallel& parallel);

}  // namespace tessera::jobs
