#include "io/rank_places.hpp"

#include "io/table.hpp"

namespace tessera::io {
namespace {

const Column<RankPlace> kColumns[] = {
    {"host", {"1", "its host"}, &RankPlace::host},
    {"local_rank", {"1", "number among the ranks of its host"}, &RankPlace::local_rank},
    {"gpu", {"1", "model of its GPU; empty on CPUs"}, &RankPlace::gpu},
    {"bus_id", {"1", "PCI address of its GPU; empty on CPUs"}, &RankPlace::bus_id},
    {"uuid", {"1", "identifier of its GPU; empty on CPUs"}, &RankPlace::uuid},
    {"numa_node", {"1", "that has all its cores; -1: of several, or unknown"}, &RankPlace::numa_node},
    {"cores", {"1", "cores that it may use"}, &RankPlace::cores},
};

}  // namespace

void write_rank_places(h5::Group& file, const std::vector<RankPlace>& ranks) {
  Table(file, "ranks", "rank", numbers_up_to(ranks.size()), {"1", "MPI rank, of the latest start"})
      .add(kColumns, ranks);
}

}  // namespace tessera::io
