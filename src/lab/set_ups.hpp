/// The set-ups of the bench jobs that run several: the deck's settings but for what a row changes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "config/job_traits.hpp"
#include "config/settings.hpp"

namespace tessera::lab {

/// The settings of one row of bench.step and bench.strategies: the deck's, but for the model ("deck": its own).
config::Settings with_size(config::Settings deck, std::string_view size);

/// The settings of one row of bench.generate: its model, and a context for the prompt and the tokens that continue it,
/// two of them before the warm-up (bench_generate.cpp).
config::Settings with_prompt(config::Settings deck, std::string_view size, std::int64_t prompt_tokens);

/// The same ranks under one of the strategies that bench.strategies names: a word of parallel.gradient_sync, with
/// nothing sharded, or of parallel.shard.
config::Parallel with_strategy(config::Parallel parallel, std::string_view name);

// What --plan shows of a deck: of bench.step each of bench.sizes, since all variants take the same memory; of
// bench.strategies each of these with each strategy; of bench.generate each with each length of the prompt.
std::vector<config::SetUp> step_set_ups(const config::Settings& deck);
std::vector<config::SetUp> strategy_set_ups(const config::Settings& deck);
std::vector<config::SetUp> generation_set_ups(const config::Settings& deck);

/// Whether bench.step captures a step as a graph in one of bench.variants.
bool captures_graphs(const config::Settings& deck);

}  // namespace tessera::lab
