// State that is kept on the host, streamed under the passes of a step: the bits of a run without.

#include "train/offload.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "unit/train/ways.hpp"

namespace tessera::test {
namespace {

using config::Shard;

/// Where each of the arrays that are kept from step to step lies.
void expect_on_host(const train::Plan& plan, bool with_weights) {
  for (const memory::Tensor& tensor : plan.layout.tensors()) {
    if (tensor.label.find(".chunk.") != std::string::npos || tensor.label.find(".gathered.") != std::string::npos)
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
  };
  using enum config::Offload;
  for (const auto& [shard, offload] : {Place{Shard::none, optimizer},
                                       {Shard::optimizer, optimizer},
                                       {Shard::parameters, optimizer},
                                       {Shard::parameters, parameters}}) {
    for (const auto& [dtype, is_all_narrow] :
         {Case{Dtype::fp32, false}, {Dtype::fp16, false}, {Dtype::bf16, false}, {Dtype::bf16, true}}) {
      for (const double clip_norm : {1.0, 0.0}) {
        config::Settings deck = settings_of({.shard = shard});
        if (is_all_narrow) deck.precision = all_in_16_bits();
        deck.optimizer.clip_norm = clip_norm;
        Training here(deck, dtype);
        deck.parallel.offload = offload;
        Training offloaded(deck, dtype);
        SCOPED_TRACE(std::string(name_of(dtype)) + ", shard " + std::to_string(static_cast<int>(shard)) + ", offload " +
                     std::to_string(static_cast<int>(offload)) + ", clip_norm " + std::to_string(clip_norm));
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
  }
}

}  // namespace
}  // namespace tessera::test
