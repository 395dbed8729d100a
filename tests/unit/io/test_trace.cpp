/// run.h5: readable by others, complete after a kill, unchanged if a flush fails, cut and continued at a resume.
#include <gmock/gmock.h>
#include <malloc.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "io/h5.hpp"
#include "io/trace.hpp"
#include "tests/unit/io/scratch.hpp"

namespace tessera::test {
namespace {

using io::KernelRow;
using io::StepRecord;
using io::Trace;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const io::RunInfo kInfo{.origin = {.version = "0.1.0",
                                   .git_hash = "abc",
                                   .build = "gcc",
                                   .launch = {.hosts = "node0: 1 rank",
                                              .devices = "rank 0 on node0: a GPU at 1",
                                              .gpu_count = 1,
                                              .gpu_models = {"a GPU"},
                                              .ranks_of_gpu_models = {1}},
                                   .transport = "",  // one rank does not communicate
                                   .command = "tessera x.toml",
                                   .deck = "[job]\n"},
                        .mfu = "MFU = flop / time / peak",
                        .dense_peak = 1e12,
                        .ranks = {{"node0", 0, "a GPU", "0000:1b:00.0", "GPU-1", 0, "0-3"}}};

StepRecord record(std::int64_t step) {
  const double s = static_cast<double>(step);
  return {.step = step,
          .loss = 5 / s,
          .grad_norm = 1,
          .learning_rate = 1e-3,
          .tokens = 4096 * s,
          .step_time_s = 0.05,
          .forward_s = 0.02,
          .backward_s = 0.025,
          .exposed_comm_s = 0.001,
          .optimizer_s = 0.003,
          .tokens_per_second = 81920,
          .mfu = 0.1,
          .peak_bytes = 1e8,
          .wall_time_s = 1.7e9 + s,
          .first_sample = 12 * (s - 1),
          .bad = 0};
}

/// A run with rows in every group.
void fill(Trace& trace, std::int64_t steps) {
  for (std::int64_t step = 1; step <= steps; ++step) trace.add(record(step));
  trace.set_kernels({{"tessera::rmsnorm::forward", 16, 0.4, 0.02, 0.03}, {"tessera::adamw", 8, 0.1, 0.01, 0.02}});
  trace.record_events(true);
  events::report(events::Region{"forward", "compute", 1.0, 1.5});
  events::report(events::MemoryChange{"block.00.out", "activations", "forward", 1000, true, 1.1});
  events::report(events::MemoryChange{"block.00.out", "activations", "backward", 1000, false, 1.2});
  events::report(events::Communication{"all_reduce", "grad.bucket.0", 4096, 1.3, 1.4, 0.05});
  trace.record_events(false);
}

std::vector<double> column(const fs::path& path, const std::string& name) {
  return io::h5::File::open(path).dataset(name).values<double>();
}
std::vector<std::int64_t> integers(const fs::path& path, const std::string& name) {
  return io::h5::File::open(path).dataset(name).values<std::int64_t>();
}

int open_with_python(const fs::path& path, int rows) {
  const std::string command = "'" TESSERA_PYTHON "' '" TESSERA_SOURCE_DIR "/tests/unit/io/open_run.py' '" +
                              path.string() + "' " + std::to_string(rows);
  return std::system(command.c_str());
}

TEST(Trace, opens_in_h5py_and_xarray) {
  const ScratchFolder folder;
  Trace trace(folder / "run.h5", kInfo, 0);
  fill(trace, 7);
  trace.flush();
  EXPECT_EQ(open_with_python(folder / "run.h5", 7), 0);
}

TEST(Trace, opens_in_h5py_and_xarray_before_the_first_step) {
  const ScratchFolder folder;
  const Trace trace(folder / "run.h5", kInfo, 0);
  EXPECT_EQ(open_with_python(folder / "run.h5", 0), 0);
}

TEST(Trace, columns_hold_what_was_recorded_and_nan_elsewhere) {
  const ScratchFolder folder;
  Trace trace(folder / "run.h5", kInfo, 0);
  fill(trace, 3);
  trace.flush();
  EXPECT_THAT(integers(folder / "run.h5", "steps/step"), ElementsAre(1, 2, 3));
  EXPECT_THAT(column(folder / "run.h5", "steps/loss"), ElementsAre(5.0, 2.5, 5.0 / 3));
  EXPECT_THAT(column(folder / "run.h5", "steps/step_time"), ElementsAre(0.05, 0.05, 0.05));
  for (const double value : column(folder / "run.h5", "steps/validation_loss")) EXPECT_TRUE(std::isnan(value));
  EXPECT_THAT(integers(folder / "run.h5", "kernels/calls"), ElementsAre(16, 8));
  EXPECT_THAT(column(folder / "run.h5", "comm/exposed"), ElementsAre(0.05));
  EXPECT_EQ(io::h5::File::open(folder / "run.h5").group("info").text("deck"), kInfo.origin.deck);
}

TEST(Trace, records_events_only_when_asked) {
  const ScratchFolder folder;
  Trace trace(folder / "run.h5", kInfo, 0);
  events::report(events::Region{"forward", "compute", 1.0, 1.5});
  events::report(events::Communication{"all_reduce", "grad", 1, 1, 1, 1});
  fill(trace, 1);
  events::report(events::Region{"forward", "compute", 1.0, 1.5});
  trace.flush();
  EXPECT_EQ(column(folder / "run.h5", "events/start").size(), 1u);
  EXPECT_EQ(column(folder / "run.h5", "comm/start").size(), 1u);
}

TEST(Trace, peaks_are_largest_live_bytes_by_phase_and_category) {
  const ScratchFolder folder;
  Trace trace(folder / "run.h5", kInfo, 0);
  const auto change = [](const char* phase, const char* category, std::int64_t bytes, bool is_begin) {
    events::report(events::MemoryChange{"x", category, phase, bytes, is_begin, 0.0});
  };
  change("setup", "parameters", 100, true);
  change("forward", "activations", 30, true);
  change("forward", "activations", 50, true);
  change("backward", "activations", 50, false);
  change("backward", "gradients", 40, true);
  change("backward", "activations", 30, false);
  trace.flush();
  const auto file = io::h5::File::open(folder / "run.h5");
  EXPECT_THAT(file.dataset("memory/phase").strings(), ElementsAre("setup", "forward", "backward"));
  EXPECT_THAT(file.dataset("memory/category").strings(),
              ElementsAre("total", "parameters", "activations", "gradients"));
  EXPECT_THAT(file.dataset("memory/peaks").values<std::int64_t>(), ElementsAre(100, 100, 0, 0,   //
                                                                               180, 100, 80, 0,  //
                                                                               170, 100, 30, 40));
}

TEST(Trace, memory_rows_account_for_what_happened_while_not_recording) {
  const ScratchFolder folder;
  Trace trace(folder / "run.h5", kInfo, 0);
  events::report(events::MemoryChange{"w", "parameters", "setup", 100, true, 0.1});
  trace.record_events(true);
  events::report(events::MemoryChange{"a", "activations", "forward", 10, true, 0.2, "bf16"});
  trace.record_events(false);
  events::report(events::MemoryChange{"a", "activations", "forward", 10, false, 0.3});
  trace.record_events(true);
  trace.flush();
  const auto file = io::h5::File::open(folder / "run.h5");
  EXPECT_THAT(file.dataset("memory/events/label").strings(), ElementsAre("(not recorded)", "a", "(not recorded)"));
  EXPECT_THAT(file.dataset("memory/events/dtype").strings(), ElementsAre("", "bf16", ""));
  EXPECT_THAT(integers(folder / "run.h5", "memory/events/live_bytes"), ElementsAre(100, 110, 100));
  EXPECT_THAT(integers(folder / "run.h5", "memory/events/begin"), ElementsAre(1, 1, 0));
}

TEST(Trace, resume_keeps_rows_up_to_the_step_and_cuts_the_later_ones) {
  const ScratchFolder folder;
  {
    Trace trace(folder / "run.h5", kInfo, 0);
    fill(trace, 10);
    trace.flush();
  }
  Trace trace(folder / "run.h5", kInfo, 0, 6);
  EXPECT_THAT(integers(folder / "run.h5", "steps/step").size(), 10u)
      << "cut before the resumed run had anything to say";
  trace.add(record(7));
  trace.record_events(true);
  events::report(events::Region{"forward", "compute", 0.1, 0.2});
  trace.flush();
  EXPECT_THAT(integers(folder / "run.h5", "steps/step"), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(column(folder / "run.h5", "steps/loss")[3], 5.0 / 4);
  EXPECT_THAT(integers(folder / "run.h5", "steps/attempt"), ElementsAre(0, 0, 0, 0, 0, 0, 1));
  EXPECT_THAT(integers(folder / "run.h5", "events/attempt"), ElementsAre(0, 1));
  EXPECT_THAT(integers(folder / "run.h5", "events/step"), ElementsAre(11, 8)) << "the step in progress";
  EXPECT_THAT(integers(folder / "run.h5", "kernels/calls"), ElementsAre(16, 8));
  EXPECT_EQ(io::h5::File::open(folder / "run.h5").group("info").integer("attempts"), 2);
  EXPECT_EQ(integers(folder / "run.h5", "memory/peaks").size(), 4u);
  EXPECT_EQ(open_with_python(folder / "run.h5", 7), 0);
}

TEST(Trace, the_latest_sample_outlives_a_resume) {
  const ScratchFolder folder;
  const std::vector<int> prompt = {7, 8}, generated = {9, 10, 11};
  {
    Trace trace(folder / "run.h5", kInfo, 0);
    trace.set_sample(generated, prompt, 5);
    trace.set_sample(prompt, generated, 6);
    trace.flush();
  }
  Trace trace(folder / "run.h5", kInfo, 0, 0);
  trace.flush();
  EXPECT_THAT(integers(folder / "run.h5", "sample/token"), ElementsAre(7, 8, 9, 10, 11));
  EXPECT_THAT(integers(folder / "run.h5", "sample/is_prompt"), ElementsAre(1, 1, 0, 0, 0));
  EXPECT_EQ(io::h5::File::open(folder / "run.h5").group("sample").integer("step"), 6);
  EXPECT_EQ(open_with_python(folder / "run.h5", 0), 0);
}

TEST(Trace, resume_without_the_file_starts_empty) {
  const ScratchFolder folder;
  const Trace trace(folder / "run.h5", kInfo, 0, 6);
  EXPECT_TRUE(integers(folder / "run.h5", "steps/step").empty());
}

TEST(Trace, resume_refuses_a_damaged_file_and_a_later_format) {
  const ScratchFolder folder;
  write_bytes(folder / "run.h5", "not HDF5");
  const std::string way_on = "mv '" + (folder / "run.h5").string() + "' '" + (folder / "run.h5.old").string() + "'";
  EXPECT_THAT(failure_of([&] { Trace(folder / "run.h5", kInfo, 0, 6); }), HasSubstr(way_on));
  {
    auto file = io::h5::File::create(folder / "run.h5");
    file.make_group("info").set_attribute("format_version", std::int64_t{99});
    file.close();
  }
  EXPECT_THAT(failure_of([&] { Trace(folder / "run.h5", kInfo, 0, 6); }),
              AllOf(HasSubstr("version 99"), HasSubstr(way_on)));
}

ino_t inode(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_ino;
}

TEST(Trace, flushes_when_due_and_not_before) {
  const ScratchFolder folder;
  Trace trace(folder / "run.h5", kInfo, 3600);
  const ino_t first = inode(folder / "run.h5");
  trace.add(record(1));
  EXPECT_FALSE(trace.is_flush_due());
  EXPECT_EQ(inode(folder / "run.h5"), first);

  Trace eager(folder / "eager.h5", kInfo, 0);  // flush_s 0: due after 100 times what the last flush took
  const auto start = std::chrono::steady_clock::now();
  std::chrono::duration<double> took{}, last{};  // of all flushes but the last, after which nothing has had to wait
  while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(500)) {
    eager.add(record(1));
    if (eager.is_flush_due()) {
      const auto flush_start = std::chrono::steady_clock::now();
      eager.flush();
      took += std::exchange(last, std::chrono::steady_clock::now() - flush_start);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - start;
  EXPECT_LE(took / whole, 0.05) << "flushes take more than a few per cent of the time";
}

TEST(Trace, last_rows_are_kept_when_the_job_ends_by_an_exception) {
  const ScratchFolder folder;
  {
    Trace trace(folder / "run.h5", kInfo, 3600);
    trace.add(record(1));
  }
  EXPECT_THAT(integers(folder / "run.h5", "steps/step"), ElementsAre(1));
}

TEST(Trace, memory_does_not_grow_with_the_steps) {
  const ScratchFolder folder;
  Trace trace(folder / "run.h5", kInfo, 3600);
  constexpr std::int64_t kSteps = 9'000, kFlushes = 5;  // more rows than are copied at once
  std::size_t early = 0, late = 0;
  for (std::int64_t step = 1; step <= kSteps * kFlushes; ++step) {
    trace.add(record(step));
    trace.rank_steps().add(std::vector<io::RankRecord>{{.compute_s = static_cast<float>(step)}});
    if (step % kSteps > 0) continue;
    trace.flush();
    const struct mallinfo2 heap = mallinfo2();
    (step == kSteps ? early : late) = heap.uordblks + heap.hblkhd;
  }
  EXPECT_LT(late, early + 8 * kSteps * kFlushes) << "a row takes over 150 bytes";
  trace.cut(kSteps * 4 - 1);
  trace.flush();
  const auto step = integers(folder / "run.h5", "steps/step");
  const auto loss = column(folder / "run.h5", "steps/loss");
  const auto compute = io::h5::File::open(folder / "run.h5").dataset("steps/by_rank/compute_time").values<float>();
  ASSERT_EQ(step.size(), kSteps * 4 - 1);
  ASSERT_EQ(loss.size(), step.size());
  ASSERT_EQ(compute.size(), step.size());
  for (std::size_t i = 0; i < step.size(); ++i) {
    ASSERT_EQ(step[i], static_cast<std::int64_t>(i) + 1);
    ASSERT_EQ(loss[i], 5 / static_cast<double>(step[i]));
    ASSERT_EQ(compute[i], static_cast<float>(step[i]));
  }
}

TEST(Trace, removed_file_comes_back_with_all_rows) {
  const ScratchFolder folder;
  Trace trace(folder / "run.h5", kInfo, 3600);
  fill(trace, 5);
  trace.flush();
  fs::remove(folder / "run.h5");
  trace.add(record(6));
  trace.flush();
  EXPECT_THAT(integers(folder / "run.h5", "steps/step"), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(column(folder / "run.h5", "steps/loss")[3], 5.0 / 4);
}

TEST(Trace, full_disk_is_told_and_leaves_the_file_before) {
  const ScratchFolder folder;
  Trace trace(folder / "run.h5", kInfo, 0);
  fill(trace, 5);
  trace.flush();
  for (std::int64_t step = 6; step < 2000; ++step) trace.add(record(step));
  {
    const FileSizeLimit full(60'000);
    EXPECT_THAT(failure_of([&] { trace.flush(); }),
                AllOf(HasSubstr("run.h5"), HasSubstr("File too large"), HasSubstr("Free some space")));
  }
  EXPECT_EQ(integers(folder / "run.h5", "steps/step").size(), 5u);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("run.h5"));
  trace.flush();
  EXPECT_EQ(integers(folder / "run.h5", "steps/step").size(), 1999u);
}

TEST(Trace, folder_that_cannot_be_written_to_is_told_at_once) {
  const ScratchFolder folder;
  fs::permissions(folder.path(),
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  const OrdinaryUser user;
  EXPECT_THAT(failure_of([&] { Trace(folder / "run.h5", kInfo, 0); }),
              AllOf(HasSubstr("run.h5"), HasSubstr("Permission denied")));
}

TEST(Trace, file_is_whole_after_a_kill_at_any_instant) {
  const ScratchFolder folder;
  int interrupted = 0;
  for (int round = 0; round < 25; ++round) {
    kill_in_the_middle(2, round / 25.0, [&](const auto& report) {
      Trace trace(folder / "run.h5", kInfo, 0);
      for (std::int64_t step = 1;; ++step) {
        trace.add(record(step));
        trace.flush();
        report();
      }
    });
    interrupted += fs::exists(folder / "run.h5.tmp");
    const auto step = integers(folder / "run.h5", "steps/step");
    const auto loss = column(folder / "run.h5", "steps/loss");
    ASSERT_EQ(step.size(), loss.size());
    for (std::size_t i = 0; i < step.size(); ++i) {
      ASSERT_EQ(step[i], static_cast<std::int64_t>(i) + 1);
      ASSERT_EQ(loss[i], 5 / static_cast<double>(step[i]));
    }
    ASSERT_GE(step.size(), 2u);
  }
  EXPECT_GT(interrupted, 0) << "no kill came in the middle of a flush: the test shows nothing";
}

int plot(const fs::path& run, const fs::path& image) {
  const std::string command =
      "'" TESSERA_SOURCE_DIR "/scripts/plot_run' '" + run.string() + "' -o '" + image.string() + "'";
  return std::system(command.c_str());
}

TEST(PlotRun, draws_a_full_run_and_an_empty_one) {
  const ScratchFolder folder;
  {
    Trace trace(folder / "run.h5", kInfo, 0);
    EXPECT_EQ(plot(folder / "run.h5", folder / "empty.png"), 0);
    fill(trace, 50);
  }
  EXPECT_EQ(plot(folder / "run.h5", folder / "full.png"), 0);
  for (const char* image : {"empty.png", "full.png"}) {
    EXPECT_TRUE(read_bytes(folder / image).starts_with("\x89PNG")) << image;
    EXPECT_GT(fs::file_size(folder / image), 20'000u) << image;
  }
  EXPECT_GT(fs::file_size(folder / "full.png"), fs::file_size(folder / "empty.png"));
}

TEST(PlotRun, says_what_is_wrong_with_its_file) {
  const ScratchFolder folder;
  EXPECT_EQ(WEXITSTATUS(plot(folder / "none.h5", folder / "a.png")), 6);
  write_bytes(folder / "text.h5", "not HDF5");
  EXPECT_EQ(WEXITSTATUS(plot(folder / "text.h5", folder / "a.png")), 6);
  EXPECT_FALSE(fs::exists(folder / "a.png"));
}

}  // namespace
}  // namespace tessera::test
