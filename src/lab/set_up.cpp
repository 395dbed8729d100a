#include "lab/set_up.hpp"

#include "lab/bench_keys.hpp"

namespace tessera::lab {

config::SetUp step_set_up(const config::Settings& deck) {
  using Memory = config::SetUp::Memory;
  return {.settings = deck, .memory = deck.section<Bench>().phase == "forward" ? Memory::forward : Memory::steps};
}

config::SetUp generation_set_up(const config::Settings& deck) {
  const Bench& bench = deck.section<Bench>();
  config::SetUp set_up{.settings = deck,
                       .memory = config::SetUp::Memory::generation,
                       .sequences = bench.batch,
                       .prompt_tokens = bench.length};
  set_up.settings.model.context_length = bench.length + 2 + bench.warmup + bench.repeats;
  return set_up;
}

}  // namespace tessera::lab
