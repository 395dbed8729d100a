#include "train/trainer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/cuda/target.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/kernel_timer.hpp"
#include "kernels/gemm/gemm.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/launch_recorder.hpp"
#include "support/scalars.hpp"
#include "unit/train/training.hpp"

namespace tessera::test {
namespace {

using config::AttentionKernel;

// --- every distribution of the work trains the same model ----------------------------------------------------------

struct Way {
  std::string name;
  std::int64_t batch, micro = 0, checkpoint = 0;
  AttentionKernel attention = AttentionKernel::flash2;
  double bucket_mbyte = 25;
};

const Way kWays[] = {
    {.name = "plain", .batch = 6},
    {.name = "accumulation", .batch = 6, .micro = 1},
    {.name = "checkpointing", .batch = 6, .checkpoint = 1},
    {.name = "one segment", .batch = 6, .checkpoint = 2},
    {.name = "standard attention", .batch = 6, .attention = AttentionKernel::standard},
    {.name = "tiled attention", .batch = 6, .attention = AttentionKernel::tiled},
    {.name = "flash1, recomputed", .batch = 6, .checkpoint = 1, .attention = AttentionKernel::flash1},
    {.name = "a bucket per parameter", .batch = 6, .bucket_mbyte = 0},
    {.name = "uneven", .batch = 5},
    {.name = "uneven micro-steps", .batch = 5, .micro = 2},
    {.name = "everything", .batch = 7, .micro = 2, .checkpoint = 1, .bucket_mbyte = 0.02},
    {.name = "ranks without a sequence", .batch = 1},
};

config::Settings settings_of(const Way& way) {
  config::Settings deck = small_settings();
  deck.train.batch_size = way.batch;
  deck.train.micro_batch_size = way.micro;
  deck.train.checkpoint_activations = way.checkpoint;
  deck.attention.kernel = way.attention;
  deck.parallel.bucket_mbyte = way.bucket_mbyte;
  return deck;
}

/// Compares `steps` steps with the reference. AdamW's first moment after step 1 gives the gradient of step 1.
void expect_same_training(const Way& way, Dtype dtype, double bound) {
  SCOPED_TRACE(way.name + ", " + std::string(name_of(dtype)));
  const config::Settings deck = settings_of(way);
  Training training(deck, dtype);
  ReferenceTraining reference(deck, dtype);
  const double of_saved = dtype == Dtype::fp64 ? kEpsilon<float> : bound;  // states are saved in float
  for (int step = 0; step < 5; ++step) {
    const Training::Step n = training.step();
    reference.step(training.sampler);
    EXPECT_NEAR(n.loss, reference.pass.loss, bound * reference.pass.loss) << "step " << step;
    EXPECT_NEAR(n.grad_norm, reference.grad_norm, bound * reference.grad_norm) << "step " << step;
    EXPECT_DOUBLE_EQ(n.learning_rate, reference.learning_rate);
    EXPECT_FALSE(n.was_skipped);
    if (step != 0 && step != 4) continue;
    const State state = state_of(*training.trainer);
    for (const char* group : {"params", "moments/m", "moments/v"}) {
      for (const model::Param& param : training.plan.table.params()) {
        const std::vector<float>& values = state.at(group + ("/" + param.label));
        EXPECT_TRUE(
            all_close<float>({values.begin(), values.end()}, reference.tensor(group, param), {.of_max = of_saved}))
            << group << "/" << param.label << " after step " << step;
      }
    }
  }
}

TEST(Training, equals_one_rank_in_double_however_the_work_is_shared) {
  for (const Way& way : kWays) expect_same_training(way, Dtype::fp64, 1e-10);
}

TEST(Training, in_float_equals_one_rank_in_double_within_rounding) {
  // A path from a weight to the loss and back rounds about 24 times per block, like a random walk; sums over a row of
  // the model are C long. Five steps with eps = 1e-3 amplify it little.
  const double bound = 2 * std::sqrt(24.0 * 2) * tolerance<float>(32);
  for (const Way& way : kWays) expect_same_training(way, Dtype::fp32, bound);
}

TEST(Training, in_16_bits_follows_the_reference) {
  struct Case {
    Dtype dtype;
    bool has_narrow_gradients;
  };
  for (const auto& [dtype, has_narrow_gradients] :
       {Case{Dtype::bf16, false}, {Dtype::bf16, true}, {Dtype::fp16, false}}) {
    SCOPED_TRACE(has_narrow_gradients ? "gradients in 16 bits, too" : "gradients in float");
    config::Settings deck = small_settings();
    deck.precision.initial_loss_scale = 1024;
    if (has_narrow_gradients) {
      deck.precision.gradients = config::GradientPrecision::bf16;
      deck.precision.reduce = config::ReducePrecision::bf16;
    }
    Training training(deck, dtype);
    ReferenceTraining reference(deck, dtype);
    const double epsilon = dtype == Dtype::bf16 ? kEpsilon<bfloat16> : kEpsilon<float16>;
    for (int step = 0; step < 10; ++step) {
      const Training::Step n = training.step();
      reference.step(training.sampler);
      EXPECT_NEAR(n.loss, reference.pass.loss, epsilon * reference.pass.loss) << name_of(dtype) << ", step " << step;
      EXPECT_NEAR(n.grad_norm, reference.grad_norm, 8 * epsilon * reference.grad_norm)
          << name_of(dtype) << ", step " << step;
    }
  }
}

TEST(Training, checkpointing_changes_no_bit) {
  config::Settings deck = small_settings();
  deck.train.micro_batch_size = 1;
  Training plain(deck);
  for (int step = 0; step < 3; ++step) plain.step();
  for (const int every : {1, 2}) {
    for (const auto recompute : {config::Recompute::all, config::Recompute::all_but_attention}) {
      deck.train.checkpoint_activations = every;
      deck.train.recompute = recompute;
      Training training(deck);
      for (int step = 0; step < 3; ++step) training.step();
      EXPECT_EQ(training.trainer->weights_fingerprint(), plain.trainer->weights_fingerprint()) << "every " << every;
    }
  }
}

TEST(Training, attention_that_is_kept_is_not_computed_again) {
  config::Settings deck = small_settings();
  deck.train.checkpoint_activations = 1;
  const auto launches = [&](config::Recompute recompute) {
    deck.train.recompute = recompute;
    Training training(deck);
    const LaunchRecorder recorder;
    training.step();
    int forwards = 0;
    for (const LaunchRecorder::Launch& launch : recorder.launches()) {
      forwards +=
          launch.label.starts_with("tessera::attention::") && launch.label.find("backward") == std::string::npos;
    }
    return forwards;
  };
  EXPECT_EQ(launches(config::Recompute::all), 2 * launches(config::Recompute::all_but_attention));
}

TEST(Training, learns) {
  config::Settings deck = small_settings();
  deck.train.steps = 40;
  Training training(deck);
  const double first = training.step().loss;
  double last = 0;
  for (int step = 1; step < 40; ++step) last = training.step().loss;
  EXPECT_LT(last, 0.8 * first);
}

// --- bitwise reproducibility ---------------------------------------------------------------------------------------

TEST(Training, all_ranks_hold_the_same_bits_after_every_step) {
  config::Settings deck = small_settings();
  deck.train.batch_size = 5;
  deck.parallel.bucket_mbyte = 0.03;
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    Training training(deck, dtype);
    EXPECT_TRUE(training.ranks_agree()) << "after initialisation";
    for (int step = 0; step < 4; ++step) {
      training.step();
      EXPECT_TRUE(training.ranks_agree()) << "after step " << step;
    }
  }
}

TEST(Training, repeats_bit_for_bit) {
  config::Settings deck = small_settings();
  deck.train.batch_size = 5;
  deck.train.micro_batch_size = 1;
  Training first(deck), second(deck);
  for (int step = 0; step < 4; ++step) {
    const Training::Step a = first.step(), b = second.step();
    EXPECT_EQ(a.loss_sum, b.loss_sum);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
    EXPECT_EQ(first.trainer->weights_fingerprint(), second.trainer->weights_fingerprint());
  }
}

TEST(Training, initial_weights_are_those_of_rank_0) {
  Training training(small_settings());
  const std::uint64_t of_13 = training.trainer->weights_fingerprint();
  training.trainer->initialize(20 + training.world.rank());
  EXPECT_TRUE(training.ranks_agree());
  EXPECT_NE(training.trainer->weights_fingerprint(), of_13);
  training.trainer->initialize(13);
  EXPECT_EQ(training.trainer->weights_fingerprint(), of_13);
}

// --- state ---------------------------------------------------------------------------------------------------------

TEST(TrainingState, saved_and_loaded_continues_bit_for_bit) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    config::Settings deck = small_settings();
    deck.precision.initial_loss_scale = 0x1p22;  // fp16 overflows at first, so the loss scale is part of the state
    Training original(deck, dtype), resumed(deck, dtype);
    for (int step = 0; step < 3; ++step) original.step();
    const State state = state_of(*original.trainer);
    resumed.trainer->load_state([&](const train::StateTensor& tensor) {
      const std::vector<float>& values = state.at(tensor.group + "/" + tensor.param->label);
      std::copy(values.begin(), values.end(), tensor.data.begin());
    });
    resumed.trainer->set_scalars(original.trainer->scalars());
    resumed.next_sample = original.next_sample;
    EXPECT_EQ(resumed.trainer->weights_fingerprint(), original.trainer->weights_fingerprint());
    for (int step = 0; step < 3; ++step) {
      const Training::Step a = original.step(), b = resumed.step();
      EXPECT_EQ(a.loss_sum, b.loss_sum) << name_of(dtype);
      EXPECT_EQ(a.loss_scale, b.loss_scale) << name_of(dtype);
      EXPECT_EQ(a.learning_rate, b.learning_rate) << name_of(dtype);
      EXPECT_EQ(original.trainer->weights_fingerprint(), resumed.trainer->weights_fingerprint()) << name_of(dtype);
    }
    EXPECT_EQ(state_of(*original.trainer), state_of(*resumed.trainer)) << name_of(dtype);
  }
}

TEST(TrainingState, ranks_together_save_every_tensor_exactly_once) {
  Training training(small_settings());
  training.step();
  const State all = state_of(*training.trainer), mine = state_of(*training.trainer, true);
  EXPECT_EQ(all.size(), 3 * training.plan.table.params().size());
  std::string labels;
  for (const auto& [label, values] : mine) {
    EXPECT_EQ(values, all.at(label)) << label;
    labels += label + "\n";
  }
  std::multiset<std::string> saved;
  for (const std::string& of_rank : training.world.all_gather(labels)) {
    for (std::size_t first = 0, end; (end = of_rank.find('\n', first)) != std::string::npos; first = end + 1) {
      saved.insert(of_rank.substr(first, end - first));
    }
  }
  EXPECT_EQ(saved.size(), all.size());
  for (const auto& [label, values] : all) EXPECT_EQ(saved.count(label), 1u) << label;
}

TEST(TrainingState, scalars_come_back) {
  Training training(small_settings());
  training.trainer->set_scalars({.step = 7, .optimizer_steps = 5, .good_steps = 3, .loss_scale = 64});
  const train::StateScalars s = training.trainer->scalars();
  EXPECT_EQ(s.step, 7);
  EXPECT_EQ(s.optimizer_steps, 5);
  EXPECT_EQ(s.good_steps, 3);
  EXPECT_EQ(s.loss_scale, 64);
}

// --- NaN and infinities --------------------------------------------------------------------------------------------

TEST(Training, fp16_skips_while_the_loss_scale_is_too_large_and_then_learns) {
  config::Settings deck = small_settings();
  deck.precision.initial_loss_scale = 0x1p24;
  Training training(deck, Dtype::fp16);
  const std::uint64_t untouched = training.trainer->weights_fingerprint();
  int skipped = 0;
  double scale = 0x1p24;
  for (; skipped < 30; ++skipped) {
    const Training::Step n = training.step();
    if (!n.was_skipped) break;
    EXPECT_EQ(n.loss_scale, scale /= 2);
    EXPECT_TRUE(std::isfinite(n.loss));
    EXPECT_EQ(training.trainer->weights_fingerprint(), untouched);
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 20);
  EXPECT_NE(training.trainer->weights_fingerprint(), untouched);
  EXPECT_TRUE(training.ranks_agree());
  EXPECT_EQ(training.trainer->scalars().optimizer_steps, 1);
  EXPECT_EQ(training.trainer->scalars().step, skipped + 1);
  double loss = 0;
  for (int step = 0; step < 15; ++step) loss = training.step().loss;
  EXPECT_GE(training.trainer->scalars().optimizer_steps, 12);  // the scale may still be at its limit once or twice
  EXPECT_LT(loss, 3.7);                                        // of log 61 = 4.1
}

TEST(Training, a_nan_weight_skips_the_update_on_every_rank_and_shows_in_the_loss) {
  Training training(small_settings());
  training.trainer->load_state([&](const train::StateTensor& tensor) {
    std::fill(tensor.data.begin(), tensor.data.end(), tensor.group == "params" ? 0.1f : 0.0f);
    if (tensor.group == "params" && tensor.param->label == "head.norm.gain") tensor.data[3] = std::nanf("");
  });
  const std::uint64_t before = training.trainer->weights_fingerprint();
  const Training::Step n = training.step();
  EXPECT_TRUE(n.was_skipped);
  EXPECT_TRUE(std::isnan(n.loss));
  EXPECT_EQ(training.trainer->weights_fingerprint(), before);
}

// --- cost and reports of a step ------------------------------------------------------------------------------------

TEST(Training, a_step_allocates_nothing_after_two) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    for (const Way& way : {kWays[0], kWays[4], kWays[8]}) {
      Training training(settings_of(way), dtype);
      training.step();
      training.step();
      kernels::KernelTimer timer;
      timer.start();
      training.trainer->run(training.next_sample, training.sampler);
      timer.stop();
      EXPECT_EQ(timer.counts().allocations, 0) << way.name << ", " << name_of(dtype);
      EXPECT_GT(timer.counts().launches, 5) << way.name << ", " << name_of(dtype);
    }
  }
}

class Listener final : public events::Listener {
 public:
  struct Change {
    std::string label, category, phase;
    std::int64_t bytes;
    bool is_begin;
  };
  struct Interval {
    std::string label;
    std::int64_t bytes;
    double start_s, end_s;
  };
  Listener() { events::add_listener(*this); }
  ~Listener() override { events::remove_listener(*this); }
  void on(const events::MemoryChange& m) override {
    changes.push_back({std::string(m.label), std::string(m.category), std::string(m.phase), m.bytes, m.is_begin});
  }
  void on(const events::Region& r) override { regions.push_back({std::string(r.label), 0, r.start_s, r.end_s}); }
  void on(const events::Communication& c) override {
    communications.push_back({std::string(c.label), c.bytes, c.start_s, c.end_s});
  }
  void on(const events::CommunicationStart& c) override {
    if (c.label.starts_with("grad.bucket.")) bucket_starts_s.push_back(c.time_s);
  }
  std::vector<Change> changes;
  std::vector<Interval> regions, communications;
  std::vector<double> bucket_starts_s;  // when the host said so, as it does of launches
};

TEST(TrainingEvents, tensors_begin_and_end_in_turn_and_their_peaks_are_those_of_the_layout) {
  struct Case {
    std::int64_t batch, micro;  // one pass; accumulation; ranks that run out of sequences before the others
  };
  for (const Case& c : {Case{6, 0}, Case{6, 1}, Case{7, 1}}) {
    config::Settings deck = small_settings();
    deck.train.batch_size = c.batch;
    deck.train.micro_batch_size = c.micro;
    Training training(deck);
    Listener listener;
    for (int step = 0; step < 2; ++step) training.step();

    std::map<std::string, int> live;
    std::vector<std::int64_t> bytes(memory::kCategories + 1, 0), peaks = bytes;
    for (const Listener::Change& change : listener.changes) {
      ASSERT_EQ(live[change.label], change.is_begin ? 0 : 1) << change.label << " in " << change.phase;
      live[change.label] += change.is_begin ? 1 : -1;
      for (int i = 0; i < memory::kCategories; ++i) {
        if (memory::name_of(static_cast<memory::Category>(i)) != change.category) continue;
        for (const int row : {i, memory::kCategories}) {
          bytes[row] += change.is_begin ? change.bytes : -change.bytes;
          peaks[row] = std::max(peaks[row], bytes[row]);
        }
      }
    }
    EXPECT_EQ(peaks, training.plan.layout.peak_by_category()) << c.batch << " sequences, micro-batch " << c.micro;
    for (const memory::Tensor& tensor : training.plan.layout.tensors()) {
      if (tensor.space != memory::Space::device) continue;
      std::vector<std::string> labels;
      for (const memory::Part& part : tensor.parts) labels.push_back(part.label);
      if (labels.empty()) labels.push_back(tensor.label);
      for (const std::string& label : labels)
        EXPECT_EQ(live.at(label), tensor.lifetime.is_whole_run() ? 1 : 0) << label << " after the step";
    }
    // forward's tensors become live once per micro-step that had sequences, and in its phase
    const auto begins =
        std::count_if(listener.changes.begin(), listener.changes.end(), [](const Listener::Change& change) {
          return change.is_begin && change.label == "block.01.qkv" && change.phase == "forward";
        });
    const std::int64_t mine = training.plan.batch.sequences_of(training.world.rank());
    EXPECT_EQ(begins, 2 * (c.micro == 0 ? 1 : mine));
  }
}

TEST(TrainingEvents, phases_follow_each_other_once_per_micro_step) {
  config::Settings deck = small_settings();
  deck.train.micro_batch_size = 1;
  deck.train.batch_size = 12;  // which 1, 2, 3 and 4 ranks divide
  Training training(deck);
  Listener listener;
  training.step();
  std::vector<std::string> expected = {"begin"};
  for (int i = 0; i < 12 / training.world.size(); ++i) expected.insert(expected.end(), {"forward", "backward"});
  expected.insert(expected.end(), {"reduce", "optimizer"});
  auto phases = listener.regions;
  std::erase_if(phases, [](const auto& region) { return region.label.find('/') != std::string::npos; });
  ASSERT_EQ(phases.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(phases[i].label, expected[i]);
    EXPECT_GE(phases[i].start_s, i == 0 ? 0 : phases[i - 1].end_s);
  }
}

TEST(TrainingEvents, units_lie_in_their_phase_in_the_order_of_the_model) {
  Training training(small_settings());
  Listener listener;
  training.step();
  std::vector<std::string> expected;
  const auto& units = training.plan.table.units();
  for (auto unit = units.begin(); unit != units.end(); ++unit) expected.push_back("forward/" + unit->label);
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) expected.push_back("backward/" + unit->label);
  std::vector<std::string> found;
  for (const auto& region : listener.regions) {
    const std::size_t slash = region.label.find('/');
    if (slash == std::string::npos) continue;
    found.push_back(region.label);
    const auto phase = std::find_if(listener.regions.begin(), listener.regions.end(),
                                    [&](const auto& other) { return other.label == region.label.substr(0, slash); });
    ASSERT_NE(phase, listener.regions.end()) << region.label;
    EXPECT_GE(region.start_s, phase->start_s) << region.label;
    EXPECT_LE(region.end_s, phase->end_s) << region.label;
  }
  EXPECT_EQ(found, expected);
}

TEST(TrainingEvents, buckets_start_while_backward_runs_and_only_in_the_last_micro_step) {
  config::Settings deck = small_settings();
  deck.train.micro_batch_size = 1;
  deck.train.batch_size = 12;      // which 1, 2, 3 and 4 ranks divide
  deck.parallel.bucket_mbyte = 0;  // one per parameter, from the head's weight to the embedding's
  Training training(deck);
  Listener listener;
  const LaunchRecorder recorder;
  training.step();
  if (training.world.size() == 1) {
    EXPECT_TRUE(listener.communications.empty());
    return;
  }
  const std::size_t params = training.plan.table.params().size();
  auto buckets = listener.communications;
  std::erase_if(buckets, [](const auto& sum) { return !sum.label.starts_with("grad.bucket."); });  // that of the norm
  ASSERT_EQ(buckets.size(), params);
  std::sort(buckets.begin(), buckets.end(), [](const auto& a, const auto& b) { return a.start_s < b.start_s; });
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < params; ++i) {
    EXPECT_EQ(buckets[i].label, "grad.bucket." + std::to_string(i));
    bytes += buckets[i].bytes;
  }
  EXPECT_EQ(bytes, training.plan.table.flat_count() * 4);
  const std::vector<double>& starts_s = listener.bucket_starts_s;
  ASSERT_EQ(starts_s.size(), params);

  // kernels run between the starts: the head's buckets start before the blocks' attention backward, the blocks' last
  // one before the embedding's
  std::vector<double> attention_s, embedding_s, cross_entropy_s;
  for (const LaunchRecorder::Launch& launch : recorder.launches()) {
    if (launch.label.starts_with("tessera::attention::") && launch.label.find("backward") != std::string::npos)
      attention_s.push_back(launch.time_s);
    if (launch.label.starts_with("tessera::embedding::backward")) embedding_s.push_back(launch.time_s);
    if (launch.label.starts_with("tessera::cross_entropy")) cross_entropy_s.push_back(launch.time_s);
  }
  ASSERT_FALSE(attention_s.empty() || embedding_s.empty() || cross_entropy_s.empty());
  EXPECT_GT(starts_s[0], cross_entropy_s.back());  // not in an earlier micro-step
  EXPECT_LT(starts_s[0], attention_s.back());
  EXPECT_LT(starts_s[2], attention_s.back());
  EXPECT_LT(starts_s[params - 2], embedding_s.back());
  EXPECT_GT(starts_s[params - 1], embedding_s.back());
}

// --- outside the step ----------------------------------------------------------------------------------------------

TEST(Training, validation_is_the_mean_loss_over_its_windows_on_any_ranks_and_changes_nothing) {
  config::Settings deck = small_settings();
  Training training(deck);
  training.step();
  const State state = state_of(*training.trainer);
  for (const std::int64_t windows : {1, 5, 14}) {
    const auto sum = training.trainer->validate(training.sampler, windows);
    const std::vector<double> all = training.world.sum({sum.loss_sum, sum.tokens});
    EXPECT_EQ(all[1], static_cast<double>(windows * 24));

    Pass<double> pass(training.plan.shape, {.sequences = 1});
    std::vector<double> params(pass.table.flat_count(), 0.0);
    for (const model::Param& param : pass.table.params()) {
      const std::vector<float>& values = state.at("params/" + param.label);
      std::copy(values.begin(), values.end(), params.begin() + param.first);
    }
    pass.set_params(params);
    double expected = 0;
    std::vector<int> row(25);
    for (std::int64_t window = 0; window < windows; ++window) {
      training.sampler.fill_validation(window, row);
      pass.set_tokens(row, 1, 24);
      pass.run(false);
      expected += pass.loss_sum;
    }
    EXPECT_NEAR(all[0], expected, 1e-5 * expected) << windows << " windows";
  }
  EXPECT_EQ(state_of(*training.trainer), state);
}

TEST(Training, generation_speaks_with_the_present_weights_on_every_rank) {
  Training training(small_settings());
  const model::GenerateOptions options{.max_tokens = 40, .temperature = 1, .top_k = 0, .seed = 5};
  const std::vector<int> before = training.trainer->generate({1, 2}, options);
  EXPECT_EQ(training.trainer->generate({1, 2}, options), before);
  for (int step = 0; step < 5; ++step) training.step();
  const std::vector<int> after = training.trainer->generate({1, 2}, options);
  EXPECT_NE(after, before);
  std::string text;
  for (const int token : after) text += static_cast<char>(token);
  for (const std::string& other : training.world.all_gather(text)) EXPECT_EQ(other, text);
}

TEST(Training, generation_times_no_products_whatever_training_does) {
  if (!kernels::kHere.has_vendor_parts()) GTEST_SKIP() << "the library has no choice";
  config::Settings deck = small_settings();
  std::vector<std::vector<std::string>> chosen;
  for (const bool times : {true, false}) {
    deck.train.tune_gemm = times;
    kernels::set_gemm_algorithms({});
    Training training(deck, Dtype::bf16);
    training.trainer->generate({1, 2, 3}, {.max_tokens = 5, .temperature = 0});
    chosen.push_back(kernels::gemm_algorithms());
  }
  EXPECT_GT(chosen[0].size(), 1u);
  EXPECT_EQ(chosen[0], chosen[1]);
  kernels::set_gemm_algorithms({});
}

}  // namespace
}  // namespace tessera::test
