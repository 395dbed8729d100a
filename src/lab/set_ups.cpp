#include "lab/set_ups.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "config/rules.hpp"
#include "lab/bench_keys.hpp"

namespace tessera::lab {

config::Settings with_size(config::Settings deck, std::string_view size) {
  if (size != "deck") deck.model = config::with_size(deck.model, size);
  return deck;
}

config::Settings with_prompt(config::Settings deck, std::string_view size, std::int64_t prompt_tokens) {
  deck = with_size(std::move(deck), size);
  const Bench& bench = deck.section<Bench>();
  deck.model.context_length = prompt_tokens + 2 + bench.warmup + bench.repeats;
  return deck;
}

config::Parallel with_strategy(config::Parallel parallel, std::string_view name) {
  using config::GradientSync, config::Shard;
  constexpr std::pair<std::string_view, GradientSync> kOrders[] = {{"per_parameter", GradientSync::per_parameter},
                                                                   {"flat", GradientSync::flat},
                                                                   {"overlap", GradientSync::overlap},
                                                                   {"bucket", GradientSync::bucket}};
  constexpr std::pair<std::string_view, Shard> kStages[] = {
      {"optimizer", Shard::optimizer}, {"gradients", Shard::gradients}, {"parameters", Shard::parameters}};
  parallel.gradient_sync = GradientSync::bucket;
  parallel.shard = Shard::none;
  for (const auto& [word, order] : kOrders) {
    if (word != name) continue;
    parallel.gradient_sync = order;
    return parallel;
  }
  for (const auto& [word, stage] : kStages) {
    if (word != name) continue;
    parallel.shard = stage;
    return parallel;
  }
  throw std::logic_error("with_strategy: no strategy of this name");
}

std::vector<config::SetUp> step_set_ups(const config::Settings& deck) {
  using Memory = config::SetUp::Memory;
  const Bench& bench = deck.section<Bench>();
  std::vector<config::SetUp> all;
  for (const std::string& size : bench.sizes) {
    config::Settings row = with_size(deck, size);
    all.push_back({.title = fmt::format("\nsize       {}\n", row.model.size),
                   .name = size,
                   .settings = std::move(row),
                   .memory = bench.phase == "forward" ? Memory::forward : Memory::steps});
  }
  return all;
}

std::vector<config::SetUp> strategy_set_ups(const config::Settings& deck) {
  const Bench& bench = deck.section<Bench>();
  std::vector<config::SetUp> all;
  for (const std::string& size : bench.sizes) {
    config::Settings row = with_size(deck, size);
    std::string title = fmt::format("\nsize       {}\n", row.model.size);
    for (const std::string& strategy : bench.strategies) {
      row.parallel = with_strategy(deck.parallel, strategy);
      title += fmt::format("\nstrategy   {}\n", strategy);
      all.push_back({.title = std::exchange(title, ""), .name = strategy, .settings = row});
    }
  }
  return all;
}

std::vector<config::SetUp> generation_set_ups(const config::Settings& deck) {
  const Bench& bench = deck.section<Bench>();
  std::vector<config::SetUp> all;
  for (const std::string& size : bench.sizes) {
    for (const std::int64_t prompt : bench.lengths) {
      all.push_back({.title = "\n",
                     .name = fmt::format("{}, {}", size, prompt),
                     .settings = with_prompt(deck, size, prompt),
                     .memory = config::SetUp::Memory::generation,
                     .sequences = bench.batch,
                     .prompt_tokens = prompt});
    }
  }
  return all;
}

bool captures_graphs(const config::Settings& deck) {
  const std::vector<std::string>& variants = deck.section<Bench>().variants;
  return std::any_of(variants.begin(), variants.end(), [&](const std::string& variant) {
    return variant == "graph" || (variant == "deck" && deck.train.graph);
  });
}

}  // namespace tessera::lab
