// State that is kept on the host, streamed under the passes of a step: the bits of a run without.

#include "train/offload.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "unit/train/ways.hpp"

namespace tessera::test {
namespace {

using config::Shard;

/// Where each of the arrays that are kept from step to step lies.
void expect_on_host(const train::Plan& plan, bool with_weights) {
  for (const memory::Tensor& tensor : plan.layout.tensors()) {
    if (tensor.label.find(".chunks") != std::string::npos || tensor.label.find(".gathered.") != std::string::npos)
      continue;
    const bool is_offloaded = tensor.category == memory::Category::optimizer ||
                              (with_weights && tensor.category == memory::Category::parameters);
    if (is_offloaded || tensor.category == memory::Category::gradients) {
      EXPECT_EQ(tensor.space, is_offloaded ? memory::Space::host : memory::Space::device) << tensor.label;
    }
  }
}

TEST(Offload, gives_the_same_bits_in_every_dtype_on_any_ranks) {
  struct Case {
    Dtype dtype;
    bool is_all_narrow;
  };
  struct Place {
    Shard shard;
    config::Offload offload;
    std::int64_t shard_ranks = 0;
  };
  using enum config::Offload;
  for (const auto& [shard, offload, shard_ranks] : {Place{Shard::none, optimizer},
                                                    {Shard::optimizer, optimizer},
                                                    {Shard::parameters, optimizer},
                                                    {Shard::parameters, parameters},
                                                    {Shard::optimizer, optimizer, 2},
                                                    {Shard::parameters, parameters, 2}}) {
    const Way way{.shard = shard, .shard_ranks = shard_ranks};
    if (!fits(way) || shard_ranks == kRanks->world().size()) continue;  // two ranks are one pair, as above
    for (const auto& [dtype, is_all_narrow] :
         {Case{Dtype::fp32, false}, {Dtype::fp16, false}, {Dtype::bf16, false}, {Dtype::bf16, true}}) {
      using enum config::OptimizerKind;
      for (const auto& [kind, clip_norm] : {std::pair{adamw, 1.0}, {adamw, 0.0}, {lion, 0.0}}) {
        config::Settings deck = settings_of(by(kind, way));
        if (is_all_narrow) deck.precision = all_in_16_bits();
        deck.optimizer.clip_norm = clip_norm;
        Training here(deck, dtype);
        deck.parallel.offload = offload;
        Training offloaded(deck, dtype);
        SCOPED_TRACE(std::string(name_of(dtype)) + ", shard " + std::to_string(static_cast<int>(shard)) + " of " +
                     std::to_string(shard_ranks) + ", offload " + std::to_string(static_cast<int>(offload)) +
                     ", clip_norm " + std::to_string(clip_norm) + ", " + std::string(optim::traits_of(kind).name));
        EXPECT_GT(train::chunks_of(offloaded.plan.sharing.ownership.owned_count()).size(), 1u);
        const train::LinkRate rate = offloaded.trainer->measure_link();
        EXPECT_EQ(rate.bytes, static_cast<double>(train::offloaded_bytes(offloaded.plan)));
        EXPECT_GT(rate.seconds, 0);
        for (int step = 0; step < 4; ++step) {
          const Training::Step a = here.step(), b = offloaded.step();
          EXPECT_EQ(a.loss_sum, b.loss_sum) << "step " << step;
          EXPECT_EQ(a.grad_norm, b.grad_norm) << "step " << step;
        }
        EXPECT_TRUE(joined_state(*here.trainer, here.world) == joined_state(*offloaded.trainer, offloaded.world));
        expect_on_host(offloaded.plan, offload == parameters);
      }
    }
  }
}

/// With gradients that accumulate, recomputed blocks and, on some ranks, no sequences.
TEST(Offload, gives_the_same_bits_however_a_step_is_divided) {
  for (const config::Offload offload : {config::Offload::optimizer, config::Offload::parameters}) {
    for (const std::int64_t batch : {1, 7}) {
      config::Settings deck = settings_of({.shard = Shard::parameters});
      deck.train.batch_size = batch;
      deck.train.micro_batch_size = 1;
      deck.train.checkpoint_activations = 2;
      deck.precision.reduce = config::ReducePrecision::bf16;
      for (const double clip_norm : {1.0, 0.0}) {
        deck.optimizer.clip_norm = clip_norm;
        deck.parallel.offload = config::Offload::none;
        Training here(deck, Dtype::bf16);
        deck.parallel.offload = offload;
        Training offloaded(deck, Dtype::bf16);
        for (int step = 0; step < 3; ++step) EXPECT_EQ(here.step().loss_sum, offloaded.step().loss_sum);
        EXPECT_EQ(here.trainer->weights_fingerprint(), offloaded.trainer->weights_fingerprint());
      }
    }
  }
}

TEST(Offload, a_step_whose_gradients_are_not_finite_is_skipped_in_every_place) {
  for (const config::Offload offload : {config::Offload::optimizer, config::Offload::parameters}) {
    config::Settings deck = settings_of({.shard = Shard::parameters, .offload = offload});
    deck.precision.initial_loss_scale = 0x1p24;
    Training training(deck, Dtype::fp16);
    const std::uint64_t untouched = training.trainer->weights_fingerprint();
    EXPECT_TRUE(training.step().was_skipped);
    EXPECT_EQ(training.trainer->weights_fingerprint(), untouched);
    EXPECT_EQ(training.trainer->scalars().optimizer_steps, 0);
  }
}

/// On one rank half of the update precedes the norm: the step counts as skipped all the same, at which a run ends.
TEST(Offload, without_clipping_a_step_whose_gradients_are_not_finite_counts_as_skipped) {
  config::Settings deck = settings_of({});
  deck.optimizer.clip_norm = 0;
  deck.optimizer.learning_rate = 1e30;
  deck.optimizer.warmup_steps = 0;
  Training here(deck);
  deck.parallel.offload = config::Offload::optimizer;
  Training offloaded(deck);
  bool was_skipped = false;
  for (int step = 0; step < 4 && !was_skipped; ++step) {
    const Training::Step a = here.step(), b = offloaded.step();
    EXPECT_EQ(a.was_skipped, b.was_skipped) << "step " << step;
    was_skipped = a.was_skipped;
  }
  EXPECT_TRUE(was_skipped);
  EXPECT_EQ(here.trainer->scalars().optimizer_steps, offloaded.trainer->scalars().optimizer_steps);
}

/// What reads weights or state outside of steps sees the last update, which is otherwise part of the next step.
TEST(Offload, settles_before_anything_else_reads_the_state) {
  const auto with = [](config::Offload offload) {
    config::Settings deck = settings_of({.shard = Shard::parameters, .offload = offload});
    return std::make_unique<Training>(deck, Dtype::bf16);
  };
  for (const config::Offload offload : {config::Offload::optimizer, config::Offload::parameters}) {
    const auto here = with(config::Offload::none), offloaded = with(offload);
    const auto both = [&](const char* what, const auto& read) {
      here->step();
      offloaded->step();
      EXPECT_TRUE(read(*here) == read(*offloaded)) << what;
    };
    both("validation", [](Training& t) { return t.trainer->validate(t.sampler, 5).loss_sum; });
    both("fingerprint", [](Training& t) { return t.trainer->weights_fingerprint(); });
    both("saved state", [](Training& t) { return joined_state(*t.trainer, t.world); });
    both("link", [](Training& t) {
      t.trainer->measure_link();
      return t.trainer->weights_fingerprint();
    });
    both("a state that is loaded is not updated", [](Training& t) {
      const train::StateScalars scalars = t.trainer->scalars();
      t.trainer->load_state(
          [](const train::StateTensor& tensor) { std::fill(tensor.data.begin(), tensor.data.end(), 0.5f); });
      t.trainer->set_scalars(scalars);
      const State state = joined_state(*t.trainer, t.world);
      for (const auto& [label, values] : state) EXPECT_EQ(values[0], 0.5f) << label;
      return state;
    });
    both("the step after it", [](Training& t) { return t.trainer->weights_fingerprint(); });
  }
}

/// Copies that run on from step to step, disturbed by whatever reads the state on the host or writes it: what has been
/// copied in ahead must not outlive a change there.
TEST(Offload, gives_the_same_bits_with_any_number_of_slots) {
  struct Place {
    Shard shard;
    config::Offload offload;
  };
  using enum config::Offload;
  const auto disturb = [](Training& t, int step) {
    train::Trainer& trainer = *t.trainer;
    if (step == 2) trainer.validate(t.sampler, 5);
    if (step == 4) trainer.measure_link();
    if (step == 5) trainer.initialize(17);
    if (step != 3 && step != 7) return;
    const State state = joined_state(trainer, t.world);
    const train::StateScalars scalars = trainer.scalars();
    trainer.load_state([&](const train::StateTensor& tensor) {
      const std::vector<float>& values = state.at(tensor.group + "/" + tensor.param->label);
      for (std::size_t i = 0; i < tensor.data.size(); ++i) tensor.data[i] = 0.5f * values[tensor.first + i];
    });
    trainer.set_scalars(scalars);
  };
  for (const auto& [shard, offload] :
       {Place{Shard::none, optimizer}, {Shard::gradients, optimizer}, {Shard::parameters, parameters}}) {
    for (const double clip_norm : {1.0, 0.0}) {
      config::Settings deck = settings_of({.shard = shard});
      deck.optimizer.clip_norm = clip_norm;
      deck.train.micro_batch_size = 2;
      std::vector<Training::Step> expected;
      Training here(deck, Dtype::bf16);
      for (int step = 0; step < 10; ++step) {
        expected.push_back(here.step());
        disturb(here, step);
      }
      deck.parallel.offload = offload;
      const std::int64_t owned = here.plan.sharing.ownership.owned_count();
      const std::int64_t chunks = std::ssize(train::chunks_of(owned));
      ASSERT_GT(chunks, 5);
      struct Slots {
        std::int64_t slots;
        bool joins = false;  // the copies of each step, as a graph does
      };
      for (const auto& [slots, joins] : {Slots{3}, {5}, {chunks}, {5, true}}) {
        SCOPED_TRACE("shard " + std::to_string(static_cast<int>(shard)) + ", clip_norm " + std::to_string(clip_norm) +
                     ", slots " + std::to_string(slots) + " of " + std::to_string(chunks) + (joins ? ", joined" : ""));
        deck.parallel.offload_slots = slots;
        deck.train.graph = joins;
        Training offloaded(deck, Dtype::bf16);
        for (int step = 0; step < 10; ++step) {
          offloaded.start(joins);  // then launch by launch
          const Training::Step numbers = offloaded.collect();
          EXPECT_EQ(numbers.loss_sum, expected[step].loss_sum) << "step " << step;
          EXPECT_EQ(numbers.grad_norm, expected[step].grad_norm) << "step " << step;
          disturb(offloaded, step);
        }
        EXPECT_TRUE(joined_state(*here.trainer, here.world) == joined_state(*offloaded.trainer, offloaded.world));
      }
    }
  }
}

/// A plan of one rank and its arrays, streamed by hand.
struct Ring {
  explicit Ring(std::int64_t slots, bool has_backward)
      : plan([&] {
          config::Settings deck = settings_of({.offload = config::Offload::optimizer});
          deck.parallel.offload_slots = slots;
          return train::plan_training(deck, Dtype::fp32, 1);
        }()),
        arena(plan.layout),
        offload(plan.arrays.staged, plan.sharing.ownership, arena, false, has_backward) {}

  /// Streams a part: the update sets moments m to `value`.
  void stream(train::Offload::Part part, train::Offload::Copies copies, float value) {
    offload.start(exec, part, copies, [this, value](const kernels::Device& instance, std::size_t chunk, int slot) {
      order.emplace_back(chunk, slot);
      const std::int64_t each = offload.chunks()[0].count, count = offload.chunks()[chunk].count;
      float* const place =
          static_cast<float*>(arena.raw(plan.arrays.staged.slots_of(plan.arrays.moments[0].tensor))) + slot * each;
      Kokkos::deep_copy(instance, kernels::Vector<float, kernels::Device>(place, count), value);
    });
    offload.join(exec);
  }
  /// Elements of m on the host that have a value.
  std::int64_t count(float value) const {
    exec.fence();
    const float* const m = static_cast<const float*>(arena.raw(plan.arrays.moments[0].tensor));
    return std::count(m, m + plan.layout[plan.arrays.moments[0].tensor].count, value);
  }
  void clear() {
    float* const m = static_cast<float*>(arena.raw(plan.arrays.moments[0].tensor));
    std::fill(m, m + plan.layout[plan.arrays.moments[0].tensor].count, 0.0f);
  }

  const kernels::Device exec{};
  train::Plan plan;
  memory::Arena arena;
  train::Offload offload;
  std::vector<std::pair<std::size_t, int>> order;  // chunk and slot of each update
};

TEST(Offload, chunks_take_the_slots_in_turn_over_parts_that_run_on) {
  using enum train::Offload::Part;
  using enum train::Offload::Copies;
  Ring ring(5, true);
  const std::size_t chunks = ring.offload.chunks().size(), middle = (chunks + 1) / 2;
  for (int round = 0; round < 3; ++round) {
    ring.order.clear();
    ring.stream(forward, run_on, 1);
    EXPECT_THROW(ring.stream(forward, run_on, 1), std::logic_error) << "the other part is due";
    ring.stream(backward, run_on, 2);
    ring.stream(forward, run_on, 3);
    ring.stream(backward, joined, 4);
    ASSERT_EQ(ring.order.size(), 2 * chunks);
    for (std::size_t i = 0; i < 2 * chunks; ++i) {
      const std::size_t number = i % chunks;
      EXPECT_EQ(ring.order[i].first, number < middle ? number : chunks - 1 - (number - middle)) << "update " << i;
      EXPECT_EQ(ring.order[i].second, static_cast<int>(i % 5)) << "update " << i;
    }
  }
  ring.order.clear();
  ring.stream(backward, joined, 5);  // after copies that were joined, either part
  EXPECT_EQ(ring.order.front(), std::pair(chunks - 1, 0));
}

TEST(Offload, the_host_has_all_of_the_state_after_copies_that_are_joined) {
  using enum train::Offload::Copies;
  constexpr auto forward = train::Offload::Part::forward;
  for (const std::int64_t slots : {3, 10}) {
    Ring ring(slots, false);
    ring.clear();
    const std::int64_t all = ring.plan.layout[ring.plan.arrays.moments[0].tensor].count;
    ring.stream(forward, run_on, 1);
    if (kernels::kIsHost<kernels::Device>) {  // where a copy ends before another is enqueued
      EXPECT_GT(ring.count(0), 0) << "copies out do not run on";
    }
    for (int unit = ring.plan.sharing.ownership.units() - 1; unit >= 0; --unit) ring.offload.release(ring.exec, unit);
    if (kernels::kIsHost<kernels::Device>) {
      EXPECT_EQ(ring.count(1), all) << "a backward pass has let all of them run";
    }
    ring.stream(forward, joined, 2);
    EXPECT_EQ(ring.count(2), all);
    ring.clear();
    ring.offload.measure(ring.exec);
    EXPECT_EQ(ring.count(0), all) << "chunks that were copied in before the host's arrays were written";
  }
}

TEST(Offload, has_the_slots_that_are_asked_for) {
  EXPECT_EQ(train::chunk_slots(3, 800), 1) << "the default is for every model";
  EXPECT_EQ(train::chunk_slots(3, 2500), 3);
  EXPECT_EQ(train::chunk_slots(16, 16384), 16);
  try {
    train::chunk_slots(17, 16384);
    ADD_FAILURE() << "more slots than chunks";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::usage);
    EXPECT_NE(std::string(failure.what()).find("set at most 16"), std::string::npos) << failure.what();
  }
  const Ring few(3, false), many(10, false);
  const std::int64_t chunk = 2 * 4 * few.offload.chunks()[0].count;  // moments; the weights stay on the device
  EXPECT_EQ(train::slots_bytes(many.plan), 10 * chunk);
  EXPECT_EQ(many.plan.layout.arena_bytes() - few.plan.layout.arena_bytes(), 7 * chunk);
}

TEST(Offload, chunks_cover_the_state_once) {
  for (const std::int64_t count :
       {std::int64_t{64}, std::int64_t{8192}, std::int64_t{8256}, std::int64_t{200000}, std::int64_t{123'456'768}}) {
    std::int64_t next = 0;
    for (const train::Chunk& chunk : train::chunks_of(count)) {
      EXPECT_EQ(chunk.first, next);
      EXPECT_LE(chunk.count, train::chunk_elements(count));
      next += chunk.count;
    }
    EXPECT_EQ(next, count);
    EXPECT_EQ(train::chunk_count(count), std::ssize(train::chunks_of(count))) << count;
  }
  EXPECT_EQ(train::chunk_count(0), 0);
}

}  // namespace
}  // namespace tessera::test
