/// The keys of [bench] and [experiment]: member, legal values, unit, and the text of --explain; and rules on them,
/// contradictions in any deck. Defaults are in bench_keys.hpp and experiment_rows.hpp.
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "config/key_rows.hpp"
#include "config/rules.hpp"
#include "lab/bench_keys.hpp"
#include "lab/experiment_rows.hpp"
#include "lab/kinds.hpp"

namespace tessera::lab {
namespace {

using namespace config;  // what rows of a table of keys are written with

constexpr Word kBenchTypes[] = {word("fp32"), word("bf16"), word("fp16")};
constexpr Word kBenchPasses[] = {word("all"), word("forward"), word("backward"), word("both")};
constexpr Word kBenchOperations[] = {word("all_reduce"), word("reduce_scatter"), word("all_gather"), word("broadcast")};
constexpr Word kBenchPhases[] = {word("step"), word("forward")};

/// The kinds of jobs that a row of an experiment may be: all but experiment.
std::span<const Word> row_kinds(const std::vector<JobTraits>& jobs) {
  static const std::vector<Word> kinds = [&] {
    std::vector<Word> all;
    for (const JobTraits& job : kJobs) all.push_back(word(job.name, job.kind));
    for (const JobTraits& job : jobs) {
      if (!job.has_rows()) all.push_back(word(job.name, job.kind));
    }
    return all;
  }();
  return kinds;
}

std::vector<Key> bench_keys() {
  return {
      {"bench.warmup", in<&Bench::warmup>(), between(0, 1 << 20), "repeats",
       "Runs before the measured ones. Nothing else is left out: with 0, the very first run is measured, one-time "
       "costs included; bench.generate leaves out two tokens more. With train.graph, the first four steps of "
       "bench.step run or capture two graphs (the column cold_steps counts those that were measured), so with 5 or "
       "more every measured step is a replay that follows a replay."},
      {"bench.warmup_ms", in<&Bench::warmup_ms>(), between(0, 1e6), "ms",
       "Shortest duration of the warm-up, whatever bench.warmup says: an idle GPU may need tens of milliseconds to "
       "raise its clocks. 0: only bench.warmup counts."},
      {"bench.rest_ms", in<&Bench::rest_ms>(), between(0, 1e6), "ms",
       "Idle time in each timing of bench.attention, bench.decode, bench.kernels and the copy of bench.generate, after "
       "the first warm-up run. A GPU at its power limit lowers its clocks and needs a tenth of a second of rest to "
       "raise them again; without rest, a row depends on the row before. 0: none."},
      {"bench.repeats", in<&Bench::repeats>(), between(1, 1 << 20), "repeats",
       "Number of measured runs. Reported are their median, mean and standard deviation, and the first by itself."},
      {"bench.row_limit_s", in<&Bench::row_limit_s>(), at_least(0), "s",
       "Time after which one timing of bench.attention, bench.decode, bench.kernels, bench.comm or the copy of "
       "bench.generate stops repeating; the row says how many repeats it made. 0: no limit."},
      {"bench.memory_limit_gib", in<&Bench::memory_limit_gib>(), between(0, 1e9), "GiB",
       "Memory limit of bench.attention, bench.decode and bench.generate, or of a rank in bench.comm; larger cases are "
       "reported as out of memory and not run. 0: the machine's memory."},
      {"bench.dtype", in<&Bench::dtype>(), words(kBenchTypes), "-",
       "Number format of bench.attention, bench.decode, bench.kernels and bench.comm. With precision.compute = "
       "\"tf32\" bench.attention multiplies fp32 in TF32, where attention.kernel has such products."},
      {"bench.length", in<&Bench::length>(), between(1, kMaxTokens), "tokens",
       "Sequence length T of bench.attention; in bench.decode the number of cached keys; in bench.generate the number "
       "of prompt tokens, to which the context is fitted."},
      {"bench.head_width", in<&Bench::head_width>(), between(8, 256), "channels",
       "Head width D of bench.attention and bench.decode."},
      {"bench.batch", in<&Bench::batch>(), between(1, 1 << 20), "sequences",
       "Sequences B of bench.attention, bench.decode and bench.generate."},
      {"bench.heads", in<&Bench::heads>(), between(1, 65536), "heads", "Heads H of bench.attention and bench.decode."},
      {"bench.tokens", in<&Bench::tokens>(), between(0, 1 << 30), "tokens",
       "Tokens B*T of bench.attention, instead of bench.batch: longer sequences get smaller batches, at least 1. 0: "
       "bench.batch counts."},
      {"bench.channels", in<&Bench::channels>(), between(0, 1 << 24), "channels",
       "Channels H*D of bench.attention, instead of bench.heads: wider heads are fewer, at least 1. 0: bench.heads "
       "counts."},
      {"bench.causal", in<&Bench::causal>(), any(), "-", "Whether bench.attention uses the causal mask."},
      {"bench.pass", in<&Bench::pass>(), words(kBenchPasses), "-",
       "What bench.attention times: the forward pass, the backward pass, both in sequence, or all three."},
      {"bench.terms", in<&Bench::terms>(), between(1, 1 << 24), "numbers",
       "How many numbers bench.accumulation adds, one after the other."},
      {"bench.addend", in<&Bench::addend>(), between(-1e4, 1e4), "1",
       "Number that bench.accumulation adds each time, rounded to each format."},
      {"bench.rows", in<&Bench::rows>(), between(1, 1 << 28), "rows", "Rows N of the tensors in bench.kernels."},
      {"bench.width", in<&Bench::width>(), between(1, 1 << 22), "channels", "Width C of the tensors in bench.kernels."},
      {"bench.phase", in<&Bench::phase>(), words(kBenchPhases), "-",
       "What bench.step runs. step: whole steps, then forward passes in the same memory; forward: forward passes only, "
       "with memory for weights and inference's activations but none for gradients, optimizer or backward."},
      {"bench.profile", in<&Bench::profile>(), any(), "-",
       "Whether bench.step also runs a step kernel by kernel and prints where its time goes. Each kernel is fenced, "
       "which costs a few microseconds; the measured steps are not affected."},
      {"bench.operation", in<&Bench::operation>(), words(kBenchOperations), "-",
       "Collective operation that bench.comm times, with the library that parallel.collectives and parallel.transfers "
       "choose. Under NCCL a broadcast never uses copy engines."},
      {"bench.mbyte", in<&Bench::mbyte>(), between(1, 1 << 20), "MB",
       "Message size in bench.comm, in millions of bytes: all ranks' parts together, as in nccl-tests."},
  };
}

std::vector<Key> experiment_keys(const std::vector<JobTraits>& jobs) {
  return {
      {"experiment.question", in<&Experiment::question>(), any(), "-",
       "The question that the experiment answers, for readers."},
      {"experiment.job", in<&Experiment::job>(), words(row_kinds(jobs)), "-",
       "job.kind of the rows that set none. Rows are the [experiment.rows.NAME] tables, whose keys are those of any "
       "deck, times every combination of the lists in their own `product` and in [experiment.product], such as "
       "model.size = [\"small\", \"medium\"]; the deck supplies all other keys."},
      {"experiment.record", in<&Experiment::record>(), any(), "-",
       "Datasets of each row's run.h5 or bench.h5 to collect in experiment.h5, such as step_ms or "
       "steps/step_time:median. Statistics: mean std median min max sum count first last; without one, the values "
       "themselves. Empty: every column of bench.h5, and nothing of run.h5."},
      {"experiment.rounds", in<&Experiment::rounds>(), between(1, 10000), "rounds",
       "How many times all rows are measured. Each measurement is a fresh job that replaces the row's files: odd "
       "rounds follow the order of the rows, even rounds reverse it, and the row's bench.rest_ms precede each "
       "measurement. With several rounds, experiment.h5 stores numbers by [row, round]."},
      {"experiment.baseline", in<&Experiment::baseline>(), any(), "-",
       "NAME of the [experiment.rows.NAME] with which experiment.h5 compares the other rows, in /relative. Each row "
       "is compared with the baseline row that has the same values from lists. Times and rates give the speed-up, "
       "bytes the fraction saved. Empty: no comparison."},
      {"experiment.ranks", in<&Experiment::ranks>(), not_empty(between(1, 1 << 20)), "ranks",
       "Numbers of ranks on which scripts/experiment starts the experiment. The program itself uses the ranks it is "
       "started with."},
      {"experiment.time_limit_s", in<&Experiment::time_limit_s>(), at_least(0), "s",
       "Wall time after which no further row starts and the experiment exits with code 75. 0: no limit."},
      {"experiment.fresh_processes", in<&Experiment::fresh_processes>(), any(), "-",
       "Whether scripts/experiment starts a new process for each row and round, so that no row profits from what an "
       "earlier one loaded. The program itself runs all its rows in one process."},
      {"experiment.only", in<&Experiment::only>(), any(), "-",
       "Names of the rows to run, as --check lists them. Empty: all."},
      {"experiment.quick", in<&Experiment::quick>(), any(), "-",
       "Whether [experiment.when_quick] applies. Its keys go to every row that does not set them itself, and the lists "
       "of its `product` replace those of the same keys; an empty list leaves their rows out."},
  };
}

void check_attention(const Bench& bench, Rules& rules) {
  rules.require(bench.tokens == 0 || bench.batch == Bench{}.batch, {"bench.batch", "bench.tokens"},
                "would be ignored: bench.tokens is given", "one of the two");
  rules.require(bench.channels == 0 || bench.heads == Bench{}.heads, {"bench.heads", "bench.channels"},
                "would be ignored: bench.channels is given", "one of the two");
}

/// bench.strategies times whole steps, and their communication.
void check_strategies(const Settings& settings, Rules& rules) {
  if (settings.job.kind != kBenchStrategies) return;
  const Bench& bench = settings.section<Bench>();
  const auto require_default = [&](std::string_view key, bool is_default) {
    rules.require(is_default, {key, "job.kind"}, "would be ignored: job.kind is \"bench.strategies\"",
                  "job.kind = \"bench.step\"");
  };
  require_default("bench.phase", bench.phase == Bench{}.phase);
  require_default("bench.profile", bench.profile == Bench{}.profile);
}

/// Forward passes alone have whole weights on each rank.
void check_forward_phase(const Settings& settings, Rules& rules) {
  const Bench& bench = settings.section<Bench>();
  if (settings.job.kind != kBenchStep || bench.phase != "forward") return;
  const auto require = [&](std::string_view key, bool is_legal, std::string_view legal) {
    rules.require(is_legal, {key, "bench.phase"}, "would be ignored: bench.phase is \"forward\"",
                  fmt::format("{}, or bench.phase = \"step\"", legal));
  };
  require("parallel.shard", settings.parallel.shard == Shard::none, "\"none\"");
  require("parallel.offload", settings.parallel.offload == Offload::none, "\"none\"");
  require("bench.profile", !bench.profile, "false");
}

}  // namespace

std::vector<Key> all_lab_keys(const std::vector<JobTraits>& jobs) {
  std::vector<Key> keys = bench_keys();
  for (Key& key : experiment_keys(jobs)) keys.push_back(std::move(key));
  return keys;
}

void check(const Settings& settings, Rules& rules) {
  check_attention(settings.section<Bench>(), rules);
  check_strategies(settings, rules);
  check_forward_phase(settings, rules);
  rules.require(settings.section<Experiment>() == Experiment{}, {"job.kind"},
                "is not \"experiment\", so [experiment] would be ignored", "job.kind = \"experiment\"");
}

}  // namespace tessera::lab
