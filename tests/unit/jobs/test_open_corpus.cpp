/// Ranks that check the tokens of a corpus together: one message for a fault, one end for a signal.
#include "jobs/open_corpus.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "jobs/failure.hpp"
#include "kernels/core/events.hpp"
#include "unit/io/scratch.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::jobs {
namespace {

using test::TestWorld;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::int64_t kPerRank = data::kReported;  // tokens of the first round

config::Settings settings_for(const test::fs::path& path) {
  config::Settings settings;
  settings.data.source = config::DataSource::tokens;
  settings.data.path = path.string();
  settings.model.vocab_size = 100;
  return settings;
}

data::Corpus open(parallel::World& world, const config::Settings& settings,
                  const std::function<std::string()>& stop_reason) {
  io::Console console(io::Console::Style::silent, 1);
  return open_corpus(world, settings, stop_reason, console);
}

/// What every rank throws.
Failure failure_to_open(TestWorld& world, const config::Settings& settings,
                        const std::function<std::string()>& stop_reason) {
  try {
    open(world, settings, stop_reason);
  } catch (const parallel::AgreedError& failure) {
    world.stay();
    return failure_of(failure);
  }
  ADD_FAILURE() << "nothing was thrown";
  return {Exit::finished, ""};
}

/// A file of uint16 zeros that takes no space, the same for all ranks; rank 0 removes it.
class Zeros {
 public:
  Zeros(TestWorld& world, std::int64_t tokens) : world_(world), path_(world.broadcast((folder_ / "a.bin").string())) {
    if (world.rank() == 0) {
      std::ofstream(path_).close();
      test::fs::resize_file(path_, static_cast<std::uintmax_t>(2 * tokens));
    }
    world.barrier();
  }
  ~Zeros() { world_.barrier(); }

  void put(std::int64_t position, std::uint16_t token) {
    if (world_.rank() == 0) {
      std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
      file.seekp(2 * position);
      file.write(reinterpret_cast<const char*>(&token), sizeof token);
    }
    world_.barrier();
  }

  data::Corpus open(const std::function<std::string()>& stop_reason) {
    return jobs::open(world_, settings_for(path_), stop_reason);
  }
  Failure failure(const std::function<std::string()>& stop_reason) {
    return failure_to_open(world_, settings_for(path_), stop_reason);
  }

 private:
  TestWorld& world_;
  test::ScratchFolder folder_;  // rank 0's is used
  std::string path_;
};

std::string no_reason() { return ""; }

TEST(OpenCorpus, gives_what_one_rank_alone_would_open) {
  TestWorld world(departure_of);
  Zeros zeros(world, 10 * kPerRank * world.size() + 7);
  const data::Corpus corpus = zeros.open(no_reason);
  EXPECT_EQ(corpus.size(), 10 * kPerRank * world.size() + 7);
  const auto alone = data::Corpus::open(config::DataSource::tokens, corpus.name(), 100, 1);
  EXPECT_EQ(corpus.fingerprint(), alone.fingerprint());
}

TEST(OpenCorpus, the_first_fault_in_the_file_is_told_by_all) {
  TestWorld world(departure_of);
  Zeros zeros(world, 5 * kPerRank * world.size());
  for (const std::int64_t at :
       {5 * kPerRank * world.size() - 1, kPerRank * world.size() + 3, kPerRank - 1, kPerRank - 5}) {
    zeros.put(at, 100);  // each before the ones that are there
    const Failure failure = zeros.failure(no_reason);
    EXPECT_EQ(failure.code(), Exit::files);
    EXPECT_THAT(failure.what(), HasSubstr("token 100 at position " + std::to_string(at)));
    EXPECT_THAT(failure.what(), Not(StartsWith("rank"))) << "each of them reads that file";
  }
}

TEST(OpenCorpus, a_signal_to_one_rank_stops_all) {
  TestWorld world(departure_of);
  Zeros zeros(world, std::int64_t{1} << 36);  // 128 GiB: minutes, if nothing stops it
  int asked = 0;
  const Failure failure =
      zeros.failure([&]() -> std::string { return world.rank() == world.size() - 1 && ++asked == 2 ? "SIGTERM" : ""; });
  EXPECT_EQ(failure.code(), Exit::stopped);
  EXPECT_THAT(failure.what(), AllOf(StartsWith("stopped by SIGTERM"), HasSubstr("a.bin"),
                                    HasSubstr("start it again as before"), Not(HasSubstr("--resume"))));
}

/// Counts the blocks that this rank checks, and takes its time after the first `fast` of them.
class Slow final : public events::Listener {
 public:
  Slow(int fast, double block_s) : fast_(fast), block_s_(block_s) { events::add_listener(*this); }
  ~Slow() override { events::remove_listener(*this); }
  Slow(const Slow&) = delete;
  Slow& operator=(const Slow&) = delete;

  void on(const events::Region& region) override {
    if (region.label != "data/check") return;
    if (++blocks > fast_) std::this_thread::sleep_for(std::chrono::duration<double>(block_s_));
  }
  using events::Listener::on;

  int blocks = 0;

 private:
  int fast_;
  double block_s_;
};

/// The first part in the page cache, say, and the rest on a slow disk: pieces have grown when it begins.
TEST(OpenCorpus, a_signal_is_seen_within_a_piece_and_ends_those_of_all) {
  TestWorld world(departure_of);
  Zeros zeros(world, std::int64_t{1} << 36);
  constexpr int kFast = 40;  // blocks: a piece of 32 begins before
  const bool is_last = world.rank() == world.size() - 1;
  Slow slow(kFast, is_last ? 0 : 0.5);  // 0.5 s: longer than a round
  const Failure failure = zeros.failure([&] { return is_last && slow.blocks > kFast ? "SIGTERM" : ""; });
  EXPECT_EQ(failure.code(), Exit::stopped);
  EXPECT_LE(slow.blocks, kFast + (is_last ? 1 : 12)) << "the others: those of a few rounds";
}

TEST(OpenCorpus, each_file_is_checked_whole_where_the_ranks_of_a_host_read_their_own) {
  TestWorld world(departure_of);
  const test::ScratchFolder folder;  // of each rank
  const auto before = test::fs::current_path();
  test::fs::current_path(folder.path());
  const std::int64_t tokens = 3 * kPerRank * world.size();
  {
    std::ofstream file("a.bin");
    if (world.rank() == world.size() - 1) {  // in the part of another rank, if they shared the check
      file.seekp(world.size() > 1 ? 0 : 2 * kPerRank);
      file.put(100);
    }
  }
  test::fs::resize_file("a.bin", static_cast<std::uintmax_t>(2 * tokens));
  for (const auto& path : {folder / "a.bin", test::fs::path("a.bin")}) {
    const Failure failure = failure_to_open(world, settings_for(path), no_reason);
    EXPECT_EQ(failure.code(), Exit::files);
    EXPECT_THAT(failure.what(), HasSubstr("a.bin: token 100 at position"));
  }
  test::fs::current_path(before);
}

TEST(OpenCorpus, a_signal_after_the_last_token_leaves_the_end_to_the_steps) {
  TestWorld world(departure_of);
  Zeros zeros(world, 1000);
  EXPECT_EQ(zeros.open([] { return std::string("SIGTERM"); }).size(), 1000);
}

}  // namespace
}  // namespace tessera::jobs
