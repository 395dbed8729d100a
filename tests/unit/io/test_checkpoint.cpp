/// Checkpoints: complete or absent, verified before use, agreed on by all ranks.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <map>
#include <numeric>

#include "io/checkpoint.hpp"
#include "io/checkpoint_detail.hpp"
#include "io/files.hpp"
#include "io/h5.hpp"
#include "tests/unit/io/peers.hpp"
#include "tests/unit/io/scratch.hpp"

namespace tessera::test {
namespace {

using io::CheckpointState;
using io::CheckpointTensor;
using io::Peers;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

const Peers kAlone{};

CheckpointState state_at(std::int64_t step) {
  return {.step = step,
          .sample_index = 8 * step,
          .seed = ~std::uint64_t{0},
          .loss_scale = 65536.0,
          .good_steps = 3,
          .optimizer_steps = step - 1,
          .left_out = {8, 16, 48, 56},
          .norms = {0.1, 1e-300, 12345678.9},
          .ranks = 0,
          .shard = step == 12 ? "optimizer" : "",
          .deck = "[model]\nd_model = 4\n",
          .tokenisation = "bytes",
          .corpus_fingerprint = step == 12 ? "0123456789abcdef" : "",
          .gemm = "sgemm OpenBLAS",
          .git_hash = "abc"};
}

/// Tensors of which rank r of R owns every R-th; the values tell tensor, step and position.
struct Weights {
  explicit Weights(std::int64_t step, std::int64_t scale = 1) {
    for (const std::string group : {"params", "moments/m", "moments/v"}) {
      for (const auto& [label, shape] :
           std::map<std::string, std::vector<std::int64_t>>{{"embedding.weight", {7, 4 * scale}},
                                                            {"block.00.attn.qkv.weight", {12, 4 * scale}},
                                                            {"head.norm.gain", {4}}}) {
        auto& values = storage.emplace_back(std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>()));
        std::iota(values.begin(), values.end(),
                  static_cast<float>(1000 * step + 100 * static_cast<std::int64_t>(storage.size())));
        tensors.push_back({group, label, shape, {}});
      }
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].data = [values = std::span<const float>(storage[i])] { return values; };
    }
  }
  std::vector<CheckpointTensor> of(int rank, int ranks) const {
    std::vector<CheckpointTensor> mine;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (static_cast<int>(i) % ranks == rank) mine.push_back(tensors[i]);
    }
    return mine;
  }
  std::vector<std::vector<float>> storage;
  std::vector<CheckpointTensor> tensors;
};

void write_steps(const fs::path& run, std::vector<std::int64_t> steps, int keep = 10, int ranks = 1) {
  for (const std::int64_t step : steps) {
    const Weights weights(step);
    const auto thrown = run_ranks(ranks, [&](const Peers& peers) {
      write_checkpoint(run, state_at(step), weights.of(peers.rank, peers.ranks), peers, keep);
    });
    ASSERT_THAT(thrown, Each(IsEmpty()));
  }
}

void expect_whole(const fs::path& folder, std::int64_t step, const Peers& peers = kAlone) {
  const auto reader = open_checkpoint(folder, peers, "");
  ASSERT_EQ(reader.state().step, step);
  const Weights weights(step);
  for (const CheckpointTensor& tensor : weights.tensors) {
    ASSERT_EQ(reader.shape(tensor.group, tensor.label), tensor.shape);
    const std::span<const float> written = tensor.data();
    std::vector<float> values(written.size());
    reader.read(tensor.group, tensor.label, values);
    ASSERT_TRUE(std::equal(values.begin(), values.end(), written.begin())) << tensor.group << "/" << tensor.label;
  }
}

TEST(Checkpoint, comes_back_on_any_number_of_ranks) {
  for (const int writers : {1, 2, 3, 5}) {
    const ScratchFolder run;
    write_steps(run.path(), {10}, 2, writers);
    for (const int readers : {1, 2, 4}) {
      const auto thrown =
          run_ranks(readers, [&](const Peers& peers) { expect_whole(run / "checkpoints/step_00000010", 10, peers); });
      EXPECT_THAT(thrown, Each(IsEmpty())) << writers << " writers, " << readers << " readers";
    }
  }
}

// A scale lists what it measures in an attribute, which HDF5 limits to 64 KiB.
TEST(Checkpoint, more_tensors_along_an_axis_than_its_scale_can_list) {
  const ScratchFolder run;
  const std::vector<float> value{1, 2};
  std::vector<CheckpointTensor> tensors;
  for (int i = 0; i < 4100; ++i) {
    tensors.push_back({"params", "gain." + std::to_string(i), {2}, [&] { return std::span(value); }, {"channel"}});
  }
  write_checkpoint(run.path(), state_at(10), tensors, kAlone, 1);
  open_checkpoint(run / "checkpoints/step_00000010", kAlone, "");
  const auto index = io::h5::File::open(run / "checkpoints/step_00000010/index.h5");
  EXPECT_THAT(index.group("params").names(), SizeIs(4100));
  EXPECT_THAT(index.dataset("channel").values<std::int32_t>(), ElementsAre(0, 1));
}

TEST(Checkpoint, axis_of_two_extents_is_refused) {
  const ScratchFolder run;
  const std::vector<float> value(3);
  const auto of = [&](const char* label, std::int64_t extent) {
    return CheckpointTensor{"params",
                            label,
                            {extent},
                            [&value, extent] { return std::span(value).first(static_cast<std::size_t>(extent)); },
                            {"channel"}};
  };
  const std::vector<CheckpointTensor> tensors{of("a", 2), of("b", 3)};
  EXPECT_THAT(failure_of([&] { write_checkpoint(run.path(), state_at(10), tensors, kAlone, 1); }),
              AllOf(HasSubstr("params/b has 3 entries along channel"), HasSubstr("2")));
}

TEST(Checkpoint, state_comes_back) {
  const ScratchFolder run;
  write_steps(run.path(), {12}, 2, 2);
  const auto reader = io::open_checkpoint(run / "checkpoints/step_00000012/", kAlone, "");
  const CheckpointState& s = reader.state();
  EXPECT_EQ(s.step, 12);
  EXPECT_EQ(s.sample_index, 96);
  EXPECT_EQ(s.seed, ~std::uint64_t{0});
  EXPECT_EQ(s.loss_scale, 65536.0);
  EXPECT_EQ(s.good_steps, 3);
  EXPECT_EQ(s.optimizer_steps, 11);
  EXPECT_THAT(s.left_out, ElementsAre(8, 16, 48, 56));
  EXPECT_THAT(s.norms, ElementsAre(0.1, 1e-300, 12345678.9));
  EXPECT_EQ(s.ranks, 2);
  EXPECT_EQ(s.shard, "optimizer");
  EXPECT_EQ(s.deck, "[model]\nd_model = 4\n");
  EXPECT_EQ(s.tokenisation, "bytes");
  EXPECT_EQ(s.corpus_fingerprint, "0123456789abcdef");
  EXPECT_EQ(s.gemm, "sgemm OpenBLAS");
  const auto index = io::h5::File::open(run / "checkpoints/step_00000012/index.h5");
  EXPECT_THAT(index.group("params").names(),
              ElementsAre("block.00.attn.qkv.weight", "embedding.weight", "head.norm.gain"));
  std::vector<float> short_by_one(27);
  EXPECT_THAT(failure_of([&] { reader.read("params", "embedding.weight", short_by_one); }),
              AllOf(HasSubstr("embedding.weight"), HasSubstr("[7, 4]")));
}

// As a program wrote it that knew of neither: the attribute is not there.
TEST(Checkpoint, without_a_fingerprint_or_sharding_comes_back_without) {
  const ScratchFolder run;
  write_steps(run.path(), {10, 12}, 2);
  const auto early = io::h5::File::open(run / "checkpoints/step_00000010/index.h5");
  const auto late = io::h5::File::open(run / "checkpoints/step_00000012/index.h5");
  for (const char* name : {"corpus_fingerprint", "shard"}) {
    EXPECT_FALSE(early.has_attribute(name)) << name;
    EXPECT_TRUE(late.has_attribute(name)) << name;
  }
  const auto reader = io::open_checkpoint(run / "checkpoints/step_00000010", kAlone, "");
  EXPECT_EQ(reader.state().corpus_fingerprint, "");
  EXPECT_EQ(reader.state().shard, "");
}

TEST(Checkpoint, folder_can_be_moved) {
  const ScratchFolder run;
  write_steps(run.path(), {10}, 2, 2);
  fs::rename(run / "checkpoints/step_00000010", run / "elsewhere");
  expect_whole(run / "elsewhere", 10);
}

TEST(Checkpoint, keeps_the_newest_and_moves_latest) {
  const ScratchFolder run;
  write_steps(run.path(), {10, 20, 30, 40}, 2);
  EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("latest", "step_00000030", "step_00000040"));
  EXPECT_EQ(read_bytes(run / "checkpoints/latest"), "step_00000040\n");
  EXPECT_EQ(io::newest_checkpoint(run.path()), run / "checkpoints/step_00000040");
}

TEST(Checkpoint, rewind_sets_later_checkpoints_aside) {
  const ScratchFolder run;
  write_steps(run.path(), {10, 20, 30});
  write_bytes(run / "run.h5", "rows");
  EXPECT_EQ(io::rewind_to(run.path(), run / "checkpoints/step_00000010"), run / "checkpoints/abandoned_01");
  EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("abandoned_01", "latest", "step_00000010"));
  EXPECT_THAT(names_in(run / "checkpoints/abandoned_01"), ElementsAre("run.h5", "step_00000020", "step_00000030"));
  EXPECT_EQ(read_bytes(run / "checkpoints/abandoned_01/run.h5"), "rows");
  EXPECT_EQ(read_bytes(run / "run.h5"), "rows");  // cutting it is the trace's
  EXPECT_EQ(io::newest_checkpoint(run.path()), run / "checkpoints/step_00000010");
  expect_whole(run / "checkpoints/abandoned_01/step_00000030", 30);

  write_steps(run.path(), {20}, 1);  // the new future, and what it prunes
  EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("abandoned_01", "latest", "step_00000020"));
  EXPECT_EQ(io::rewind_to(run.path(), run / "checkpoints/step_00000020"), std::nullopt);
}

TEST(Checkpoint, rewind_to_a_link_goes_by_the_links_name) {
  const ScratchFolder run;
  write_steps(run.path(), {10, 20, 30}, 9);
  const fs::path checkpoints = run / "checkpoints";
  fs::create_directory(run / "archive");
  for (const auto& [step, away] : {std::pair("step_00000020", "final"), std::pair("step_00000030", "step_00000001")}) {
    fs::rename(checkpoints / step, run / "archive" / away);
    fs::create_directory_symlink(run / "archive" / away, checkpoints / step);
  }
  EXPECT_EQ(io::newest_checkpoint(run.path()), checkpoints / "step_00000030");
  EXPECT_EQ(io::rewind_to(run.path(), checkpoints / "step_00000030"), std::nullopt);
  EXPECT_EQ(io::rewind_to(run.path(), checkpoints / "step_00000020/"), checkpoints / "abandoned_01");
  EXPECT_THAT(names_in(checkpoints), ElementsAre("abandoned_01", "latest", "step_00000010", "step_00000020"));
  EXPECT_EQ(io::named_by_latest(run.path()), "step_00000020");
  fs::create_directory_symlink("step_00000010", checkpoints / "best");
  EXPECT_EQ(io::rewind_to(run.path(), checkpoints / "best"), checkpoints / "abandoned_02");
  EXPECT_EQ(io::named_by_latest(run.path()), "step_00000010");
}

TEST(Checkpoint, rewind_that_was_killed_is_completed_by_the_next) {
  const ScratchFolder run;
  write_steps(run.path(), {10, 20, 30});
  write_bytes(run / "run.h5", "rows");
  write_bytes(run / "checkpoints/latest", "step_00000010\nabandoned_01\n");  // killed right after it had moved
  EXPECT_EQ(io::newest_checkpoint(run.path()), run / "checkpoints/step_00000010");
  fs::create_directory(run / "checkpoints/abandoned_01");  // and killed again, with a part of the work done
  fs::rename(run / "checkpoints/step_00000020", run / "checkpoints/abandoned_01/step_00000020");
  EXPECT_EQ(io::rewind_to(run.path(), run / "checkpoints/step_00000010"), run / "checkpoints/abandoned_01");
  EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("abandoned_01", "latest", "step_00000010"));
  EXPECT_THAT(names_in(run / "checkpoints/abandoned_01"), ElementsAre("run.h5", "step_00000020", "step_00000030"));
  EXPECT_EQ(read_bytes(run / "checkpoints/latest"), "step_00000010\n");
}

TEST(Checkpoint, write_that_was_killed_before_latest_moved_is_complete) {
  const ScratchFolder run;
  write_steps(run.path(), {10, 20});
  write_bytes(run / "checkpoints/latest", "step_00000010\n");
  EXPECT_EQ(io::newest_checkpoint(run.path()), run / "checkpoints/step_00000020");
  EXPECT_EQ(io::named_by_latest(run.path()), "step_00000010");
  EXPECT_EQ(io::rewind_to(run.path(), run / "checkpoints/step_00000020"), std::nullopt);  // as a resume does
  EXPECT_EQ(io::named_by_latest(run.path()), "step_00000020");
  EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("latest", "step_00000010", "step_00000020"));
}

TEST(Checkpoint, files_that_go_while_they_are_read_are_missed) {
  const ScratchFolder run;
  write_steps(run.path(), {10}, 2, 2);
  const auto reader = io::open_checkpoint(run / "checkpoints/step_00000010", {}, "--resume ");
  EXPECT_NO_THROW(reader.require_unchanged());
  fs::remove(run / "checkpoints/step_00000010/rank_00001.h5");
  EXPECT_THAT(failure_of([&] { reader.require_unchanged(); }), HasSubstr("rank_00001.h5: disappeared"));
}

TEST(Checkpoint, same_step_is_replaced) {
  const ScratchFolder run;
  write_steps(run.path(), {10}, 2, 3);
  write_steps(run.path(), {10}, 2, 1);
  EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("latest", "step_00000010"));
  EXPECT_THAT(names_in(run / "checkpoints/step_00000010"), ElementsAre("index.h5", "index.xxh3", "rank_00000.h5"));
  expect_whole(run / "checkpoints/step_00000010", 10);
}

TEST(Checkpoint, newest_without_latest_is_the_highest_step) {
  const ScratchFolder run;
  EXPECT_EQ(io::newest_checkpoint(run.path()), std::nullopt);
  write_steps(run.path(), {10, 20});
  fs::create_directory(run / "checkpoints/step_of_mine");
  fs::create_directory(run / "checkpoints/.tmp_step_00000030");
  write_bytes(run / "checkpoints/latest", "step_00000099\n");
  EXPECT_EQ(io::newest_checkpoint(run.path()), run / "checkpoints/step_00000020");
  fs::remove(run / "checkpoints/latest");
  EXPECT_EQ(io::newest_checkpoint(run.path()), run / "checkpoints/step_00000020");
}

TEST(Checkpoint, what_a_killed_run_left_is_removed) {
  const ScratchFolder run;
  fs::create_directories(run / "checkpoints/.tmp_step_00000007");
  write_bytes(run / "checkpoints/.tmp_step_00000007/rank_00000.h5", "half");
  write_steps(run.path(), {10});
  EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("latest", "step_00000010"));
}

TEST(CheckpointReading, hosts_that_hold_different_checkpoints_under_one_name_are_told) {
  ScratchFolder here, there;
  write_steps(here.path(), {10}, 5, 2);
  fs::copy(here.path(), there.path(), fs::copy_options::recursive);
  const fs::path step = "checkpoints/step_00000010";
  std::vector<std::string> thrown = run_ranks(
      2, [&](const Peers& peers) { io::open_checkpoint((peers.rank == 0 ? here : there) / step, peers, "--resume "); });
  EXPECT_THAT(thrown, Each(IsEmpty())) << "copies are the same checkpoint";
  write_steps(there.path(), {20}, 5, 2);
  thrown = run_ranks(2, [&](const Peers& peers) {
    io::open_checkpoint(peers.rank == 0 ? here / step : there / "checkpoints/step_00000020", peers, "--resume ");
  });
  EXPECT_THAT(thrown, Each(HasSubstr("differs from the checkpoint on rank 0's host")));
}

TEST(ShellWord, is_read_by_a_shell_as_the_path) {
  EXPECT_EQ(io::shell_word("runs/a-1/step_00000010"), "runs/a-1/step_00000010");
  EXPECT_EQ(io::shell_word("my run's"), R"('my run'\''s')");
  EXPECT_EQ(io::shell_word("a$b"), "'a$b'");
}

// Any damage is found and named before anything is used, on one rank or several, and the previous one is offered.
class DamagedCheckpoint : public testing::Test {
 protected:
  void SetUp() override { write_steps(run_.path(), {10, 20}, 5, 2); }
  std::string refusal() {
    const std::string alone = failure_of([&] { io::open_checkpoint(folder_, kAlone, "--resume "); });
    const auto together = run_ranks(3, [&](const Peers& peers) { io::open_checkpoint(folder_, peers, "--resume "); });
    EXPECT_THAT(together, Each(together[0])) << "ranks disagree";
    EXPECT_THAT(together[0], HasSubstr("rank "));
    return alone;
  }
  auto names_and_offers(const std::string& file, const std::string& what) {
    return AllOf(HasSubstr((folder_ / file).string()), HasSubstr(what),
                 HasSubstr("--resume '" + (run_ / "checkpoints/step_00000010").string() + "'"));
  }
  ScratchFolder run_;
  fs::path folder_ = run_ / "checkpoints/step_00000020";
};

TEST_F(DamagedCheckpoint, truncated_rank_file) {
  fs::resize_file(folder_ / "rank_00001.h5", fs::file_size(folder_ / "rank_00001.h5") - 1);
  EXPECT_THAT(refusal(), names_and_offers("rank_00001.h5", "bytes, the index says"));
}

TEST_F(DamagedCheckpoint, the_one_before_is_named_as_it_is_typed) {
  fs::remove(folder_ / "rank_00001.h5");
  EXPECT_THAT(failure_of([&] { io::open_checkpoint(folder_, kAlone, "job.input="); }),
              AllOf(HasSubstr("job.input='" + (run_ / "checkpoints/step_00000010").string() + "'"),
                    Not(HasSubstr("--resume"))));
}

TEST_F(DamagedCheckpoint, missing_rank_file) {
  fs::remove(folder_ / "rank_00001.h5");
  EXPECT_THAT(refusal(), names_and_offers("rank_00001.h5", "No such file"));
}

TEST_F(DamagedCheckpoint, flipped_byte_anywhere_in_a_rank_file) {
  const auto size = fs::file_size(folder_ / "rank_00000.h5");
  for (std::uintmax_t at = 0; at < size; at += 997) {
    flip_byte(folder_ / "rank_00000.h5", at);
    ASSERT_THAT(failure_of([&] { io::open_checkpoint(folder_, kAlone, "--resume "); }),
                names_and_offers("rank_00000.h5", "checksum"));
    flip_byte(folder_ / "rank_00000.h5", at);
  }
  flip_byte(folder_ / "rank_00000.h5", size / 2);
  EXPECT_THAT(refusal(), names_and_offers("rank_00000.h5", "checksum"));
}

TEST_F(DamagedCheckpoint, flipped_byte_anywhere_in_the_index) {
  const auto size = fs::file_size(folder_ / "index.h5");
  for (std::uintmax_t at = 0; at < size; at += 101) {
    flip_byte(folder_ / "index.h5", at);
    ASSERT_THAT(failure_of([&] { io::open_checkpoint(folder_, kAlone, "--resume "); }), HasSubstr("index.h5")) << at;
    flip_byte(folder_ / "index.h5", at);
  }
  expect_whole(folder_, 20);
}

TEST_F(DamagedCheckpoint, truncated_or_missing_index) {
  fs::resize_file(folder_ / "index.h5", 700);
  EXPECT_THAT(refusal(), names_and_offers("index.h5", "checksum"));
  fs::remove(folder_ / "index.h5");
  EXPECT_THAT(refusal(), names_and_offers("index.h5", "missing"));
}

TEST_F(DamagedCheckpoint, what_is_no_file_is_told_and_not_waited_for) {
  for (const std::string name : {"index.h5", "index.xxh3", "rank_00001.h5"}) {
    const fs::path file = folder_ / name, aside = folder_ / "aside";
    fs::rename(file, aside);
    fs::create_symlink(name, file);
    EXPECT_THAT(refusal(), names_and_offers(name, "Too many levels of symbolic links"));
    fs::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    EXPECT_THAT(refusal(), names_and_offers(name, ""));
    fs::remove(file);
    fs::create_directory(file);
    EXPECT_THAT(refusal(), names_and_offers(name, ""));
    fs::remove(file);
    fs::rename(aside, file);
  }
  expect_whole(folder_, 20);
}

TEST_F(DamagedCheckpoint, wrong_version) {
  {
    auto file = io::h5::File::create(folder_ / "index.h5");
    file.set_attribute("format_version", std::int64_t{2});
    file.close();
  }
  io::write_text(folder_ / "index.xxh3", io::detail::checksum(folder_ / "index.h5"));
  EXPECT_THAT(refusal(), names_and_offers("index.h5", "format version 2, but this program reads 1"));
}

// What is wrong in an index whose checksum is right, as another program might write it.
TEST_F(DamagedCheckpoint, lists_of_files_that_do_not_agree) {
  const auto with_files = [&](const std::vector<std::string>& names, const std::vector<std::int64_t>& bytes) {
    {
      auto file = io::h5::File::create(folder_ / "index.h5");
      io::detail::write_state(file, state_at(20));
      file.write("files/name", names, {});
      file.write("files/bytes", bytes, {});
      file.write("files/xxh3", names, {});
      file.close();
    }
    io::write_text(folder_ / "index.xxh3", io::detail::checksum(folder_ / "index.h5"));
    return refusal();
  };
  EXPECT_THAT(with_files({"rank_00000.h5", "rank_00001.h5"}, {1}),
              names_and_offers("index.h5", "of 2 files and 1 sizes"));
  for (const std::string outside : {"../step_00000010/rank_00000.h5", "/rank_00000.h5", ""}) {
    EXPECT_THAT(with_files({outside}, {1}), names_and_offers("index.h5", "the file '" + outside + "'"));
  }
}

TEST_F(DamagedCheckpoint, counts_below_zero) {
  for (std::int64_t CheckpointState::*count : {&CheckpointState::sample_index, &CheckpointState::optimizer_steps,
                                               &CheckpointState::good_steps, &CheckpointState::bad_steps}) {
    CheckpointState state = state_at(20);
    state.*count = -3;
    write_checkpoint(run_.path(), state, Weights(20).of(0, 1), kAlone, 5);
    EXPECT_THAT(refusal(), names_and_offers("index.h5", "-3"));
  }
}

// A list that is read only up to where it is damaged would train samples twice, or take other steps for spikes.
TEST_F(DamagedCheckpoint, lists_of_numbers_that_hold_something_else) {
  const auto with = [&](const std::string& name, const std::string& text) {
    {
      auto file = io::h5::File::create(folder_ / "index.h5");
      io::detail::write_state(file, state_at(20));
      file.set_attribute(name, text);
      file.close();
    }
    io::write_text(folder_ / "index.xxh3", io::detail::checksum(folder_ / "index.h5"));
    io::write_text(run_ / "checkpoints/latest", "step_00000010\n");
    EXPECT_TRUE(io::newest_checkpoint(run_.path())) << "which asks who wrote step 20";
    return refusal();
  };
  for (const std::string text : {"0.5 1,25", "0.5 x", "x", "0.5  1", "0.5 1e999", " 0.5", "0x1p3"}) {
    EXPECT_THAT(with("norms", text), names_and_offers("index.h5", "its norms are not numbers from '")) << text;
  }
  for (const std::string text : {"0.5 nan", "inf", "-1"}) {
    EXPECT_THAT(with("norms", text), names_and_offers("index.h5", "its norms hold ")) << text;
  }
  for (const std::string text : {"8 16 x", "8 1.5", "8 99999999999999999999"}) {
    EXPECT_THAT(with("left_out", text), names_and_offers("index.h5", "its left_out are not numbers from '")) << text;
  }
  for (const std::string text : {"8", "8 16 24", "16 8", "8 16 4 6", "-8 16"}) {
    EXPECT_THAT(with("left_out", text), names_and_offers("index.h5", "are not ranges that ascend")) << text;
  }
}

TEST_F(DamagedCheckpoint, no_such_folder) {
  folder_ = run_ / "checkpoints/step_00000015";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("no such checkpoint"), HasSubstr("step_00000010")));
  folder_ = run_ / "nowhere";
  EXPECT_THAT(refusal(), HasSubstr("no older checkpoint"));
}

// If a rank cannot write, all ranks report the same failure, and existing files stay unchanged.
TEST(CheckpointFault, full_disk_on_one_rank_is_agreed_on) {
  const ScratchFolder run;
  write_steps(run.path(), {10}, 2, 3);
  const Weights small(20), large(20, 1000);
  std::vector<std::string> thrown;
  {
    const FileSizeLimit full(60'000);
    thrown = run_ranks(3, [&](const Peers& peers) {
      write_checkpoint(run.path(), state_at(20), (peers.rank == 1 ? large : small).of(peers.rank, 3), peers, 1);
    });
  }
  EXPECT_THAT(thrown[0], AllOf(HasSubstr("rank 1: "), HasSubstr("rank_00001.h5"), HasSubstr("File too large"),
                               HasSubstr("Free some space")));
  EXPECT_THAT(thrown, Each(thrown[0]));
  EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("latest", "step_00000010"));
  expect_whole(run / "checkpoints/step_00000010", 10);
  write_steps(run.path(), {20}, 1, 3);  // and once there is space it works again
  expect_whole(run / "checkpoints/step_00000020", 20);
}

TEST(CheckpointFault, full_disk_is_told_wherever_it_hits) {
  const ScratchFolder run;
  write_steps(run.path(), {10}, 1);
  const auto folder = run / "checkpoints/step_00000010";
  const auto largest = std::max(fs::file_size(folder / "index.h5"), fs::file_size(folder / "rank_00000.h5"));
  const Weights weights(20);
  for (rlim_t limit = 0; limit < largest; limit += 503) {
    const FileSizeLimit full(limit);
    EXPECT_THAT(failure_of([&] { write_checkpoint(run.path(), state_at(20), weights.of(0, 1), kAlone, 1); }),
                HasSubstr("File too large"))
        << limit;
    EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("latest", "step_00000010")) << limit;
  }
  expect_whole(folder, 10);
}

TEST(CheckpointFault, read_only_folder_is_named) {
  const ScratchFolder run;
  fs::permissions(run.path(),
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  const OrdinaryUser user;
  const Weights weights(10);
  const auto thrown = run_ranks(
      2, [&](const Peers& peers) { write_checkpoint(run.path(), state_at(10), weights.of(peers.rank, 2), peers, 1); });
  EXPECT_THAT(thrown[0], AllOf(HasSubstr("checkpoints"), HasSubstr("Permission denied")));
  EXPECT_EQ(thrown[0], thrown[1]);
}

TEST(CheckpointFault, of_what_fetches_a_tensor_keeps_its_code_on_every_rank) {
  const ScratchFolder run;
  const auto code_of = [&](const std::function<void()>& fault) {
    std::vector<Exit> codes(2, Exit::finished);
    run_ranks(2, [&](const Peers& peers) {
      const Weights weights(10);
      std::vector<CheckpointTensor> mine = weights.of(peers.rank, 2);
      if (peers.rank == 1) {
        mine[0].data = [&]() -> std::span<const float> {
          fault();
          return {};
        };
      }
      try {
        write_checkpoint(run.path(), state_at(10), mine, peers, 1);
      } catch (const Failure& failure) {
        codes[peers.rank] = failure.code();
      }
    });
    EXPECT_EQ(codes[0], codes[1]);
    return codes[0];
  };
  for (const Exit code : {Exit::environment, Exit::out_of_memory, Exit::hang}) {
    EXPECT_EQ(code_of([&] { throw Failure(code, "the GPU"); }), code);
  }
  EXPECT_EQ(code_of([] { throw std::bad_alloc(); }), Exit::out_of_memory);
  EXPECT_EQ(code_of([] { throw std::runtime_error("something about files"); }), Exit::files);
}

// What the disk changes between writing and reading back costs no checkpoint that verified.
TEST(CheckpointFault, bytes_that_change_once_written_leave_the_one_before) {
  struct Fault {
    int phase, rank;  // after which, and of which
    const char* file;
  };
  for (const Fault& fault : {Fault{2, 1, "rank_00001.h5"}, Fault{4, 0, "index.h5"}}) {
    const ScratchFolder run;
    write_steps(run.path(), {10}, 1, 2);
    const Weights weights(20);
    const auto thrown = run_ranks(2, [&](const Peers& peers) {
      int phase = 0;
      Peers disk = peers;
      disk.all_gather = [&](const Peers::Work& work) {
        const auto all = peers.all_gather(work);
        if (++phase == fault.phase && peers.rank == fault.rank) {
          flip_byte(run / "checkpoints/.tmp_step_00000020" / fault.file, 900);
        }
        return all;
      };
      write_checkpoint(run.path(), state_at(20), weights.of(peers.rank, 2), disk, 1);
    });
    EXPECT_THAT(thrown[0], AllOf(HasSubstr(fmt::format("rank {}: ", fault.rank)),
                                 HasSubstr(fmt::format("{}: reads back with the checksum", fault.file))));
    EXPECT_EQ(thrown[0], thrown[1]);
    EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("latest", "step_00000010"));
    expect_whole(run / "checkpoints/step_00000010", 10);
  }
}

TEST(CheckpointFault, tensor_of_two_ranks_is_refused) {
  const ScratchFolder run;
  const Weights weights(10);
  const auto thrown =
      run_ranks(2, [&](const Peers& peers) { write_checkpoint(run.path(), state_at(10), weights.of(0, 1), peers, 1); });
  EXPECT_THAT(thrown[0], HasSubstr("are written twice, by rank 0 and rank 1"));
  EXPECT_EQ(thrown[0], thrown[1]);
}

TEST(CheckpointFault, kill_at_any_instant_leaves_the_published_ones_whole) {
  const ScratchFolder run;
  std::int64_t newest = 0;
  int interrupted = 0;
  for (int round = 0; round < 25; ++round) {
    kill_in_the_middle(2, round / 25.0, [&](const auto& report) {
      for (std::int64_t step = newest + 1;; ++step) {
        const Weights weights(step);
        for (int again = 0; again < 2; ++again) {  // the second time in place of the first
          write_checkpoint(run.path(), state_at(step), weights.of(0, 1), kAlone, 2);
          report();
        }
      }
    });
    const auto folder = io::newest_checkpoint(run.path());
    ASSERT_TRUE(folder);
    for (const std::string& name : names_in(run / "checkpoints")) {
      if (name.starts_with(".tmp_")) ++interrupted;
      if (!name.starts_with("step_")) continue;
      expect_whole(run / ("checkpoints/" + name), std::stoll(name.substr(5)));
    }
    const std::int64_t step = io::open_checkpoint(*folder, kAlone, "").state().step;
    EXPECT_GE(step, newest) << "`latest` went back";
    newest = step;
  }
  EXPECT_GT(newest, 1);
  EXPECT_GT(interrupted, 0) << "no kill came in the middle of a checkpoint: the test shows nothing";
}

}  // namespace
}  // namespace tessera::test
