/// The cores of a host as Linux describes them, the table of ranks at a run's start, and the warnings that follow.
#include "jobs/placement.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "unit/io/scratch.hpp"

namespace tessera::jobs {
namespace {

namespace fs = std::filesystem;
using test::ScratchFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text << '\n';
}

/// A host of two sockets, each with a NUMA node, two cores and four hardware threads; core c has the threads c, c + 4.
/// A GPU is at the second socket, another device at none.
void describe_host(const fs::path& root, const std::string& allowed) {
  write(root / "proc/self/status", "Name:\ttessera\nCpus_allowed:\tff\nCpus_allowed_list:\t" + allowed);
  for (int thread = 0; thread < 8; ++thread) {
    const int core = thread % 4;
    const fs::path topology = root / "sys/devices/system/cpu" / ("cpu" + std::to_string(thread)) / "topology";
    write(topology / "thread_siblings_list", std::to_string(core) + "," + std::to_string(core + 4));
    write(topology / "physical_package_id", std::to_string(core / 2));
  }
  const fs::path nodes = root / "sys/devices/system/node";
  write(nodes / "node0/cpulist", "0-1,4-5");
  write(nodes / "node1/cpulist", "2-3,6-7");
  write(nodes / "node2/cpulist", "");  // memory alone
  write(nodes / "possible", "0-2");
  write(root / "sys/bus/pci/devices/0000:1b:00.0/local_cpulist", "2-3,6-7");
  write(root / "sys/bus/pci/devices/0000:02:00.0/local_cpulist", "0-7");
}

TEST(Cores, lists_are_numbers_and_ranges) {
  EXPECT_THAT(numbers_in("0-2,8"), ElementsAre(0, 1, 2, 8));
  EXPECT_THAT(numbers_in("5"), ElementsAre(5));
  for (const char* none : {"", "0-", "0 2", "-1", "x"}) EXPECT_THAT(numbers_in(none), IsEmpty()) << none;
}

TEST(Cores, of_a_process_have_a_socket_and_a_node) {
  const ScratchFolder folder;
  describe_host(folder.path(), "2-3,6");
  const Cores cores(folder.path());
  EXPECT_EQ(cores.allowed(), "2-3,6");
  EXPECT_THAT(cores.physical(), ElementsAre(2, 3));
  EXPECT_THAT(cores.sockets(), ElementsAre(1));
  EXPECT_EQ(cores.numa_node(), 1);
  EXPECT_EQ(cores.socket_of_gpu("0000:1B:00.0"), 1) << "CUDA writes capital letters";
  EXPECT_EQ(cores.socket_of_gpu("0000:02:00.0"), -1) << "as near to both";
  EXPECT_EQ(cores.socket_of_gpu(""), -1);
}

TEST(Cores, of_several_nodes_have_none) {
  const ScratchFolder folder;
  describe_host(folder.path(), "1-2");
  EXPECT_EQ(Cores(folder.path()).numa_node(), -1);
  EXPECT_THAT(Cores(folder.path()).sockets(), ElementsAre(0, 1));
}

TEST(Cores, that_linux_does_not_describe_are_unknown) {
  const ScratchFolder folder;
  const Cores cores(folder.path());
  EXPECT_EQ(cores.allowed(), "");
  EXPECT_THAT(cores.physical(), IsEmpty());
  EXPECT_EQ(cores.numa_node(), -1);
}

RankPlace on(const std::string& host, std::set<int> cores) {
  RankPlace place;
  place.host = host;
  place.physical_cores = std::move(cores);
  return place;
}

RankPlace with_gpu(const std::string& bus_id, int gpu_socket, int socket, int host_gpus) {
  static int core = 0;
  RankPlace place = on("a", {core++});
  place.gpu = "NVIDIA H200";
  place.bus_id = bus_id;
  place.gpu_socket = gpu_socket;
  place.sockets = {socket};
  place.host_gpus = host_gpus;
  return place;
}

std::string warnings(std::vector<RankPlace> ranks) { return warnings_of(ranks); }

TEST(Warnings, tell_of_ranks_that_share_cores) {
  EXPECT_THAT(warnings({on("a", {0}), on("a", {1}), on("a", {1})}), HasSubstr("ranks 1, 2 on a share 1 core: "));
  EXPECT_THAT(warnings({on("a", {0, 1}), on("a", {0, 1}), on("a", {0, 1})}),
              AllOf(HasSubstr("ranks 0, 1, 2 on a share 2 cores: "), HasSubstr("--cpu-bind=cores"),
                    HasSubstr("--bind-to core")));
  EXPECT_THAT(warnings({on("a", {0}), on("a", {1}), on("a", {0, 1})}), HasSubstr("ranks 0, 1, 2 on a share 2 cores"))
      << "the third has no core of its own";
  EXPECT_THAT(warnings({on("a", {0}), on("b", {0}), on("a", {0}), on("b", {0})}),
              HasSubstr("ranks 0, 2 on a share 1 core (and 1 more like it)"));
}

TEST(Warnings, are_silent_where_each_rank_has_a_core) {
  EXPECT_EQ(warnings({on("a", {0, 1}), on("a", {0, 1})}), "") << "not bound, but enough";
  EXPECT_EQ(warnings({on("a", {0}), on("b", {0})}), "") << "of different hosts";
  EXPECT_EQ(warnings({on("a", {}), on("a", {})}), "") << "unknown";
}

TEST(Warnings, tell_of_a_gpu_at_another_socket) {
  const std::string text = warnings({with_gpu("1", 0, 0, 0), with_gpu("2", 1, 0, 0), with_gpu("3", -1, 0, 0)});
  EXPECT_THAT(text, HasSubstr("rank 1 on a runs on socket 0, its GPU is at socket 1: "));
  EXPECT_THAT(text, HasSubstr("--gpu-bind=closest"));
  EXPECT_THAT(text, Not(HasSubstr("more like it")));
}

TEST(Warnings, tell_of_gpus_without_ranks) {
  EXPECT_THAT(warnings({with_gpu("1", -1, 0, 4), with_gpu("2", -1, 0, 4)}),
              AllOf(HasSubstr("a has 4 GPUs, of which its 2 ranks use 2: "), HasSubstr("--ntasks-per-node")));
  EXPECT_EQ(warnings({with_gpu("1", -1, 0, 2), with_gpu("2", -1, 0, 2)}), "");
  RankPlace on_cpus = on("a", {0});
  on_cpus.host_gpus = 1;
  EXPECT_THAT(warnings({on_cpus}),
              AllOf(HasSubstr("a has 1 GPU, of which its 1 rank use none"), HasSubstr("scripts/build cuda")));
}

TEST(RankTable, has_a_line_for_each_rank) {
  RankPlace cpu = on("node10", {});
  cpu.cores = "0-3";
  cpu.numa_node = 0;
  RankPlace gpu = with_gpu("0000:1b:00.0", 1, 1, 1);
  gpu.local_rank = 1;
  EXPECT_EQ(rank_table(std::vector{cpu, gpu}),
            "rank       host    local rank  NUMA node  runs on\n"
            "0          node10           0          0  cores 0-3\n"
            "1          a                1          -  NVIDIA H200 at 0000:1b:00.0\n");
}

TEST(RankTable, of_many_ranks_ends_early) {
  const std::string text = rank_table(std::vector<RankPlace>(20, on("a", {0})));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 18);
  EXPECT_THAT(text, HasSubstr("...        4 more: /ranks of run.h5"));
}

}  // namespace
}  // namespace tessera::jobs
