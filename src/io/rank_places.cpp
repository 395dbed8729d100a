#include "io/rank_places.hpp"

#include <numeric>

#include "io/table.hpp"

namespace tessera::io {

void write_rank_places(h5::Group& file, const std::vector<RankPlace>& ranks) {
  std::vector<std::int64_t> numbers(ranks.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  Table table(file, "ranks", "rank", numbers, {"1", "MPI rank, of the latest start"});
  table.add("host", column(ranks, &RankPlace::host), {"1", "its host"});
  table.add("local_rank", column(ranks, &RankPlace::local_rank), {"1", "number among the ranks of its host"});
  table.add("gpu", column(ranks, &RankPlace::gpu), {"1", "model of its GPU; empty on CPUs"});
  table.add("uuid", column(ranks, &RankPlace::uuid), {"1", "identifier of its GPU; empty on CPUs"});
  table.add("numa_node", column(ranks, &RankPlace::numa_node),
            {"1", "that has all its cores; -1: of several, or unknown"});
  table.add("cores", column(ranks, &RankPlace::cores), {"1", "cores that it may use"});
}

}  // namespace tessera::io
