/// Decks that tests of plans share.
#pragma once

#include <string_view>
#include <utility>

#include "config/rules.hpp"
#include "config/settings.hpp"

namespace tessera::test {

/// A model of three blocks, 12 sequences per step.
inline config::Settings small_deck() {
  config::Settings s;
  s.model = {.size = "custom",
             .vocab_size = 101,
             .context_length = 32,
             .d_model = 64,
             .num_layers = 3,
             .num_heads = 4,
             .d_ff = 160};
  s.train.batch_size = 12;
  s.train.steps = 10;
  return s;
}

/// The model with the numbers of a named size.
inline config::Model with_size(config::Model model, std::string_view name) {
  config::Settings s;
  s.model = std::move(model);
  s.model.size = name;
  config::Sources sources{{"model.size", {config::Origin::deck, {}, false}}};
  config::apply_size(s, sources);
  return s.model;
}

/// For H200s, in 16 bits wherever that is possible.
inline config::Settings gpu_deck(std::string_view size) {
  config::Settings s;
  s.model = with_size({.vocab_size = 10000, .context_length = 512}, size);
  s.train.batch_size = 4;
  s.precision.compute = config::Precision::bf16;
  s.precision.gradients = config::GradientPrecision::bf16;
  s.precision.reduce = config::ReducePrecision::bf16;
  s.plan.device = config::PlanDevice::h200;
  return s;
}

}  // namespace tessera::test
