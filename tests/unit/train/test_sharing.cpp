// Every way to share a step over ranks trains the same model: gradients of step 1, losses of 12 steps and the weights
// after them against one rank in double, and bit for bit where the ways promise it.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "kernels/cuda/target.hpp"
#include "errors.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/late_gathers.hpp"
#include "support/scalars.hpp"
#include "unit/train/closed_training.hpp"
#include "unit/train/ways.hpp"

namespace tessera::test {
namespace {

using config::GradientSync;
using config::Shard;

const Way kOrdersAndStages[] = {
    {.name = "per_parameter", .sync = GradientSync::per_parameter},
    {.name = "flat", .sync = GradientSync::flat},
    {.name = "overlap", .sync = GradientSync::overlap},
    {.name = "bucket"},
    {.name = "optimizer", .shard = Shard::optimizer},
    {.name = "gradients", .shard = Shard::gradients},
    {.name = "parameters", .shard = Shard::parameters},
};
const Way kVariants[] = {
    {.name = "parameters, nothing ahead", .shard = Shard::parameters, .prefetch = 0},
    {.name = "parameters, everything ahead", .shard = Shard::parameters, .prefetch = 100},
    {.name = "parameters, kept for backward", .shard = Shard::parameters, .reshards = false},
    {.name = "optimizer, in pairs", .shard = Shard::optimizer, .shard_ranks = 2},
    {.name = "gradients, in pairs", .shard = Shard::gradients, .shard_ranks = 2},
    {.name = "parameters, in pairs", .shard = Shard::parameters, .shard_ranks = 2},
    {.name = "parameters, alone", .shard = Shard::parameters, .shard_ranks = 1},
    {.name = "bucket, offloaded", .offload = config::Offload::optimizer},
    {.name = "optimizer, offloaded", .shard = Shard::optimizer, .offload = config::Offload::optimizer},
    {.name = "parameters, offloaded", .shard = Shard::parameters, .offload = config::Offload::optimizer},
    {.name = "parameters on the host", .shard = Shard::parameters, .offload = config::Offload::parameters},
    {.name = "parameters on the host, nothing ahead",
     .shard = Shard::parameters,
     .prefetch = 0,
     .offload = config::Offload::parameters},
    {.name = "parameters on the host, kept for backward",
     .shard = Shard::parameters,
     .reshards = false,
     .offload = config::Offload::parameters},
    {.name = "parameters on the host, in pairs",
     .shard = Shard::parameters,
     .shard_ranks = 2,
     .offload = config::Offload::parameters},
    {.name = "parameters on the host, alone",
     .shard = Shard::parameters,
     .shard_ranks = 1,
     .offload = config::Offload::parameters},
};

/// What a case keeps and sends in 16 bits beside the activations of a 16-bit dtype.
enum class Narrow { nothing, wire, gradients, everything };

struct Case {
  std::int64_t batch, micro, checkpoint;
  Dtype dtype;
  Narrow narrow = Narrow::nothing;
};

config::Settings deck_of(const Way& way, const Case& c) {
  config::Settings deck = settings_of(way);
  deck.train.batch_size = c.batch;
  deck.train.micro_batch_size = c.micro;
  deck.train.checkpoint_activations = c.checkpoint;
  if (c.narrow != Narrow::nothing) deck.precision.reduce = config::ReducePrecision::bf16;
  if (c.narrow == Narrow::gradients) deck.precision.gradients = config::GradientPrecision::bf16;
  if (c.narrow == Narrow::everything) deck.precision = all_in_16_bits();
  return deck;
}

/// The results of one rank in double on batches of `batch` sequences, from weights rounded to float.
struct Expected {
  Expected(std::int64_t batch, config::OptimizerKind optimizer) {
    config::Settings deck = settings_of({.optimizer = optimizer});
    deck.train.batch_size = batch;
    const Training data(deck);
    ReferenceTraining training(deck, Dtype::fp32);
    const auto all = [&](const char* group) {
      std::vector<std::vector<double>> tensors;
      for (const model::Param& param : training.pass.table.params()) tensors.push_back(training.tensor(group, param));
      return tensors;
    };
    for (int step = 0; step < 12; ++step) {
      training.step(data.sampler);
      losses.push_back(training.pass.loss);
      norms.push_back(training.grad_norm);
      if (step == 0) first_moments = all("moments/m");
    }
    weights = all("params");
  }
  std::vector<double> losses, norms;
  std::vector<std::vector<double>> first_moments;  // by parameter: a fraction of the clipped gradient of step 1
  std::vector<std::vector<double>> weights;        // after all steps
};

const Expected& expected(std::int64_t batch, config::OptimizerKind optimizer) {
  static std::map<std::pair<std::int64_t, config::OptimizerKind>, Expected> all;
  return all.try_emplace({batch, optimizer}, batch, optimizer).first->second;
}

double relative_difference(const std::vector<float>& found, const std::vector<double>& reference) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    difference += std::pow(found[i] - reference[i], 2);
    size += reference[i] * reference[i];
  }
  return std::sqrt(difference / size);
}

/// In float the bound is that of test_trainer.cpp. A 16-bit path rounds each activation and its gradient once:
/// a step's loss and gradients differ by a few epsilons; twelve steps move the weights by about 0.1 of their size, so
/// that their relative difference stays a tenth of the gradients'. Weights of 16 bits are rounded in each step, too, at
/// random: those of about 1/6 by up to half a unit in 2^8, the loss by an epsilon more.
void expect_same_training(const Way& way, const Case& c) {
  SCOPED_TRACE(way.name + ", " + std::string(name_of(c.dtype)) + ", batch " + std::to_string(c.batch) + " in " +
               std::to_string(c.micro) + ", checkpoint " + std::to_string(c.checkpoint) + ", narrow " +
               std::to_string(static_cast<int>(c.narrow)));
  const config::Settings deck = deck_of(way, c);
  // On a GPU the observer's fences would keep transfers from running beside the passes.
  std::conditional_t<kernels::kIsHost<Device>, ClosedTraining, Training> training(deck, c.dtype);
  const Expected& reference = expected(c.batch, way.optimizer);
  const double epsilon = c.dtype == Dtype::bf16 ? kEpsilon<bfloat16> : c.dtype == Dtype::fp16 ? kEpsilon<float16> : 0;
  const double in_float = 2 * std::sqrt(24.0 * 3) * tolerance<float>(32);
  const double of_gradient = epsilon > 0 ? 8 * epsilon : in_float;
  const double of_loss = c.narrow == Narrow::everything ? 2 * epsilon : epsilon > 0 ? epsilon : in_float;
  for (int step = 0; step < 12; ++step) {
    const Training::Step n = training.step();
    EXPECT_FALSE(n.was_skipped);
    EXPECT_NEAR(n.loss, reference.losses[step], of_loss * reference.losses[step]) << "step " << step;
    EXPECT_NEAR(n.grad_norm, reference.norms[step], of_gradient * reference.norms[step]) << "step " << step;
    if (step > 0) continue;
    const State state = joined_state(*training.trainer, training.world);
    for (const model::Param& param : training.plan.table.params()) {
      EXPECT_LE(relative_difference(state.at("moments/m/" + param.label), reference.first_moments[param.number]),
                of_gradient)
          << param.label;
    }
  }
  const State state = joined_state(*training.trainer, training.world);
  for (const model::Param& param : training.plan.table.params()) {
    EXPECT_LE(relative_difference(state.at("params/" + param.label), reference.weights[param.number]), of_gradient)
        << param.label;
  }
}

TEST(Sharing, every_order_and_stage_trains_as_one_rank_does) {
  const int ranks = kRanks->world().size();
  for (const Way& way : kOrdersAndStages) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
      for (const std::int64_t micro_steps : {1, 3}) {
        for (const std::int64_t checkpoint : {0, 1}) {
          if (ranks == 4 && (micro_steps == 1 || checkpoint == 0)) continue;  // the whole product on fewer
          const std::int64_t batch = 36;
          expect_same_training(way, {batch, batch / ranks / micro_steps, checkpoint, dtype});
        }
      }
    }
  }
}

TEST(Sharing, variants_train_as_one_rank_does) {
  const int ranks = kRanks->world().size();
  for (const Way& way : kVariants) {
    if (!fits(way)) continue;
    for (const std::int64_t checkpoint : {0, 2}) {
      expect_same_training(way, {12, 12 / ranks, checkpoint, Dtype::fp32});
      expect_same_training(way, {36, 12 / ranks, checkpoint, Dtype::bf16});
    }
  }
}

/// A sign turns a difference in rounding into two learning rates: against the reference the passes are in double, or
/// so coarse that this adds little.
TEST(Sharing, lion_trains_as_one_rank_does_in_every_order_stage_and_variant) {
  const int ranks = kRanks->world().size();
  for (const Way& each : kOrdersAndStages) {
    const Way way = by(config::OptimizerKind::lion, each);
    expect_same_training(way, {7, 1, 1, Dtype::fp64});
    if (ranks == 4) continue;  // the rest on fewer
    expect_same_training(way, {36, 12 / ranks, 0, Dtype::bf16});
    expect_same_training(way, {12, 0, 0, Dtype::bf16, Narrow::everything});
  }
  for (const Way& each : kVariants) {
    if (fits(each)) expect_same_training(by(config::OptimizerKind::lion, each), {12, 12 / ranks, 0, Dtype::fp64});
  }
}

TEST(Sharing, uneven_ranks_and_ranks_without_a_sequence_are_weighted_by_tokens) {
  for (const Way& way : kOrdersAndStages) {
    expect_same_training(way, {5, 2, 0, Dtype::fp32});
    expect_same_training(way, {7, 1, 1, Dtype::fp32});
    expect_same_training(way, {1, 0, 0, Dtype::fp32});
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) expect_same_training(way, {7, 1, 1, dtype});
  }
  for (const Way& way : kVariants) {
    if (fits(way)) expect_same_training(way, {7, 1, 2, Dtype::fp32});
  }
}

/// While it lives, gathers of trainers that are made arrive as late as they may. Over NCCL they arrive when they do.
class LateGathersInUse {
 public:
  LateGathersInUse() {
    parallel::World& world = kRanks->world();
    if (kernels::kIsHost<Device>) world.use(std::make_unique<LateGathers>(world.collectives()));
  }
  ~LateGathersInUse() {
    if (kernels::kIsHost<Device>) kRanks->world().use(nullptr);
  }
};

TEST(Sharing, no_pass_of_a_run_reads_a_weight_while_its_unit_is_closed) {
  const LateGathersInUse late;
  for (const Way& way : kStages) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
      for (const std::int64_t batch : {6, 3}) {  // of 3 sequences the fourth rank gets none
        for (const int checkpoint : {0, 1, 2, 3}) {
          SCOPED_TRACE(way.name + ", " + std::string(name_of(dtype)) + ", " + std::to_string(batch) +
                       " sequences, checkpoint " + std::to_string(checkpoint));
          config::Settings deck = settings_of(way);
          deck.train.batch_size = batch;
          deck.train.micro_batch_size = 1;
          deck.train.checkpoint_activations = checkpoint;
          Training open(deck, dtype, nullptr, ClosedWeights::left);
          ClosedTraining closed(deck, dtype);
          EXPECT_EQ(closed.closes(), way.shard != Shard::parameters || closed.world.size() == 1);
          for (int step = 0; step < 2; ++step) {
            const Training::Step of_closed = closed.step(), of_open = open.step();
            EXPECT_EQ(of_closed.loss, of_open.loss);
            EXPECT_EQ(of_closed.grad_norm, of_open.grad_norm);
            EXPECT_EQ(closed.validate(5).loss_sum, open.trainer->validate(open.sampler, 5).loss_sum);
          }
          const model::GenerateOptions greedy{.max_tokens = 5, .temperature = 0};
          open.trainer->begin_generation();
          EXPECT_EQ(closed.generate({1, 2, 3}, greedy), open.trainer->generate({1, 2, 3}, greedy));
          EXPECT_EQ(closed.trainer->weights_fingerprint(), open.trainer->weights_fingerprint());
          if (closed.closes()) {
            EXPECT_GE(closed.passes(), 2 * closed.plan.batch.micro_steps + 5);
          }
        }
      }
    }
  }
}

TEST(Sharing, fp16_scales_its_loss_in_every_stage) {
  for (const Way& each : kOrdersAndStages) {
    for (const config::OptimizerKind optimizer : kOptimizers) {
      const Way way = by(optimizer, each);
      if (way.shard == Shard::none) continue;
      expect_same_training(way, {12, 0, 0, Dtype::fp16});
      config::Settings deck = settings_of(way);
      deck.precision.initial_loss_scale = 0x1p24;
      Training training(deck, Dtype::fp16);
      const State untouched = joined_state(*training.trainer, training.world);
      const Training::Step n = training.step();  // too large: every rank skips, though one alone may have overflowed
      EXPECT_TRUE(n.was_skipped);
      EXPECT_EQ(n.loss_scale, 0x1p23);
      EXPECT_TRUE(joined_state(*training.trainer, training.world) == untouched) << way.name;
    }
  }
}

/// The logit of a target is -infinity on one rank alone; every other number of the step is finite.
TEST(Sharing, an_infinite_loss_of_one_rank_makes_every_rank_skip) {
  for (const Way& way : kOrdersAndStages) {
    SCOPED_TRACE(way.name);
    config::Settings deck = settings_of(way);
    deck.train.batch_size = kRanks->world().size();
    Training training(deck);
    const auto T = static_cast<std::size_t>(deck.model.context_length);
    std::vector<std::int32_t> row(T + 1);
    training.sampler.fill(training.world.rank(), row);
    std::vector<double> has(deck.model.vocab_size, 0.0);
    for (std::size_t t = 1; t <= T; ++t) has[row[t]] = 1;
    const std::vector<double> ranks = training.world.sum(has);
    const std::int64_t target = std::ranges::find(ranks, 1.0) - ranks.begin();
    ASSERT_LT(target, deck.model.vocab_size) << "every target is of several ranks";
    training.load([&](const train::StateTensor& tensor) {
      const std::string& label = tensor.param->label;
      const bool is_one = tensor.group == "params" && (label == "embedding.weight" || label.ends_with("gain"));
      std::ranges::fill(tensor.data, is_one ? 1.0f : 0.0f);
      if (tensor.group != "params" || label != "head.weight") return;
      for (std::size_t i = 0; i < tensor.data.size(); ++i) {
        if ((tensor.first + static_cast<std::int64_t>(i)) / deck.model.d_model == target) tensor.data[i] = -3e38f;
      }
    });
    const State untouched = joined_state(*training.trainer, training.world);
    const Training::Step n = training.step();
    EXPECT_TRUE(n.was_skipped);
    EXPECT_EQ(n.loss, HUGE_VAL);
    EXPECT_TRUE(joined_state(*training.trainer, training.world) == untouched);
  }
}

TEST(Sharing, gradients_cross_the_network_in_16_bits_in_every_stage) {
  std::vector<Way> ways(std::begin(kOrdersAndStages), std::end(kOrdersAndStages));
  std::copy_if(std::begin(kVariants), std::end(kVariants), std::back_inserter(ways), fits);
  for (const Way& way : ways) {
    for (const Narrow narrow : {Narrow::wire, Narrow::gradients}) {
      expect_same_training(way, {12, 0, 0, Dtype::bf16, narrow});
    }
  }
}

TEST(Sharing, gradients_in_16_bits_want_one_micro_step) {
  config::Settings deck = settings_of({.shard = Shard::gradients});
  deck.precision.gradients = config::GradientPrecision::bf16;
  deck.train.micro_batch_size = 1;
  EXPECT_THROW(train::plan_training(deck, Dtype::bf16, 2), Failure);
}

/// The results of a way after 12 steps of one micro-step in fp32 without clipping.
struct Outcome {
  std::vector<double> losses;
  double validation;
  std::uint64_t fingerprint;
  std::vector<int> text;
  State state;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const Way& way, bool graph = false, Dtype dtype = Dtype::fp32) {
  config::Settings deck = settings_of(way);
  deck.train.graph = graph;
  if (dtype == Dtype::bf16) deck.precision = all_in_16_bits();
  deck.optimizer.clip_norm = 0;
  Training training(deck, dtype);
  Outcome outcome;
  for (int step = 0; step < 12; ++step) {
    outcome.losses.push_back(training.step().loss_sum);
    if (step == 5) outcome.validation = training.trainer->validate(training.sampler, 5).loss_sum;
  }
  outcome.fingerprint = training.trainer->weights_fingerprint();
  training.trainer->begin_generation();
  enum { follows, begins_pass, is_done };
  if (training.world.rank() == 0) {
    outcome.text = training.trainer->generate(
        {1, 2, 3}, {.max_tokens = 5, .temperature = 0, .begins_pass = [&] { training.world.max(begins_pass); }});
    training.world.max(is_done);
  } else {
    while (training.world.max(follows) == begins_pass) training.trainer->follow();
  }
  outcome.state = joined_state(*training.trainer, training.world);
  return outcome;
}

TEST(Sharing, on_two_ranks_every_order_and_stage_gives_the_same_bits) {
  if (kRanks->world().size() > 2) GTEST_SKIP() << "sums of more than two terms depend on their order";
  std::vector<Way> ways(std::begin(kOrdersAndStages), std::end(kOrdersAndStages));
  std::copy_if(std::begin(kVariants), std::end(kVariants), std::back_inserter(ways), fits);
  using enum config::OptimizerKind;
  for (const auto& [optimizer, dtype] : {std::pair{adamw, Dtype::fp32}, {adamw, Dtype::bf16}, {lion, Dtype::bf16}}) {
    const Outcome first = outcome_of(by(optimizer, ways[0]), false, dtype);
    for (const Way& each : ways) {
      const Way way = by(optimizer, each);
      EXPECT_TRUE(outcome_of(way, false, dtype) == first) << way.name << ", " << name_of(dtype);
    }
  }
}

TEST(Sharing, everything_in_16_bits_learns_as_the_reference_does) {
  for (const Way& way : kOrdersAndStages) {
    const Case c{12, 0, 0, Dtype::bf16, Narrow::everything};
    expect_same_training(way, c);
    for (const config::OptimizerKind optimizer : kOptimizers) {
      const train::Plan plan = train::plan_training(deck_of(by(optimizer, way), c), c.dtype, kRanks->world().size());
      std::int64_t bytes = 0;
      for (const memory::Tensor& tensor : plan.layout.tensors()) {
        if (tensor.category == memory::Category::optimizer) bytes += tensor.bytes;
      }
      const std::int64_t moments = optimizer == config::OptimizerKind::adamw ? 2 : 1;
      EXPECT_EQ(bytes, 2 * moments * plan.sharing.ownership.owned_count()) << way.name;
    }
  }
}

TEST(Sharing, everything_in_16_bits_goes_on_bit_for_bit_in_every_stage) {
  for (const Way& each : kOrdersAndStages) {
    for (const config::OptimizerKind optimizer : kOptimizers) {
      const Way way = by(optimizer, each);
      config::Settings deck = settings_of(way);
      deck.precision = all_in_16_bits();
      Training original(deck, Dtype::bf16), resumed(deck, Dtype::bf16);
      for (int step = 0; step < 3; ++step) original.step();
      const State state = joined_state(*original.trainer, original.world);
      resumed.load(state);
      resumed.trainer->set_scalars(original.trainer->scalars());
      resumed.next_sample = original.next_sample;
      for (int step = 0; step < 3; ++step) EXPECT_EQ(resumed.step().loss_sum, original.step().loss_sum) << way.name;
      EXPECT_TRUE(joined_state(*original.trainer, original.world) == joined_state(*resumed.trainer, resumed.world));
    }
  }
}

TEST(Sharing, repeats_bit_for_bit) {
  for (const Way& way : kOrdersAndStages) {
    const Outcome first = outcome_of(way);
    EXPECT_TRUE(outcome_of(way, kernels::kHere.has_vendor_parts()) == first) << way.name << ", as a graph on GPUs";
    EXPECT_EQ(first.text.size(), kRanks->world().rank() == 0 ? 5u : 0u);
  }
  for (const Way& way : kVariants) {
    if (!fits(way)) continue;
    EXPECT_TRUE(outcome_of(way, kernels::kHere.has_vendor_parts()) == outcome_of(way))
        << way.name << ", as a graph on GPUs";
  }
}

TEST(Sharing, initial_weights_do_not_depend_on_who_makes_them) {
  Training whole(settings_of({}));
  const State state = joined_state(*whole.trainer, whole.world);
  const std::uint64_t fingerprint = whole.trainer->weights_fingerprint();
  for (const Shard shard : {Shard::optimizer, Shard::gradients, Shard::parameters}) {
    Training parts(settings_of({.shard = shard}));
    EXPECT_EQ(joined_state(*parts.trainer, parts.world), state);
    EXPECT_EQ(parts.trainer->weights_fingerprint(), fingerprint);
  }
}

TEST(Sharing, a_state_goes_from_every_stage_to_every_other) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    for (const Way& from : kOrdersAndStages) {
      Training original(settings_of(from), dtype);
      for (int step = 0; step < 3; ++step) original.step();
      const State state = joined_state(*original.trainer, original.world);
      const train::StateScalars scalars = original.trainer->scalars();
      const auto fingerprint = original.trainer->weights_fingerprint();
      const auto next_sample = original.next_sample;
      const double next_loss = original.step().loss_sum;
      for (const Way& to : kOrdersAndStages) {
        SCOPED_TRACE(std::string(from.name) + " to " + std::string(to.name));
        Training resumed(settings_of(to), dtype);
        resumed.load(state);
        resumed.trainer->set_scalars(scalars);
        EXPECT_EQ(joined_state(*resumed.trainer, resumed.world), state);
        EXPECT_EQ(resumed.trainer->weights_fingerprint(), fingerprint);
        resumed.next_sample = next_sample;
        if (&from == &to) {
          EXPECT_EQ(resumed.step().loss_sum, next_loss);
        }
      }
    }
  }
}

TEST(Sharing, a_state_goes_from_every_precision_and_place_to_every_other) {
  struct Form {
    std::string name;
    config::PrecisionSettings precision;
    Dtype dtype;
    config::Offload offload = config::Offload::none;
    bool is_wide = true;  // weights and moments in float
  };
  config::PrecisionSettings bf16 = all_in_16_bits(), narrow_moments = all_in_16_bits();
  bf16.master = narrow_moments.master = config::MasterPrecision::fp32;
  bf16.moments = config::MomentPrecision::fp32;
  const Form forms[] = {{"fp32", {}, Dtype::fp32},
                        {"fp32, offloaded", {}, Dtype::fp32, config::Offload::optimizer},
                        {"bf16", bf16, Dtype::bf16},
                        {"bf16, offloaded", bf16, Dtype::bf16, config::Offload::optimizer},
                        {"bf16 moments", narrow_moments, Dtype::bf16, config::Offload::none, false},
                        {"16 bits", all_in_16_bits(), Dtype::bf16, config::Offload::none, false},
                        {"16 bits, offloaded", all_in_16_bits(), Dtype::bf16, config::Offload::optimizer, false},
                        {"fp32, on the host", {}, Dtype::fp32, config::Offload::parameters},
                        {"bf16, on the host", bf16, Dtype::bf16, config::Offload::parameters}};
  const auto make = [](const Form& form) {
    const bool is_streamed = form.offload == config::Offload::parameters;
    config::Settings deck =
        settings_of({.shard = is_streamed ? Shard::parameters : Shard::gradients, .offload = form.offload});
    deck.precision = form.precision;
    return std::make_unique<Training>(deck, form.dtype);
  };
  for (const Form& from : forms) {
    const auto original = make(from);
    for (int step = 0; step < 2; ++step) original->step();
    const State state = joined_state(*original->trainer, original->world);
    for (const Form& to : forms) {
      const auto resumed = make(to);
      resumed->load(state);
      const State after = joined_state(*resumed->trainer, resumed->world);
      SCOPED_TRACE(from.name + " to " + to.name);
      if (to.is_wide || &from == &to) {
        EXPECT_TRUE(after == state);
      } else {  // rounded to nearest where the new form is narrower
        for (const auto& [label, values] : state) {
          const std::vector<float>& rounded = after.at(label);
          for (std::size_t i = 0; i < values.size(); ++i) {
            ASSERT_LE(std::abs(rounded[i] - values[i]), kEpsilon<bfloat16> / 2 * std::abs(values[i])) << label;
          }
        }
      }
      resumed->trainer->set_scalars(original->trainer->scalars());
      resumed->next_sample = original->next_sample;
      EXPECT_TRUE(std::isfinite(resumed->step().loss));
    }
  }
}

TEST(Sharing, ranks_keep_their_parts_only) {
  const int ranks = kRanks->world().size();
  const auto bytes = [&](Shard shard, memory::Category category) {
    const train::Plan plan = train::plan_training(settings_of({.shard = shard}), Dtype::fp32, ranks);
    std::int64_t sum = 0;
    for (const memory::Tensor& t : plan.layout.tensors()) {
      if (t.category == category && t.lifetime.is_whole_run()) sum += t.bytes;
    }
    return static_cast<double>(sum);
  };
  using memory::Category;
  const double padding = 1.1;  // five units of at most 64 * ranks elements each, of 40,000
  const double optimizer = bytes(Shard::none, Category::optimizer), gradients = bytes(Shard::none, Category::gradients);
  for (const Shard shard : {Shard::optimizer, Shard::gradients, Shard::parameters}) {
    EXPECT_LE(bytes(shard, Category::optimizer), padding * optimizer / ranks);
  }
  EXPECT_LE(bytes(Shard::gradients, Category::gradients), padding * gradients / ranks);
  EXPECT_LE(bytes(Shard::parameters, Category::gradients), padding * gradients / ranks);
  const auto weights = [&](Shard shard) {  // without the places of gathered units
    const train::Plan plan = train::plan_training(settings_of({.shard = shard}), Dtype::fp32, ranks);
    return static_cast<double>(plan.layout.tensors()[plan.arrays.params].bytes);
  };
  EXPECT_LE(weights(Shard::parameters), padding * weights(Shard::none) / ranks);
}

/// The last rank sleeps: before a step, so that the others wait for weights in forward or for gradients, or inside of
/// it.
TEST(Sharing, a_wait_for_a_late_rank_is_exposed_wherever_it_occurs) {
  struct Sleeper final : model::Hooks {
    void before(model::Pass pass, int unit) override {
      if (pass == moment && unit == 1 && std::exchange(sleeps, false)) sleep();
    }
    static void sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(600)); }  // ranks may share cores
    model::Pass moment = model::Pass::forward;
    bool sleeps = false;
  };
  const parallel::World& world = kRanks->world();
  if (world.size() == 1) GTEST_SKIP() << "one rank waits for nobody";
  const bool is_late = world.rank() == world.size() - 1;
  for (const Shard shard : {Shard::none, Shard::optimizer, Shard::gradients, Shard::parameters}) {
    Sleeper sleeper;
    Training training(settings_of({.shard = shard, .prefetch = 0}), Dtype::fp32, &sleeper);
    training.step();
    for (const auto moment : {model::Pass::inference, model::Pass::forward, model::Pass::backward}) {
      SCOPED_TRACE(std::string(train::name_of(shard)) + ", late in pass " + std::to_string(static_cast<int>(moment)));
      world.barrier();
      sleeper.moment = moment;
      sleeper.sleeps = is_late;
      if (is_late && moment == model::Pass::inference) Sleeper::sleep();  // before the step
      const Training::Step step = training.step();
      if (!is_late) {
        EXPECT_GT(step.exposed_comm_s, 0.2);
      }
      EXPECT_GE(std::min({step.forward_s, step.backward_s, step.optimizer_s, step.exposed_comm_s}), 0);
      EXPECT_NEAR(step.forward_s + step.backward_s + step.exposed_comm_s + step.optimizer_s, step.total_s, 1e-4);
    }
  }
}

TEST(Sharing, refuses_shards_that_do_not_divide_the_ranks) {
  config::Settings deck = settings_of({.shard = Shard::optimizer, .shard_ranks = 2});
  EXPECT_NO_THROW(train::plan_training(deck, Dtype::fp32, 4));
  EXPECT_THROW(train::plan_training(deck, Dtype::fp32, 3), Failure);
}

// What a checkpoint in the background reads: the state of when it began, in every order, stage and variant.
TEST(Sharing, a_copied_state_stays_what_it_was_while_steps_follow) {
  std::vector<Way> ways(std::begin(kOrdersAndStages), std::end(kOrdersAndStages));
  ways.insert(ways.end(), std::begin(kVariants), std::end(kVariants));
  for (const Way& way : ways) {
    for (const Case c :
         {Case{12, 0, 0, Dtype::fp32}, Case{12, 0, 0, Dtype::bf16}, Case{12, 0, 0, Dtype::bf16, Narrow::everything}}) {
      if (!fits(way)) continue;
      SCOPED_TRACE(way.name + ", " + std::string(name_of(c.dtype)));
      config::Settings deck = deck_of(way, c);
      deck.checkpoint.background = config::Background::on;
      Training copied(deck, c.dtype);
      deck.checkpoint.background = config::Background::off;
      Training training(deck, c.dtype);
      copied.step();
      training.step();
      const std::vector<train::SavedTensor> saved = copied.trainer->saved_state(true);
      const auto then = joined_state(*training.trainer, training.world);
      for (int step = 0; step < 2; ++step) EXPECT_EQ(copied.step().loss, training.step().loss);
      EXPECT_TRUE(joined_state(saved, training.world) == then);
      EXPECT_FALSE(joined_state(*training.trainer, training.world) == then);
    }
  }
}

}  // namespace
}  // namespace tessera::test
