/// What tests of the training step share: a small deck, a trainer with its data, and the same training in double on
/// one rank, all sequences at once, with the optimizer written out.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/sampler.hpp"
#include "model/initial_values.hpp"
#include "optim/step_state.hpp"
#include "parallel/collectives/collective.hpp"
#include "parallel/device.hpp"
#include "parallel/choice.hpp"
#include "reference/adamw.hpp"
#include "reference/lion.hpp"
#include "support/shared_gpu.hpp"
#include "train/trainer.hpp"
#include "unit/model/pass.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::test {

/// The ranks of all tests, joined as those of a launch are: by NCCL where they compute on GPUs, one each. Where there
/// are too few GPUs, every test is skipped and says so.
class Ranks : public ::testing::Environment {
 public:
  TestWorld& world() const { return *world_; }

 private:
  void SetUp() override {
    world_ = std::make_unique<TestWorld>();
    if (!parallel::has_gpu_backend()) return;
    const int wanted = world_->local_size(), found = parallel::visible_devices();
    if (found < wanted && !ranks_share_a_gpu()) GTEST_SKIP() << "needs " << wanted << " GPUs, found " << found;
    if (parallel::kHasNccl && world_->size() > 1)
      world_->use(parallel::make_gpu_collectives(*world_, parallel::TransferMethod::automatic));
  }
  void TearDown() override {
    world_->use(nullptr);
    world_.reset();
  }

  std::unique_ptr<TestWorld> world_;
};
inline const auto* const kRanks = static_cast<Ranks*>(::testing::AddGlobalTestEnvironment(new Ranks));

/// A model of 30,000 parameters; eps is large because Adam's first step is otherwise the sign of a gradient.
inline config::Settings small_settings() {
  config::Settings s;
  s.model = {.size = "custom",
             .vocab_size = 61,
             .context_length = 24,
             .d_model = 32,
             .num_layers = 2,
             .num_heads = 4,
             .d_ff = 48};
  s.train.steps = 20;
  s.train.batch_size = 6;
  s.optimizer = {.learning_rate = 1e-2, .min_learning_rate = 1e-3, .warmup_steps = 2, .eps = 1e-3, .clip_norm = 1.0};
  s.parallel.allow_uneven = true;
  return s;
}

/// State tensors by "group/label".
using State = std::map<std::string, std::vector<float>>;

inline State state_of(train::Trainer& trainer, bool mine_only = false) {
  State state;
  for (const train::SavedTensor& tensor : trainer.saved_state(mine_only)) {
    const std::span<const float> values = tensor.data();
    state[tensor.group + "/" + tensor.param->label] = {values.begin(), values.end()};
  }
  return state;
}

/// The whole state on every rank, out of the parts that the ranks save: each element from exactly one of them.
inline State joined_state(const std::vector<train::SavedTensor>& saved, const parallel::World& world) {
  std::string mine;
  const auto put = [&](const void* data, std::size_t bytes) { mine.append(static_cast<const char*>(data), bytes); };
  for (const train::SavedTensor& tensor : saved) {
    const std::string label = tensor.group + "/" + tensor.param->label;
    const std::int64_t numbers[] = {std::ssize(label), tensor.param->count, tensor.first, tensor.count};
    put(numbers, sizeof numbers);
    put(label.data(), label.size());
    put(tensor.data().data(), tensor.count * sizeof(float));
  }
  State state;
  std::map<std::string, std::int64_t> found;
  for (const std::string& part : world.all_gather(mine)) {
    for (std::size_t at = 0; at < part.size();) {
      std::int64_t numbers[4];
      std::memcpy(numbers, part.data() + at, sizeof numbers);
      const auto [length, whole, first, count] = numbers;
      at += sizeof numbers;
      const std::string label = part.substr(at, length);
      at += length;
      std::vector<float>& values = state[label];
      values.resize(whole);
      std::memcpy(values.data() + first, part.data() + at, count * sizeof(float));
      at += count * sizeof(float);
      found[label] += count;
    }
  }
  for (const auto& [label, values] : state) EXPECT_EQ(found[label], std::ssize(values)) << label;
  return state;
}

inline State joined_state(train::Trainer& trainer, const parallel::World& world) {
  return joined_state(trainer.saved_state(true), world);
}

/// Fills a part of a tensor with what `state` has of it.
inline void fill(const train::StateTensor& tensor, const State& state) {
  const std::vector<float>& values = state.at(tensor.group + "/" + tensor.param->label);
  std::copy_n(values.begin() + tensor.first, tensor.data.size(), tensor.data.begin());
}

/// What becomes of weights that are not gathered: NaN, so that one which is read while its unit is closed shows, or
/// what they happen to be.
enum class ClosedWeights { poisoned, left };

/// A trainer with everything it refers to. Steps follow each other from sample 0 on.
class Training {
 public:
  explicit Training(const config::Settings& deck, Dtype dtype = Dtype::fp32, model::Hooks* observer = nullptr,
                    ClosedWeights closed = ClosedWeights::poisoned)
      : settings(deck),
        plan(planned(settings, dtype, world.size(), closed)),
        corpus(data::Corpus::open(config::DataSource::synthetic, "", settings.model.vocab_size, 11)),
        sampler(corpus, settings.model.context_length, 0.1, 12),
        trainer(std::make_unique<train::Trainer>(plan, settings, world, observer)) {
    trainer->connect();
    trainer->initialize(13);
  }
  ~Training() {
    if (std::uncaught_exceptions() > 0) {  // main ends all ranks
      world.collectives().abandon();
    } else {
      trainer->disconnect();
      world.barrier();
    }
  }

  static train::Plan planned(const config::Settings& settings, Dtype dtype, int ranks, ClosedWeights closed) {
    train::Plan plan = train::plan_training(settings, dtype, ranks);
    plan.poisons_closed_units = closed == ClosedWeights::poisoned;
    return plan;
  }

  /// Numbers of the next step; the loss is the mean over all tokens of all ranks.
  struct Step : train::StepNumbers {
    double loss;
  };
  Step step() {
    start();
    return collect();
  }
  void start(bool launch_by_launch = false) {
    trainer->start(next_sample, sampler, launch_by_launch);
    next_sample += settings.train.batch_size;
  }
  Step collect() {
    Step numbers{trainer->collect(), 0};
    const double tokens = static_cast<double>(settings.train.batch_size * settings.model.context_length);
    numbers.loss = world.sum({numbers.loss_sum})[0] / tokens;
    return numbers;
  }

  /// Loads a state, part by part as `read` fills them. A rank asks for all that it owns and for nothing else.
  void load(const std::function<void(const train::StateTensor&)>& read) {
    const train::Sharing& sharing = plan.sharing;
    const parallel::Ownership& ownership = sharing.ownership;
    std::int64_t asked = 0, owned = 0;
    trainer->load_state([&](const train::StateTensor& tensor) {
      asked += std::ssize(tensor.data);
      read(tensor);
    });
    for (int unit = 0; unit < ownership.units(); ++unit) {
      owned += ownership.owned(unit, sharing.shard_of(world.rank())).count;
    }
    const std::int64_t arrays = 1 + std::ssize(plan.arrays.moments);  // weights and moments
    EXPECT_LE(asked, arrays * owned);                                 // what lies between tensors is owned, too
    const int copies = world.size() / ownership.shards();
    EXPECT_EQ(world.sum({static_cast<double>(asked)})[0],
              static_cast<double>(arrays * copies * plan.table.parameter_count()));
  }
  /// The same from whole tensors.
  void load(const State& state) {
    load([&](const train::StateTensor& tensor) { fill(tensor, state); });
  }

  /// Whether all ranks hold the same weights, bit for bit.
  bool ranks_agree() {
    const std::string mine = std::to_string(trainer->weights_fingerprint());
    for (const std::string& other : world.all_gather(mine)) {
      if (other != mine) return false;
    }
    return true;
  }

  parallel::World& world = kRanks->world();
  config::Settings settings;
  train::Plan plan;
  data::Corpus corpus;
  data::Sampler sampler;
  std::unique_ptr<train::Trainer> trainer;
  std::int64_t next_sample = 0;
};

/// The same training in double: one rank, no accumulation, no buckets, no arena shared with the trainer.
class ReferenceTraining {
 public:
  /// Starts where a trainer of `dtype` starts: its weights are in float but for fp64.
  ReferenceTraining(const config::Settings& deck, Dtype dtype)
      : settings(deck),
        pass(train::shape_of(deck.model), {.sequences = deck.train.batch_size}),
        state(pass.table.flat_count()) {
    for (const model::Param& param : pass.table.params()) {
      for (std::int64_t i = 0; i < param.count; ++i) {
        const double value = model::InitialValues(13, param)(i);
        state[param.first + i].p = dtype == Dtype::fp64 ? value : static_cast<double>(static_cast<float>(value));
      }
    }
  }

  /// One step on tokens [B,T+1].
  void step(const std::vector<int>& tokens) {
    const config::Optimizer& o = settings.optimizer;
    pass.set_params(column(&reference::AdamwState::p));
    pass.run(tokens, static_cast<int>(settings.train.batch_size), static_cast<int>(settings.model.context_length));
    double norm_squared = 0;
    for (const double g : pass.grads) norm_squared += g * g;
    grad_norm = std::sqrt(norm_squared);
    const double clip = o.clip_norm > 0 ? std::min(1.0, o.clip_norm / (grad_norm + 1e-6)) : 1.0;
    const optim::Schedule schedule{o.learning_rate, o.min_learning_rate, o.warmup_steps, settings.train.steps};
    learning_rate = schedule.learning_rate_at(steps++);
    for (const model::Param& param : pass.table.params()) {
      const reference::AdamwConfig config{learning_rate, o.beta1, o.beta2, o.eps,
                                          param.has_decay ? o.weight_decay : 0.0};
      for (std::int64_t i = param.first; i < param.first + param.count; ++i) {
        const double grad = clip * pass.grads[i];
        if (o.kind == config::OptimizerKind::lion) {
          const reference::LionConfig lion{config.learning_rate, config.beta1, config.beta2, config.weight_decay};
          const auto [p, m] = reference::lion({state[i].p, state[i].m}, grad, lion);
          state[i] = {p, m, 0};
        } else {
          state[i] = reference::adamw(state[i], grad, steps, config);
        }
      }
    }
  }
  /// One step on the samples that a trainer would read next.
  void step(const data::Sampler& sampler) {
    const std::int64_t B = settings.train.batch_size, row = settings.model.context_length + 1;
    std::vector<int> tokens(B * row);
    for (std::int64_t i = 0; i < B; ++i)
      sampler.fill(steps * B + i, std::span<std::int32_t>(tokens.data() + i * row, row));
    step(tokens);
  }

  std::vector<double> column(double reference::AdamwState::*member) const {
    std::vector<double> values;
    for (const reference::AdamwState& s : state) values.push_back(s.*member);
    return values;
  }
  /// "params", "moments/m" or "moments/v" of one tensor.
  std::vector<double> tensor(const std::string& group, const model::Param& param) const {
    const auto member = group == "params"      ? &reference::AdamwState::p
                        : group == "moments/m" ? &reference::AdamwState::m
                                               : &reference::AdamwState::v;
    return Pass<double>::slice(column(member), param);
  }

  config::Settings settings;
  Pass<double> pass;
  std::vector<reference::AdamwState> state;  // flat; Lion has no v
  int steps = 0;
  double grad_norm = 0, learning_rate = 0;
};

}  // namespace tessera::test
