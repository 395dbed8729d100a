/// Rules on the keys of [bench] and [experiment]: contradictions in any deck, and what needs a build with CUDA.
#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "config/rules.hpp"
#include "lab/bench_keys.hpp"
#include "lab/experiment_rows.hpp"
#include "lab/kinds.hpp"

namespace tessera::lab {
namespace {

using config::Rules, config::Settings, config::Offload, config::Shard, config::Parallel;

template <class List, class Value>
bool contains(const List& list, const Value& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

void check_attention_rows(const Bench& bench, Rules& rules) {
  const bool has_tuned_rows = contains(bench.tuned, true);
  const auto require_tuned_rows = [&](bool is_default, std::string_view key) {
    rules.require(has_tuned_rows || is_default, {key, "bench.tuned"}, "would be ignored: bench.tuned has no true in it",
                  "bench.tuned = [true]");
  };
  require_tuned_rows(bench.engines == Bench{}.engines, "bench.engines");
  require_tuned_rows(bench.deterministic == Bench{}.deterministic, "bench.deterministic");
  const bool has_portable_rows = contains(bench.tuned, false);
  rules.require(bench.flash1_steps == Bench{}.flash1_steps || contains(bench.implementations, "flash1"),
                {"bench.flash1_steps", "bench.implementations"},
                "would be ignored: bench.implementations has no flash1", "bench.implementations = [\"flash1\"]");
  rules.require(
      bench.flash2_steps == Bench{}.flash2_steps || (has_portable_rows && contains(bench.implementations, "flash2")),
      {"bench.flash2_steps", "bench.implementations", "bench.tuned"},
      "would be ignored: there are no rows of the portable flash2",
      "bench.implementations = [\"flash2\"] and bench.tuned = [false]");
  rules.require(bench.tokens == 0 || bench.batch == Bench{}.batch, {"bench.batch", "bench.tokens"},
                "would be ignored: bench.tokens is given", "one of the two");
  rules.require(bench.channels == 0 || bench.heads == Bench{}.heads, {"bench.heads", "bench.channels"},
                "would be ignored: bench.channels is given", "one of the two");
}

/// bench.strategies names itself how ranks share a step, and times whole steps as the deck has them.
void check_strategies(const Settings& settings, Rules& rules) {
  if (settings.job.kind != kBenchStrategies) return;
  const Bench& bench = settings.section<Bench>();
  const Parallel& parallel = settings.parallel;
  for (const auto& [key, is_default] :
       {std::pair<std::string_view, bool>{"parallel.gradient_sync", parallel.gradient_sync == Parallel{}.gradient_sync},
        {"parallel.shard", parallel.shard == Parallel{}.shard},
        {"bench.variants", bench.variants == Bench{}.variants},
        {"bench.phase", bench.phase == Bench{}.phase},
        {"bench.profile", bench.profile == Bench{}.profile}}) {
    rules.require(is_default, {key, "job.kind"}, "would be ignored: job.kind is \"bench.strategies\"",
                  key.starts_with("parallel.") ? "bench.strategies names what is timed"
                                               : "train.graph and train.fused, or job.kind = \"bench.step\"");
  }
}

/// Forward passes alone have whole weights on each rank, and run launch by launch.
void check_forward_phase(const Settings& settings, Rules& rules) {
  const Bench& bench = settings.section<Bench>();
  if (settings.job.kind != kBenchStep || bench.phase != "forward") return;
  const bool has_graph =
      contains(bench.variants, "graph") || (settings.train.graph && contains(bench.variants, "deck"));
  for (const auto& [key, is_free, legal] :
       {std::tuple<std::string_view, bool, std::string_view>{"parallel.shard", settings.parallel.shard == Shard::none,
                                                             "\"none\""},
        {"parallel.offload", settings.parallel.offload == Offload::none, "\"none\""},
        {settings.train.graph ? "train.graph" : "bench.variants", !has_graph,
         "train.graph = false and no \"graph\" in bench.variants"},
        {"bench.profile", !bench.profile, "false"}}) {
    rules.require(is_free, {key, "bench.phase"}, "would be ignored: bench.phase is \"forward\"",
                  fmt::format("{}, or bench.phase = \"step\"", legal));
  }
}

}  // namespace

void check(const Settings& settings, Rules& rules) {
  check_attention_rows(settings.section<Bench>(), rules);
  check_strategies(settings, rules);
  check_forward_phase(settings, rules);
  rules.require(settings.section<Experiment>() == Experiment{}, {"job.kind"},
                "is not \"experiment\", so [experiment] would be ignored", "job.kind = \"experiment\"");
}

std::vector<config::NeedsCuda> needs_cuda(const Settings& settings) {
  const Bench& bench = settings.section<Bench>();
  std::vector<config::NeedsCuda> found;
  if (contains(bench.tuned, true)) found.push_back({"true in bench.tuned", "bench.tuned = [false]"});
  if (contains(bench.flash1_steps, 5))
    found.push_back({"5 in bench.flash1_steps", "bench.flash1_steps = [0, 1, 2, 3, 4]"});
  for (const auto& [variant, what] :
       {std::pair<std::string_view, std::string_view>{"graph", "\"graph\" in bench.variants"},
        {"plain", "\"plain\" in bench.variants"}})
    if (contains(bench.variants, variant)) found.push_back({what, "bench.variants = [\"deck\"]"});
  return found;
}

}  // namespace tessera::lab
