/// Checkpoints in the background: exchanges on the main threads, failures of all, one lock around HDF5.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>

#include "io/background.hpp"
#include "io/h5.hpp"
#include "tests/unit/io/peers.hpp"
#include "tests/unit/io/scratch.hpp"

namespace tessera::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Two tensors, the first larger than a piece that is written at a time; rank r of R writes every R-th.
struct State {
  explicit State(float first) {
    for (std::size_t i = 0; i < 2; ++i) {
      values[i].assign(i == 0 ? std::size_t{9} << 20 : 3, first + static_cast<float>(i));
      values[i].back() = first + 10;
    }
  }
  io::Background::Work write(const fs::path& run, std::int64_t step, int keep = 1) const {
    return [this, run, step, keep](const io::Peers& peers) {
      std::vector<io::CheckpointTensor> mine;
      for (int i = peers.rank; i < 2; i += peers.ranks) {
        mine.push_back({"params", "tensor." + std::to_string(i), {3, std::ssize(values[i]) / 3}, [this, i] {
                          return std::span(values[i]);
                        }});
      }
      io::CheckpointState state;
      state.step = step;
      io::write_checkpoint(run, state, mine, peers, keep);
    };
  }
  std::vector<float> values[2];
};

void expect_whole(const fs::path& folder, const State& state) {
  const io::CheckpointReader reader = io::open_checkpoint(folder, {}, "");
  for (int i = 0; i < 2; ++i) {
    std::vector<float> values(state.values[i].size());
    reader.read("params", "tensor." + std::to_string(i), values);
    EXPECT_TRUE(values == state.values[i]) << i;
  }
}

/// Between steps: exchanges if all ranks' threads can go on.
void between_steps(io::Background& background, const io::Peers& peers) {
  bool can_all = true;
  for (const std::string& rank : peers.all_gather([&] { return std::string(background.can_go_on() ? "" : "busy"); })) {
    can_all = can_all && rank.empty();
  }
  if (can_all) background.go_on();
}

TEST(Background, checkpoints_are_written_beside_other_files) {
  const ScratchFolder run;
  const State first(1), second(2);
  const auto thrown = run_ranks(2, [&](const io::Peers& peers) {
    io::Background background(peers);
    background.start(first.write(run.path(), 10));
    for (int step = 0; background.is_under_way(); ++step) {
      const fs::path other = run / ("other." + std::to_string(peers.rank));
      io::h5::File file = io::h5::File::create(other);
      file.write("rows", std::vector<std::int64_t>(100, step), {"1", "rows of a step"});
      file.close();
      EXPECT_THAT(io::h5::File::open(other).dataset("rows").values<std::int64_t>(), Each(step));
      between_steps(background, peers);
    }
    EXPECT_GT(background.seconds(), 0);
    background.start(second.write(run.path(), 20, 2));
    background.finish();
    EXPECT_FALSE(background.is_under_way());
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
  expect_whole(run / "checkpoints/step_00000010", first);
  expect_whole(run / "checkpoints/step_00000020", second);
}

/// On two ranks: `act`, with another state, once step 10 has been saved; what that throws. Step 10 must be left, alone.
std::vector<std::string> after_a_checkpoint(
    const std::function<void(io::Background&, const io::Peers&, const State& second, const fs::path& run)>& act) {
  const ScratchFolder run;
  const State first(1), second(2);
  const auto thrown = run_ranks(2, [&](const io::Peers& peers) {
    io::Background background(peers);
    background.start(first.write(run.path(), 10));
    background.finish();
    act(background, peers, second, run.path());
  });
  EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("latest", "step_00000010"));
  expect_whole(run / "checkpoints/step_00000010", first);
  return thrown;
}

TEST(Background, a_failure_of_one_rank_is_that_of_all_and_leaves_the_one_before) {
  const auto thrown = after_a_checkpoint(
      [](io::Background& background, const io::Peers& peers, const State& second, const fs::path& run) {
        background.start([&](const io::Peers& mine) {
          io::Peers failing = mine;
          failing.progress = [&] {
            if (peers.rank == 1) throw Failure(Exit::files, "the disk");
          };
          second.write(run, 20)(failing);
        });
        try {
          background.finish();
        } catch (...) {
          EXPECT_FALSE(background.is_under_way());
          throw;
        }
      });
  EXPECT_THAT(thrown, Each(AllOf(HasSubstr("rank 1: "), HasSubstr("the disk"))));
}

TEST(Background, what_is_abandoned_leaves_the_one_before) {
  const auto thrown = after_a_checkpoint(
      [](io::Background& background, const io::Peers& peers, const State& second, const fs::path& run) {
        background.start(second.write(run, 20));
        between_steps(background, peers);
      });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

// A watchdog must notice a thread that hangs, and none that is only slow.
TEST(Background, finish_gives_signs_of_life_only_with_progress) {
  int signs = 0;
  std::atomic<bool> may_end = false;
  io::Peers counting;
  counting.all_gather = [&](const io::Peers::Work& work) {
    if (++signs == 3) may_end = true;
    return std::vector{work()};
  };
  io::Background background(counting);
  background.start([&](const io::Peers& peers) {
    while (!may_end) {
      peers.progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  background.finish();
  EXPECT_GE(signs, 3);

  signs = 10;
  background.start([&](const io::Peers&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    EXPECT_EQ(signs, 10) << "a sign of life of a thread that did nothing";
  });
  background.finish();
}

}  // namespace
}  // namespace tessera::test
