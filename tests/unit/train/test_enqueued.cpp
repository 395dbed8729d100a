/// Steps that the host only enqueues: their cost on the host, two in flight at a time, and the step as a graph.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "kernels/cuda/target.hpp"
#include "kernels/core/events.hpp"
#include "support/launch_recorder.hpp"
#include "support/scalars.hpp"
#include "unit/train/training.hpp"

namespace tessera::test {
namespace {

using ::testing::IsEmpty;

struct Case {
  std::string name;
  config::Settings settings;
  Dtype dtype;
};

/// A model with heads of width 64, which every tuned attention supports.
config::Settings wide_settings() {
  config::Settings deck = small_settings();
  deck.model.context_length = 64;
  deck.model.d_model = 128;
  deck.model.num_heads = 2;
  return deck;
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    list.push_back({"plain", small_settings(), dtype});
    list.push_back({"wide heads", wide_settings(), dtype});
  }
  Case accumulation{"accumulation", small_settings(), Dtype::bf16};
  accumulation.settings.train.micro_batch_size = 1;
  accumulation.settings.train.batch_size = 7;
  Case recomputing{"recomputing", small_settings(), Dtype::bf16};
  recomputing.settings.train.checkpoint_activations = 1;
  Case unfused{"unfused", small_settings(), Dtype::fp32};
  unfused.settings.train.fused = false;
  Case standard{"standard attention", small_settings(), Dtype::fp32};
  standard.settings.attention.kernel = config::AttentionKernel::standard;
  Case flash1{"flash1", small_settings(), Dtype::bf16};
  flash1.settings.attention.kernel = config::AttentionKernel::flash1_4;
  Case tiled{"tiled attention", small_settings(), Dtype::fp32};
  tiled.settings.attention.kernel = config::AttentionKernel::tiled;
  Case buckets{"a bucket per parameter", small_settings(), Dtype::fp32};
  buckets.settings.parallel.bucket_mbyte = 0;
  Case narrow{"bf16 gradients", small_settings(), Dtype::bf16};
  narrow.settings.precision.gradients = config::GradientPrecision::bf16;
  for (const Case& more : {accumulation, recomputing, unfused, standard, flash1, tiled, buckets, narrow})
    list.push_back(more);
  for (const config::Shard shard : {config::Shard::none, config::Shard::parameters}) {
    Case offloaded{"offloaded", small_settings(), Dtype::bf16};
    offloaded.settings.parallel.shard = shard;
    offloaded.settings.parallel.offload = config::Offload::optimizer;
    list.push_back(offloaded);
    offloaded.name = "offloaded through six slots";
    offloaded.settings.parallel.offload_slots = 6;
    list.push_back(offloaded);
    if (shard == config::Shard::none) continue;
    offloaded.name = "with weights on the host";
    offloaded.settings.parallel.offload = config::Offload::parameters;
    list.push_back(offloaded);
    offloaded.settings.optimizer.clip_norm = 0;
    offloaded.settings.train.micro_batch_size = 1;
    offloaded.settings.train.checkpoint_activations = 2;
    list.push_back(offloaded);
  }
  for (const config::Shard shard : {config::Shard::optimizer, config::Shard::parameters}) {
    Case paired{"sharded in pairs", small_settings(), Dtype::bf16};
    paired.settings.parallel.shard = shard;
    paired.settings.parallel.shard_ranks = 2;
    paired.settings.precision.reduce = config::ReducePrecision::bf16;
    if (kRanks->world().size() % 2 == 0) list.push_back(paired);
  }
  for (const config::Shard shard : {config::Shard::optimizer, config::Shard::gradients, config::Shard::parameters}) {
    Case sharded{"sharded", small_settings(), Dtype::bf16};
    sharded.settings.parallel.shard = shard;
    list.push_back(sharded);
    sharded.settings.train.micro_batch_size = 1;
    sharded.settings.train.batch_size = 7;
    sharded.settings.train.checkpoint_activations = 2;
    list.push_back(sharded);
  }
  return list;
}

Case with_graph(Case c) {
  c.settings.train.graph = true;
  c.name += ", as a graph";
  return c;
}

void expect_equal(const Training::Step& a, const Training::Step& b) {
  EXPECT_EQ(a.loss_sum, b.loss_sum);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
  EXPECT_EQ(a.learning_rate, b.learning_rate);
  EXPECT_EQ(a.loss_scale, b.loss_scale);
  EXPECT_EQ(a.was_skipped, b.was_skipped);
}

/// It neither waits nor allocates through Kokkos. StepAsGraph covers other waits and allocations: during a capture the
/// driver rejects those of every library, and the step fails.
void expect_costs_nothing(const Case& c) {
  SCOPED_TRACE(c.name + ", " + std::string(name_of(c.dtype)));
  Training training(c.settings, c.dtype);
  for (int step = 0; step < 2 * train::Trainer::kMaxStarted; ++step) training.step();
  const LaunchRecorder recorder;
  for (int i = 0; i < train::Trainer::kMaxStarted; ++i) training.start();
  for (int i = 0; i < train::Trainer::kMaxStarted; ++i) training.trainer->collect();
  EXPECT_THAT(recorder.allocations(), IsEmpty());
  // On hosts a launch returns when its work is done; without vendor parts there are no events but the host's waits.
  if (!kernels::kHere.has_vendor_parts()) return;
  EXPECT_THAT(recorder.fences(), IsEmpty());
  if (c.settings.train.graph) {
    EXPECT_THAT(recorder.labels(), IsEmpty());
  } else {
    EXPECT_GT(recorder.launches().size(), 20u);
  }
}

TEST(EnqueuedStep, waits_for_nothing_and_allocates_nothing_after_the_first) {
  for (const Case& c : cases()) expect_costs_nothing(c);
}

TEST(EnqueuedStep, two_under_way_are_the_same_steps_as_one_after_the_other) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name + ", " + std::string(name_of(c.dtype)));
    Training one(c.settings, c.dtype), two(c.settings, c.dtype);
    two.start();
    for (int step = 0; step < 6; ++step) {
      if (step < 5) two.start();
      EXPECT_EQ(two.trainer->started(), step < 5 ? 2 : 1);
      expect_equal(one.step(), two.collect());
    }
    EXPECT_EQ(one.trainer->weights_fingerprint(), two.trainer->weights_fingerprint());
  }
}

TEST(EnqueuedStep, takes_from_the_end_of_the_step_before_it_to_its_own) {
  constexpr double kSlack_s = 5e-6;  // marks on a GPU are good to half a microsecond
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Training training(c.settings, c.dtype);
    for (int step = 0; step < 2 * train::Trainer::kMaxStarted; ++step) training.step();
    const double begin_s = events::now_s();
    training.start();
    double sum_s = 0;
    for (int step = 0; step < 7; ++step) {
      if (step < 6) training.start();
      const train::StepNumbers numbers = training.trainer->collect();
      EXPECT_GE(numbers.step_s, numbers.total_s - kSlack_s) << "step " << step;
      sum_s += numbers.step_s;
    }
    EXPECT_LE(sum_s, events::now_s() - begin_s + 7 * kSlack_s) << "the parts of a time exceed it";
  }
}

TEST(EnqueuedStep, the_first_is_cold_and_with_a_graph_those_that_run_before_it_or_record_it) {
  Training launches(small_settings());
  for (int step = 0; step < 4; ++step) EXPECT_EQ(launches.step().was_cold, step == 0) << "step " << step;
  if (!kernels::kHere.has_vendor_parts()) return;  // no graphs
  Training graph(with_graph({"plain", small_settings(), Dtype::fp32}).settings);
  for (int step = 0; step < 7; ++step) {
    graph.start(step == 5);  // launch by launch, as a profiled step is
    EXPECT_EQ(graph.collect().was_cold, step < 2 * train::Trainer::kMaxStarted) << "step " << step;
  }
}

TEST(EnqueuedStep, a_third_under_way_is_refused_and_so_is_collecting_none) {
  Training training(small_settings());
  EXPECT_THROW(training.trainer->collect(), std::logic_error);
  training.start();
  training.start();
  EXPECT_THROW(training.start(), std::logic_error);
  training.collect();
  training.collect();
  EXPECT_THROW(training.trainer->collect(), std::logic_error);
}

struct StepAsGraph : ::testing::Test {
  void SetUp() override {
    if (!kernels::kHere.has_vendor_parts()) GTEST_SKIP() << "this build has no graphs";
  }
};

TEST_F(StepAsGraph, waits_for_nothing_and_allocates_nothing_once_recorded) {
  for (const Case& c : cases()) expect_costs_nothing(with_graph(c));
}

TEST_F(StepAsGraph, is_the_step_launch_by_launch_bit_for_bit) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name + ", " + std::string(name_of(c.dtype)));
    Training launches(c.settings, c.dtype), graph(with_graph(c).settings, c.dtype);
    for (int step = 0; step < 8; ++step) {
      graph.start(step == 5);  // in between, as profiled steps are
      expect_equal(launches.step(), graph.collect());
      EXPECT_EQ(launches.trainer->weights_fingerprint(), graph.trainer->weights_fingerprint()) << "after step " << step;
    }
  }
}

TEST_F(StepAsGraph, two_under_way_are_the_same_steps_as_one_after_the_other) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name + ", " + std::string(name_of(c.dtype)));
    Training one(with_graph(c).settings, c.dtype), two(with_graph(c).settings, c.dtype);
    two.start();
    for (int step = 0; step < 8; ++step) {
      if (step < 7) two.start();
      expect_equal(one.step(), two.collect());
    }
    EXPECT_EQ(one.trainer->weights_fingerprint(), two.trainer->weights_fingerprint());
  }
}

TEST_F(StepAsGraph, goes_on_after_validation_a_checkpoint_and_a_restore) {
  Case offloaded{"offloaded", small_settings(), Dtype::bf16}, early = offloaded;
  offloaded.settings.parallel.offload = early.settings.parallel.offload = config::Offload::optimizer;
  early.settings.optimizer.clip_norm = 0;
  for (const Case& plain : {Case{"plain", small_settings(), Dtype::bf16}, offloaded, early}) {
    const Case c = with_graph(plain);
    Training undisturbed(c.settings, c.dtype), training(c.settings, c.dtype);
    for (int step = 0; step < 8; ++step) {
      if (step == 5) {
        training.trainer->validate(training.sampler, 3);
        const State state = state_of(*training.trainer);
        const train::StateScalars scalars = training.trainer->scalars();
        training.trainer->load_state([&](const train::StateTensor& tensor) {
          const std::vector<float>& values = state.at(tensor.group + "/" + tensor.param->label);
          std::copy(values.begin(), values.end(), tensor.data.begin());
        });
        training.trainer->set_scalars(scalars);
      }
      expect_equal(undisturbed.step(), training.step());
    }
  }
}

// --- tensor cores in training --------------------------------------------------------------------------------------

struct Kernel {
  std::string name;
  config::AttentionKernel kernel;
  bool is_deterministic = true;
};

class TensorCores : public ::testing::TestWithParam<Kernel> {};

/// Whole steps with every tuned attention against the same training in double.
TEST_P(TensorCores, train_as_the_reference_does) {
  config::Settings deck = wide_settings();
  deck.attention = {.kernel = GetParam().kernel, .deterministic = GetParam().is_deterministic};
  deck.precision.initial_loss_scale = 1024;
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    SCOPED_TRACE(name_of(dtype));
    try {
      train::plan_training(deck, dtype, 1);
    } catch (const std::exception& refusal) {
      GTEST_SKIP() << refusal.what();
    }
    Training training(deck, dtype);
    ReferenceTraining reference(deck, dtype);
    const double epsilon = dtype == Dtype::bf16 ? kEpsilon<bfloat16> : kEpsilon<float16>;
    for (int step = 0; step < 10; ++step) {
      const Training::Step n = training.step();
      reference.step(training.sampler);
      EXPECT_NEAR(n.loss, reference.pass.loss, epsilon * reference.pass.loss) << "step " << step;
      EXPECT_NEAR(n.grad_norm, reference.grad_norm, 8 * epsilon * reference.grad_norm) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, TensorCores,
                         ::testing::Values(Kernel{"auto", config::AttentionKernel::automatic},
                                           Kernel{"auto_in_any_order", config::AttentionKernel::automatic, false},
                                           Kernel{"mma", config::AttentionKernel::mma},
                                           Kernel{"wgmma", config::AttentionKernel::wgmma}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::test
