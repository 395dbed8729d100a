/// The ways to share a step that tests compare, and the deck of each.
#pragma once

#include <string>

#include "unit/train/training.hpp"

namespace tessera::test {

struct Way {
  std::string name = {};
  config::GradientSync sync = config::GradientSync::bucket;
  config::Shard shard = config::Shard::none;
  std::int64_t prefetch = 1;
  bool reshards = true;
  std::int64_t shard_ranks = 0;
  config::Offload offload = config::Offload::none;
  config::OptimizerKind optimizer = config::OptimizerKind::adamw;
};

inline constexpr config::OptimizerKind kOptimizers[] = {config::OptimizerKind::adamw, config::OptimizerKind::lion};

inline Way by(config::OptimizerKind optimizer, Way way) {
  way.optimizer = optimizer;
  way.name += ", " + std::string(optim::traits_of(optimizer).name);
  return way;
}

inline const Way kStages[] = {
    {.name = "none"},
    {.name = "optimizer", .shard = config::Shard::optimizer},
    {.name = "gradients", .shard = config::Shard::gradients},
    {.name = "parameters", .shard = config::Shard::parameters},
};

inline bool fits(const Way& way) { return way.shard_ranks == 0 || kRanks->world().size() % way.shard_ranks == 0; }

inline config::Settings settings_of(const Way& way) {
  config::Settings deck = small_settings();
  deck.model.num_layers = 3;
  deck.train.steps = 12;
  deck.train.batch_size = 12;  // which 1, 2, 3 and 4 ranks divide
  deck.parallel.gradient_sync = way.sync;
  deck.parallel.bucket_mbyte = 0.02;
  deck.parallel.shard = way.shard;
  deck.parallel.prefetch_blocks = way.prefetch;
  deck.parallel.reshard_after_forward = way.reshards;
  deck.parallel.shard_ranks = way.shard_ranks;
  deck.parallel.offload = way.offload;
  deck.precision.initial_loss_scale = 1024;
  deck.optimizer.kind = way.optimizer;
  if (way.optimizer == config::OptimizerKind::lion) {
    deck.optimizer.learning_rate /= 10;
    deck.optimizer.min_learning_rate /= 10;
    deck.optimizer.beta2 = 0.99;
  }
  return deck;
}

/// All weights, gradients and moments in 16 bits.
inline config::PrecisionSettings all_in_16_bits() {
  return {.compute = config::Precision::bf16,
          .master = config::MasterPrecision::none,
          .moments = config::MomentPrecision::bf16,
          .gradients = config::GradientPrecision::bf16,
          .reduce = config::ReducePrecision::bf16};
}

}  // namespace tessera::test
