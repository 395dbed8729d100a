#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include <stdexcept>

#include "kernels/core/compat.hpp"
#include "kernels/core/kernel_timer.hpp"
#include "support/launch_recorder.hpp"

namespace tessera::test {
namespace {

using kernels::KernelTimer;
using ::testing::ElementsAre;

using Policy = Kokkos::RangePolicy<>;

void launch_for(const char* label, int n = 10) { Kokkos::parallel_for(label, Policy(0, n), KOKKOS_LAMBDA(int){}); }
void launch_reduce(const char* label) {
  double sum = 0;
  Kokkos::parallel_reduce(
      label, Policy(0, 10), KOKKOS_LAMBDA(int i, double& s) { s += i; }, sum);
}

/// Long enough to stand out from a launch that does nothing, on any device.
void launch_dear(const char* label, const Kokkos::View<double*>& data) {
  Kokkos::parallel_for(
      label, Policy(0, data.extent(0)), KOKKOS_LAMBDA(int i) {
        for (int round = 0; round < 1000; ++round) data(i) = 0.5 * data(i) + i;
      });
}

TEST(KernelTimer, counts_calls_by_label_and_keeps_minimum_and_maximum_within_the_total) {
  KernelTimer timer;
  timer.start();
  for (int i = 0; i < 3; ++i) launch_for("a");
  launch_reduce("b");
  timer.stop();
  launch_for("a");  // after the stop: not counted

  auto rows = timer.rows();
  ASSERT_EQ(rows.size(), 2u);
  std::sort(rows.begin(), rows.end(), [](const auto& x, const auto& y) { return x.label < y.label; });
  EXPECT_EQ(rows[0].label, "a");
  EXPECT_EQ(rows[0].calls, 3);
  EXPECT_EQ(rows[1].label, "b");
  EXPECT_EQ(rows[1].calls, 1);
  for (const auto& row : rows) {
    EXPECT_GT(row.min_s, 0);
    EXPECT_LE(row.min_s, row.max_s);
    EXPECT_GE(row.total_s, row.max_s + static_cast<double>(row.calls - 1) * row.min_s);
    EXPECT_LE(row.total_s, static_cast<double>(row.calls) * row.max_s * (1 + 1e-12));
  }
  EXPECT_EQ(timer.counts().launches, 4);
}

TEST(KernelTimer, sorts_by_cost) {
  const Kokkos::View<double*> data("data", 1 << 16);
  launch_for("warm-up", 1);
  launch_dear("warm-up, too", data);
  Kokkos::fence();
  KernelTimer timer;
  timer.start();
  launch_for("cheap", 1);
  launch_dear("dear", data);
  timer.stop();
  ASSERT_EQ(timer.rows().size(), 2u);
  EXPECT_EQ(timer.rows()[0].label, "dear");
  EXPECT_GT(timer.rows()[0].total_s, timer.rows()[1].total_s);
}

TEST(KernelTimer, passes_every_call_on_to_the_tool_behind_and_gives_its_place_back) {
  const LaunchRecorder tool;  // in place of a tool that KOKKOS_TOOLS_LIBS loads
  KernelTimer timer;
  timer.start();
  launch_for("seen by both");
  launch_reduce("seen by both, too");
  timer.stop();
  launch_for("seen by the tool");
  EXPECT_THAT(tool.labels(), ElementsAre("seen by both", "seen by both, too", "seen by the tool"));
  EXPECT_EQ(timer.counts().launches, 2);
}

TEST(KernelTimer, counts_allocations) {
  KernelTimer timer;
  timer.start();
  const auto before = timer.counts().allocations;
  { const Kokkos::View<double*> view(Kokkos::view_alloc(Kokkos::WithoutInitializing, "view"), 100); }
  EXPECT_EQ(timer.counts().allocations - before, 1);
  timer.stop();
}

TEST(KernelTimer, counts_fences_where_kokkos_tells_of_them) {
  KernelTimer timer;
  timer.start();
  launch_for("a");
  const auto before = timer.counts().fences;
  Kokkos::fence();
  timer.stop();
  if (!kernels::kFencesAreObservable) GTEST_SKIP() << "this Kokkos never calls the fence callbacks: not observable";
  EXPECT_GE(timer.counts().fences - before, 1);
}

TEST(KernelTimer, refuses_a_second_timer_and_starts_afresh) {
  KernelTimer timer, second;
  timer.start();
  EXPECT_TRUE(timer.is_running());
  EXPECT_THROW(second.start(), std::logic_error);
  EXPECT_THROW(timer.start(), std::logic_error);
  launch_for("a");
  timer.stop();
  timer.stop();  // harmless
  EXPECT_FALSE(timer.is_running());
  second.start();
  launch_for("b");
  second.stop();
  EXPECT_EQ(second.rows().size(), 1u);
  timer.start();
  timer.stop();
  EXPECT_TRUE(timer.rows().empty());
  EXPECT_EQ(timer.counts().launches, 0);
}

TEST(KernelTimer, stops_when_it_dies) {
  {
    KernelTimer timer;
    timer.start();
  }
  launch_for("nobody listens");  // would call a destroyed timer
  KernelTimer next;
  EXPECT_NO_THROW(next.start());
}

TEST(KernelTimer, knows_nothing_before_it_started) {
  const KernelTimer timer;
  EXPECT_TRUE(timer.rows().empty());
  EXPECT_EQ(timer.counts().launches, 0);
}

}  // namespace
}  // namespace tessera::test
