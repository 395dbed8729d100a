/// Ranks that check the tokens of a corpus together: one message for a fault, one end for a signal.
#include "jobs/open_corpus.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "jobs/together.hpp"
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

/// A file of uint16 zeros that takes no space, the same for all ranks; rank 0 removes it.
class Zeros {
 public:
  Zeros(TestWorld& world, std::int64_t tokens)
      : world_(world), path_(world.broadcast((folder_ / "a.bin").string())), settings_() {
    if (world.rank() == 0) {
      std::ofstream(path_).close();
      test::fs::resize_file(path_, static_cast<std::uintmax_t>(2 * tokens));
    }
    world.barrier();
    settings_.data.source = config::DataSource::tokens;
    settings_.data.path = path_;
    settings_.model.vocab_size = 100;
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
    io::Console console(io::Console::Style::silent, 1);
    return open_corpus(world_, settings_, stop_reason, console);
  }

  /// What every rank throws.
  Failure failure(const std::function<std::string()>& stop_reason) {
    try {
      open(stop_reason);
    } catch (const CollectiveFailure& failure) {
      world_.stay();
      return failure;
    }
    ADD_FAILURE() << "nothing was thrown";
    return {Exit::finished, ""};
  }

 private:
  TestWorld& world_;
  test::ScratchFolder folder_;  // rank 0's is used
  std::string path_;
  config::Settings settings_;
};

std::string no_reason() { return ""; }

TEST(OpenCorpus, gives_what_one_rank_alone_would_open) {
  TestWorld world;
  Zeros zeros(world, 10 * kPerRank * world.size() + 7);
  const data::Corpus corpus = zeros.open(no_reason);
  EXPECT_EQ(corpus.size(), 10 * kPerRank * world.size() + 7);
  const auto alone = data::Corpus::open(config::DataSource::tokens, corpus.name(), 100, 1);
  EXPECT_EQ(corpus.fingerprint(), alone.fingerprint());
}

TEST(OpenCorpus, the_first_fault_in_the_file_is_told_by_all) {
  TestWorld world;
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
  TestWorld world;
  Zeros zeros(world, std::int64_t{1} << 36);  // 128 GiB: minutes, if nothing stops it
  int asked = 0;
  const Failure failure =
      zeros.failure([&]() -> std::string { return world.rank() == world.size() - 1 && ++asked == 2 ? "SIGTERM" : ""; });
  EXPECT_EQ(failure.code(), Exit::stopped);
  EXPECT_THAT(failure.what(), AllOf(StartsWith("stopped by SIGTERM"), HasSubstr("a.bin"), HasSubstr("--resume auto")));
}

TEST(OpenCorpus, a_signal_after_the_last_token_leaves_the_end_to_the_steps) {
  TestWorld world;
  Zeros zeros(world, 1000);
  EXPECT_EQ(zeros.open([] { return std::string("SIGTERM"); }).size(), 1000);
}

}  // namespace
}  // namespace tessera::jobs
