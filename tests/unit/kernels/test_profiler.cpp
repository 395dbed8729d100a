#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include <optional>
#include <stdexcept>

#include "kernels/core/kernel_timer.hpp"
#include "kernels/core/profiler.hpp"
#include "kernels/core/tensor.hpp"
#include "support/launch_recorder.hpp"
#include "support/range_recorder.hpp"

namespace tessera::test {
namespace {

using kernels::ProfilerRanges;
using ranges::Range;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

void launch(const char* label) { Kokkos::parallel_for(label, Kokkos::RangePolicy<>(0, 10), KOKKOS_LAMBDA(int){}); }

void reduce_and_scan() {
  double sum = 0;
  Kokkos::parallel_reduce(
      "reduce", Kokkos::RangePolicy<>(0, 10), KOKKOS_LAMBDA(int, double& s) { s += 1; }, sum);
  Kokkos::parallel_scan(
      "scan", Kokkos::RangePolicy<>(0, 10), KOKKOS_LAMBDA(int, double& s, bool) { s += 1; });
}

TEST(Ranges, without_a_sink_open_gives_none) {
  ASSERT_FALSE(ranges::has_sink());
  EXPECT_EQ(ranges::open("nobody listens"), ranges::kNone);
  ranges::close(ranges::kNone);
}

TEST(Ranges, closing_one_closes_those_within_it_and_nothing_else) {
  RangeRecorder heard;
  ranges::set_sink(&heard);
  const ranges::Id outer = ranges::open("outer");
  const ranges::Id first = ranges::open("first");
  ranges::open("within");
  ranges::close(first);
  EXPECT_THAT(heard.paths(), ElementsAre("outer > first > within", "outer > first"));
  const ranges::Id second = ranges::open("second");
  ranges::close(first);  // is closed
  EXPECT_THAT(heard.open(), ElementsAre("outer", "outer > second"));
  ranges::close(second);
  ranges::set_sink(nullptr);
  EXPECT_THAT(heard.open(), IsEmpty()) << "a sink that goes has its ranges closed";
  ranges::close(outer);
  EXPECT_EQ(heard.ended().size(), 4u);
}

TEST(Ranges, an_exception_leaves_no_range_open) {
  RangeRecorder heard;
  ranges::set_sink(&heard);
  const auto fail = [] {
    const Range step("step");
    const Range phase("phase");
    ranges::open("a unit that nobody will close");
    throw std::runtime_error("");
  };
  EXPECT_THROW(fail(), std::runtime_error);
  EXPECT_THAT(heard.open(), IsEmpty());
  EXPECT_THAT(heard.paths(), ElementsAre("step > phase > a unit that nobody will close", "step > phase", "step"));
  ranges::set_sink(nullptr);
}

TEST(ProfilerRanges, every_kernel_is_a_range_within_what_is_open) {
  RangeRecorder heard;
  const ProfilerRanges ranges(&heard);
  {
    const Range phase("phase");
    launch("for");
    reduce_and_scan();
  }
  launch("alone");
  EXPECT_THAT(heard.paths(), ElementsAre("phase > for", "phase > reduce", "phase > scan", "phase", "alone"));
  EXPECT_THAT(heard.open(), IsEmpty());
}

TEST(ProfilerRanges, without_a_sink_no_callback_is_set) {
  const ProfilerRanges ranges(nullptr);
  EXPECT_FALSE(ranges::has_sink());
  const auto callbacks = Kokkos::Tools::Experimental::get_callbacks();
  EXPECT_EQ(callbacks.begin_parallel_for, nullptr);
  EXPECT_EQ(callbacks.end_parallel_for, nullptr);
  EXPECT_EQ(callbacks.request_tool_settings, nullptr);
}

TEST(ProfilerRanges, callbacks_that_were_set_are_called_and_come_back) {
  const LaunchRecorder recorder;
  RangeRecorder heard;
  {
    const ProfilerRanges ranges(&heard);
    launch("a");
    kernels::KernelTimer timer;  // sets callbacks of its own, and passes on to those that are set
    timer.start();
    launch("b");
    timer.stop();
    EXPECT_EQ(timer.counts().launches, 1);
  }
  launch("c");
  EXPECT_THAT(heard.paths(), ElementsAre("a", "b"));
  EXPECT_THAT(recorder.labels(), ElementsAre("a", "b", "c"));
}

TEST(ProfilerRanges, a_second_one_is_an_error) {
  RangeRecorder heard, other;
  const ProfilerRanges ranges(&heard);
  EXPECT_THROW(ProfilerRanges second(&other), std::logic_error);
  launch("a");
  EXPECT_THAT(heard.paths(), ElementsAre("a"));
}

/// Tests run without a tool of NVTX, and hosts have none.
TEST(ListeningProfiler, there_is_none_where_no_tool_listens) { EXPECT_EQ(kernels::listening_profiler(), nullptr); }

}  // namespace
}  // namespace tessera::test
