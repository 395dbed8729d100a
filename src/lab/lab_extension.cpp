/// What the laboratory adds to decks: its jobs' traits, its keys, their rules and its tables.

#include <string_view>
#include <vector>

#include "lab/bench_keys.hpp"
#include "lab/experiment_rows.hpp"
#include "lab/kinds.hpp"

namespace tessera::lab {
namespace {

/// The set-up of bench.step: steps or, by bench.phase, forward passes alone.
config::SetUp step_set_up(const config::Settings& deck) {
  using Memory = config::SetUp::Memory;
  return {.settings = deck, .memory = deck.section<Bench>().phase == "forward" ? Memory::forward : Memory::steps};
}

std::vector<config::JobTraits> lab_traits() {
  constexpr std::string_view kFile = "bench.h5";
  return {
      {.kind = kBenchStep, .name = "bench.step", .has_steps = true, .file = kFile, .set_up = step_set_up},
      {.kind = kBenchAttention, .name = "bench.attention", .has_own_dtype = true, .file = kFile},
      {.kind = kBenchKernels, .name = "bench.kernels", .file = kFile},
      {.kind = kBenchComm, .name = "bench.comm", .file = kFile},
      {.kind = kBenchStrategies, .name = "bench.strategies", .has_steps = true, .file = kFile},
      {.kind = kBenchDecode, .name = "bench.decode", .file = kFile},
      {.kind = kBenchGenerate, .name = "bench.generate", .file = kFile, .set_up = generation_set_up},
      {.kind = kBenchAccumulation, .name = "bench.accumulation", .file = kFile},
      {.kind = kExperiment,
       .name = "experiment",
       .resumes = true,
       .file = "experiment.h5",
       .rows_key = "experiment.only"},
  };
}

}  // namespace

config::SetUp generation_set_up(const config::Settings& deck) {
  const Bench& bench = deck.section<Bench>();
  config::SetUp set_up{.settings = deck,
                       .memory = config::SetUp::Memory::generation,
                       .sequences = bench.batch,
                       .prompt_tokens = bench.length};
  set_up.settings.model.context_length = bench.length + 2 + bench.warmup + bench.repeats;
  return set_up;
}

config::Extension lab_extension() {
  const std::vector<config::JobTraits> traits = lab_traits();
  return {.jobs = traits,
          .jobs_meaning = " bench.* measure; experiment runs one of these for each row that [experiment] describes.",
          .keys = all_lab_keys(traits),
          .renamed = old_keys(),
          .check = check,
          .make_tables = make_tables,
          .tables_text = [](const config::Settings& deck) { return tables_text(deck.section<Experiment>()); }};
}

}  // namespace tessera::lab
