#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "kernels/core/profiler.hpp"
#include "support/range_recorder.hpp"
#include "unit/train/training.hpp"

namespace tessera::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StepRanges, a_step_holds_its_phases_and_a_phase_its_units) {
  Training training(small_settings());
  RangeRecorder heard;
  const kernels::ProfilerRanges ranges(&heard);
  for (int step = 0; step < 2; ++step) {
    heard.clear();
    training.step();
    EXPECT_THAT(heard.open(), IsEmpty());
    std::vector<std::string> paths;
    for (const std::string& path : heard.paths()) {
      if (path.find("tessera::") == std::string::npos) paths.push_back(path);  // without kernels
    }
    EXPECT_THAT(paths, ElementsAre("step > begin",                                             //
                                   "step > forward > forward/embedding",                       //
                                   "step > forward > forward/block.00",                        //
                                   "step > forward > forward/block.01",                        //
                                   "step > forward > forward/head", "step > forward",          //
                                   "step > backward > backward/head",                          //
                                   "step > backward > backward/block.01",                      //
                                   "step > backward > backward/block.00",                      //
                                   "step > backward > backward/embedding", "step > backward",  //
                                   "step > reduce", "step > optimizer", "step"));
  }
}

TEST(StepRanges, kernels_lie_in_their_units) {
  Training training(small_settings());
  RangeRecorder heard;
  const kernels::ProfilerRanges ranges(&heard);
  training.step();
  int in_units = 0, in_optimizer = 0;
  for (const std::string& path : heard.paths()) {
    in_units += path.starts_with("step > backward > backward/block.00 > tessera::");
    in_optimizer += path.starts_with("step > optimizer > tessera::adamw");
  }
  EXPECT_GT(in_units, 5);
  EXPECT_EQ(in_optimizer, 1);
}

TEST(StepRanges, recomputed_blocks_and_micro_steps_are_balanced) {
  config::Settings settings = small_settings();
  settings.train.checkpoint_activations = 2;
  settings.train.micro_batch_size = 1;
  Training training(settings);
  RangeRecorder heard;
  const kernels::ProfilerRanges ranges(&heard);
  training.step();
  EXPECT_THAT(heard.open(), IsEmpty());
  const auto count = [&](const std::string& end) {
    int found = 0;
    for (const std::string& path : heard.paths()) found += path.ends_with(end);
    return found;
  };
  const int micro_steps = training.plan.batch.micro_steps;
  ASSERT_GT(micro_steps, 1);
  EXPECT_EQ(count("step > backward > recompute/block.00"), micro_steps);
  EXPECT_EQ(count("step > backward > recompute/block.01"), micro_steps);
  EXPECT_EQ(count("step > backward > backward/block.01"), micro_steps);
  EXPECT_EQ(count("step > backward"), micro_steps);
}

TEST(StepRanges, validation_has_units_too) {
  Training training(small_settings());
  RangeRecorder heard;
  const kernels::ProfilerRanges ranges(&heard);
  training.trainer->validate(training.sampler, training.world.size());
  EXPECT_THAT(heard.open(), IsEmpty());
  EXPECT_THAT(heard.paths(), ::testing::Contains("validation > inference/block.01"));
}

struct Failing final : model::Hooks {
  void after(model::Pass pass, int unit) override {
    if (fails && pass == model::Pass::forward && unit == 1) throw std::runtime_error("in the first block");
  }
  bool fails = false;
};

TEST(StepRanges, an_exception_in_a_unit_leaves_no_range_open) {
  Failing failing;
  Training training(small_settings(), Dtype::fp32, &failing);
  RangeRecorder heard;
  const kernels::ProfilerRanges ranges(&heard);
  failing.fails = true;
  EXPECT_THROW(training.start(), std::runtime_error);
  EXPECT_THAT(heard.open(), IsEmpty());
  EXPECT_EQ(heard.paths().back(), "step");
}

}  // namespace
}  // namespace tessera::test
