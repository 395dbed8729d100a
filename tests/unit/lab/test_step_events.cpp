/// What the events of a step add up to, on events made by hand.
#include "lab/step_events.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tessera::lab {
namespace {

using memory::Category;

std::int64_t bytes_of(const LiveBytes& live, Category category) {
  return live.by_category[static_cast<std::size_t>(category)];
}

void change(Category category, const char* phase, std::int64_t bytes, bool is_begin) {
  events::report(events::MemoryChange{"tensor", memory::name_of(category), phase, bytes, is_begin, 0});
}

/// A step: 50 bytes come and go in forward, 70 in backward, 5 of which go only when the update needs 3.
void report_step() {
  change(Category::activations, "forward", 50, true);
  change(Category::activations, "backward", 50, false);
  change(Category::gradients, "backward", 65, true);
  change(Category::workspace, "backward", 5, true);
  change(Category::gradients, "backward", 65, false);
  change(Category::workspace, "optimizer", 5, false);
  change(Category::workspace, "optimizer", 3, true);
  change(Category::workspace, "optimizer", 3, false);
}

TEST(StepEvents, live_bytes_are_those_of_the_moment_with_the_largest_sum) {
  StepEvents events;
  change(Category::parameters, "setup", 100, true);
  change(Category::optimizer, "setup", 200, true);
  for (int step = 0; step < 3; ++step) {  // every step is like the first
    report_step();
    EXPECT_EQ(events.initial().total(), 300);
    EXPECT_EQ(bytes_of(events.initial(), Category::optimizer), 200);
    EXPECT_EQ(events.before_update().total(), 370);
    EXPECT_EQ(bytes_of(events.before_update(), Category::gradients), 65);
    EXPECT_EQ(bytes_of(events.before_update(), Category::workspace), 5);
    EXPECT_EQ(bytes_of(events.before_update(), Category::activations), 0) << "largest by itself, but not then";
    EXPECT_EQ(events.in_update().total(), 303) << "what ends as the update begins is not the update's";
    EXPECT_EQ(bytes_of(events.in_update(), Category::workspace), 3);
  }
}

TEST(StepEvents, communication_adds_up_and_begins_anew_when_it_is_taken) {
  StepEvents events;
  events::report(events::Communication{"all_reduce[mpi]", "grad.bucket.0", 1000, 1.0, 3.0, 0.5});
  events::report(events::Communication{"all_gather[mpi]", "params.head", 24, 2.0, 2.25, 0});
  events::report(events::Region{"forward", "compute", 0.5, 1.5});
  events::report(events::Region{"forward", "compute", 4, 5});
  const StepCommunication step = events.take_communication();
  EXPECT_EQ(step.transfers, 2);
  EXPECT_EQ(step.bytes, 1024);
  EXPECT_DOUBLE_EQ(step.total_s, 2.25);
  EXPECT_DOUBLE_EQ(step.under_way_s, 2) << "the second runs while the first does";
  EXPECT_DOUBLE_EQ(step.exposed_s, 0.5);
  EXPECT_DOUBLE_EQ(step.begin_s, 0.5) << "of the first forward pass";
  ASSERT_EQ(step.each.size(), 2u);
  EXPECT_EQ(step.each[0].label, "grad.bucket.0");
  EXPECT_DOUBLE_EQ(step.each[1].start_s, 2);
  events::report(events::Communication{"all_reduce[mpi]", "b", 1, 7.0, 8.0, 0});  // reported in the order of their ends
  events::report(events::Communication{"all_reduce[mpi]", "a", 1, 5.0, 7.5, 0});
  events::report(events::Communication{"all_reduce[mpi]", "c", 1, 9.0, 9.5, 0});
  EXPECT_DOUBLE_EQ(events.take_communication().under_way_s, 3.5);
  EXPECT_EQ(events.take_communication().transfers, 0);
}

TEST(StepEvents, a_category_that_the_layout_does_not_have_is_an_error) {
  const StepEvents events;
  EXPECT_THROW(events::report(events::MemoryChange{"tensor", "experts", "setup", 1, true, 0}), std::logic_error);
}

}  // namespace
}  // namespace tessera::lab
