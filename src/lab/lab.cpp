#include "lab/lab.hpp"

#include <string_view>
#include <vector>

#include "config/extension.hpp"
#include "jobs/jobs.hpp"
#include "lab/bench_keys.hpp"
#include "lab/experiment_rows.hpp"
#include "lab/kinds.hpp"

namespace tessera::lab {

using jobs::Context;

// The laboratory's jobs, one file each.
Exit bench_step(const Context& context);
Exit bench_attention(const Context& context);
Exit bench_kernels(const Context& context);
Exit bench_comm(const Context& context);
Exit bench_strategies(const Context& context);
Exit bench_decode(const Context& context);
Exit bench_generate(const Context& context);
Exit bench_accumulation(const Context& context);
Exit experiment(const Context& context);

namespace {

struct Row {
  config::JobTraits traits;
  Exit (*run)(const Context&);
};

/// The set-up of bench.step: steps or, by bench.phase, forward passes alone.
config::SetUp step_set_up(const config::Settings& deck) {
  using Memory = config::SetUp::Memory;
  return {.settings = deck, .memory = deck.section<Bench>().phase == "forward" ? Memory::forward : Memory::steps};
}

std::vector<Row> rows() {
  constexpr std::string_view kFile = "bench.h5";
  return {
      {{.kind = kBenchStep, .name = "bench.step", .has_steps = true, .file = kFile, .set_up = step_set_up}, bench_step},
      {{.kind = kBenchAttention, .name = "bench.attention", .has_own_dtype = true, .file = kFile}, bench_attention},
      {{.kind = kBenchKernels, .name = "bench.kernels", .file = kFile}, bench_kernels},
      {{.kind = kBenchComm, .name = "bench.comm", .file = kFile}, bench_comm},
      {{.kind = kBenchStrategies, .name = "bench.strategies", .has_steps = true, .file = kFile}, bench_strategies},
      {{.kind = kBenchDecode, .name = "bench.decode", .file = kFile}, bench_decode},
      {{.kind = kBenchGenerate, .name = "bench.generate", .file = kFile, .set_up = generation_set_up}, bench_generate},
      {{.kind = kBenchAccumulation, .name = "bench.accumulation", .file = kFile}, bench_accumulation},
      {{.kind = kExperiment,
        .name = "experiment",
        .resumes = true,
        .file = "experiment.h5",
        .rows_key = "experiment.only"},
       experiment},
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

void join() {
  std::vector<config::JobTraits> traits;
  std::vector<jobs::JobRow> functions;
  for (const Row& row : rows()) {
    traits.push_back(row.traits);
    functions.push_back({row.traits.kind, row.run});
  }
  config::extend(
      {.jobs = traits,
       .jobs_meaning = " bench.* measure; experiment runs one of these for each row that [experiment] describes.",
       .keys = all_lab_keys(traits),
       .renamed = old_keys(),
       .check = check,
       .make_tables = make_tables,
       .tables_text = [](const config::Settings& deck) { return tables_text(deck.section<Experiment>()); }});
  jobs::add_jobs(functions);
}

}  // namespace tessera::lab
