/// What the laboratory adds to decks: the traits of its jobs beside its keys and rules.
#include "lab/experiment_reader.hpp"
#include "lab/experiment_rows.hpp"
#include "lab/kinds.hpp"
#include "lab/set_ups.hpp"

namespace tessera::lab {
namespace {

constexpr std::string_view kFile = "bench.h5";

std::vector<config::JobTraits> jobs() {
  return {
      {.kind = kBenchStep,
       .name = "bench.step",
       .resumes = false,
       .has_steps = true,
       .input = "",
       .file = kFile,
       .set_ups = step_set_ups,
       .captures_graphs = captures_graphs,
       .without_graphs = "leave \"graph\" out of bench.variants"},
      {.kind = kBenchAttention,
       .name = "bench.attention",
       .resumes = false,
       .has_steps = false,
       .input = "",
       .file = kFile,
       .attention_lists = "bench"},
      {kBenchKernels, "bench.kernels", false, false, "", kFile},
      {kBenchComm, "bench.comm", false, false, "", kFile},
      {.kind = kBenchStrategies,
       .name = "bench.strategies",
       .resumes = false,
       .has_steps = true,
       .input = "",
       .file = kFile,
       .set_ups = strategy_set_ups,
       .strategies_key = "bench.strategies"},
      {kBenchDecode, "bench.decode", false, false, "", kFile},
      {.kind = kBenchGenerate,
       .name = "bench.generate",
       .resumes = false,
       .has_steps = false,
       .input = "",
       .file = kFile,
       .set_ups = generation_set_ups},
      {kBenchAccumulation, "bench.accumulation", false, false, "", kFile},
      {.kind = kExperiment,
       .name = "experiment",
       .resumes = true,
       .has_steps = false,
       .input = "",
       .file = "experiment.h5",
       .rows_key = "experiment.only"},
  };
}

}  // namespace

config::Extension deck_extension() {
  return {.jobs = jobs(),
          .jobs_meaning = " bench.* measure; experiment runs one of these for each row that [experiment] describes.",
          .keys = key_groups(jobs()),
          .check = check,
          .needs_cuda = needs_cuda,
          .make_tables = []() -> std::shared_ptr<config::RowTables> { return std::make_shared<ExperimentTables>(); },
          .tables_text = [](const config::Settings& deck) { return tables_text(deck.section<Experiment>()); }};
}

}  // namespace tessera::lab
