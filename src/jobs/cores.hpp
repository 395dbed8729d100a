/// Where each rank runs, down to the cores that it may use: /ranks of run.h5.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/rank_places.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

/// The cores of a list as Linux writes it: "0-2,8" -> 0, 1, 2, 8. Empty if it is none.
std::vector<int> cores_in(std::string_view list);

/// The one NUMA node that has all cores of `list`, of `nodes` with their lists; -1 if there is none.
int node_of(std::string_view list, const std::vector<std::pair<int, std::string>>& nodes);

/// By rank. Collective.
std::vector<io::RankPlace> rank_places(const parallel::World& world);

}  // namespace tessera::jobs
