#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include <stdexcept>

#include "kernels/core/events.hpp"
#include "kernels/core/kernel_timer.hpp"
#include "kernels/core/stream_timer.hpp"
#include "kernels/cuda/target.hpp"
#include "support/buffer.hpp"

namespace tessera::test {
namespace {

using Timer = kernels::StreamTimer;

void work(const Device& exec, const Buffer<float>::Vector& values, int rounds) {
  Kokkos::parallel_for(
      "work", Kokkos::RangePolicy<Device>(exec, 0, values.extent(0)), KOKKOS_LAMBDA(int i) {
        float x = values(i);
        for (int round = 0; round < rounds; ++round) x = 0.5f * x + 1.0f;
        values(i) = x;
      });
}

TEST(StreamTimer, parts_add_up_and_lie_within_the_hosts_time) {
  const Device exec;
  const Buffer<float> values = Buffer<float>::zeros(1 << 16);
  work(exec, values.vector(), 10);
  exec.fence();
  Timer timer(3);
  const double start_s = events::now_s();
  timer.mark(exec, 0);
  work(exec, values.vector(), kernels::kIsHost<Device> ? 2000 : 200'000);  // far more than a launch costs
  timer.mark(exec, 1);
  work(exec, values.vector(), 20);
  timer.mark(exec, 2);
  const double first_s = timer.seconds(0, 1), second_s = timer.seconds(1, 2), whole_s = timer.seconds(0, 2);
  const double host_s = events::now_s() - start_s;
  constexpr double resolution_s = 2e-6;  // of each mark
  EXPECT_GT(first_s, 0);
  EXPECT_GT(first_s, second_s);
  EXPECT_NEAR(first_s + second_s, whole_s, 2 * resolution_s);
  EXPECT_LE(whole_s, host_s + resolution_s);
  EXPECT_TRUE(timer.has_passed(0) && timer.has_passed(2));
}

TEST(StreamTimer, marks_may_be_made_again) {
  const Device exec;
  const Buffer<float> values = Buffer<float>::zeros(1 << 16);
  Timer timer(2);
  double before_s = 0;
  for (int time = 0; time < 2; ++time) {
    const double start_s = events::now_s();
    timer.mark(exec, 0);
    work(exec, values.vector(), 4000);
    timer.mark(exec, 1);
    const double found_s = timer.seconds(0, 1);
    EXPECT_NE(found_s, before_s);
    EXPECT_GT(found_s, 0);
    EXPECT_LE(found_s, events::now_s() - start_s + 4e-6);  // so neither mark is the earlier one
    before_s = found_s;
  }
}

TEST(StreamTimer, marking_and_reading_neither_allocate_nor_fence_except_marks_without_events) {
  const Device exec;
  Timer timer(2);
  kernels::KernelTimer counter;
  counter.start();
  timer.mark(exec, 0);
  timer.mark(exec, 1);
  timer.seconds(0, 1);
  counter.stop();
  EXPECT_EQ(counter.counts().launches, 0);
  EXPECT_EQ(counter.counts().allocations, 0);
  EXPECT_EQ(counter.counts().fences, kernels::kHere.is_portable ? 2 : 0);  // a wait per mark: Kokkos has no events
}

TEST(StreamTimer, a_mark_that_was_never_made_is_no_time) {
  const Device exec;
  Timer timer(2);
  timer.mark(exec, 0);
  EXPECT_FALSE(timer.has_passed(1));
  EXPECT_THROW(timer.seconds(0, 1), std::logic_error);
  EXPECT_THROW(timer.mark(exec, 2), std::out_of_range);
}

}  // namespace
}  // namespace tessera::test
