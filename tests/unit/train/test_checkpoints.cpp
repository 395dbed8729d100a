// Checkpoints written in every stage by any number of ranks, read in every stage by this one's. Ranks that are not here
// write in the process of rank 0, each what its part of the state saves.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint.hpp"
#include "memory/arena.hpp"
#include "train/state.hpp"
#include "unit/io/peers.hpp"
#include "unit/io/scratch.hpp"
#include "unit/train/ways.hpp"

namespace tessera::test {
namespace {

/// A part of a tensor, as one rank writes it.
struct Part {
  std::string group, label;
  std::vector<std::int64_t> shape;
  std::vector<std::string> axes;
  std::int64_t first, count;
  std::vector<float> values;
  bool operator==(const Part&) const = default;
};

Part part_of(const train::SavedTensor& tensor) {
  const std::span<const float> values = tensor.data();
  const model::Param& param = *tensor.param;
  return {
      tensor.group, param.label, param.shape, param.axes, tensor.first, tensor.count, {values.begin(), values.end()}};
}

/// What each of `ranks` ranks that share a step in this way writes of `state`.
std::vector<std::vector<Part>> parts_of(const Way& way, int ranks, const State& state) {
  const train::Plan plan = train::plan_training(settings_of(way), Dtype::fp32, ranks);
  const memory::Arena arena(plan.layout);
  const int shards = plan.sharing.ownership.shards(), copies = ranks / shards;
  std::vector<std::vector<Part>> parts(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const train::State kept(plan, plan.sharing.shard_of(rank), arena);
    kept.load(Device(), [&](const train::StateTensor& tensor) { fill(tensor, state); });
    const auto is_mine = [&](std::size_t number) { return static_cast<int>(number % copies) == rank / shards; };
    for (const train::SavedTensor& tensor : kept.saved({}, is_mine)) parts[rank].push_back(part_of(tensor));
  }
  return parts;
}

/// Writes a checkpoint of step 1, each rank its parts.
void write_parts(const fs::path& run, const std::vector<std::vector<Part>>& parts) {
  io::CheckpointState at_step_1;
  at_step_1.step = 1;
  const auto write_mine = [&](const io::Peers& peers) {
    std::vector<io::CheckpointTensor> mine;
    for (const Part& part : parts[peers.rank]) {
      const auto data = [&] { return std::span<const float>(part.values); };
      mine.push_back({part.group, part.label, part.shape, data, part.axes, part.first, part.count});
    }
    io::write_checkpoint(run, at_step_1, mine, peers, 1);
  };
  for (const std::string& fault : run_ranks(static_cast<int>(parts.size()), write_mine)) EXPECT_EQ(fault, "");
}

TEST(Checkpoints, of_every_stage_and_rank_count_are_read_in_every_stage) {
  parallel::World& world = kRanks->world();
  const io::Peers peers{world.rank(), world.size(),
                        [&](const io::Peers::Work& work) { return world.all_gather(work); }};
  std::vector<std::unique_ptr<Training>> readers;
  for (const Way& way : kStages) readers.push_back(std::make_unique<Training>(settings_of(way)));
  for (int step = 0; step < 2; ++step) readers[0]->step();
  const State state = joined_state(*readers[0]->trainer, world);
  for (const int writers : {1, 2, 3, 4, 5, 7}) {
    std::vector<std::vector<Part>> written;
    int checkpoints = 0;
    for (std::size_t from = 0; from < readers.size(); ++from) {
      const auto parts = parts_of(kStages[from], writers, state);
      if (writers == world.size()) {  // these ranks' trainers write the same
        readers[from]->load(state);
        std::vector<Part> mine;
        for (const train::SavedTensor& part : readers[from]->trainer->saved_state(true)) mine.push_back(part_of(part));
        EXPECT_TRUE(mine == parts[world.rank()]) << kStages[from].name << " on " << writers;
      }
      if (parts == written) continue;  // the same files
      written = parts;
      ++checkpoints;
      const ScratchFolder run;
      if (world.rank() == 0) write_parts(run.path(), parts);
      const fs::path folder = fs::path(world.broadcast(run.path().string())) / "checkpoints/step_00000001";
      const io::CheckpointReader checkpoint = io::open_checkpoint(folder, peers, "");
      for (std::size_t to = 0; to < readers.size(); ++to) {
        SCOPED_TRACE(kStages[from].name + " on " + std::to_string(writers) + " to " + kStages[to].name);
        Training& reader = *readers[to];
        reader.trainer->initialize(14);
        reader.load([&](const train::StateTensor& tensor) {
          checkpoint.read(tensor.group, tensor.param->label, tensor.first, tensor.data);
        });
        EXPECT_TRUE(joined_state(*reader.trainer, world) == state);
      }
      world.barrier();  // before rank 0 deletes what the others read
    }
    EXPECT_EQ(checkpoints, writers == 1 ? 1 : 2) << "whole tensors, and parts, which are the same in each stage";
  }
}

}  // namespace
}  // namespace tessera::test
