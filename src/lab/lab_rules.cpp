/// Rules on the keys of [bench] and [experiment]: contradictions in any deck.
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "config/rules.hpp"
#include "lab/bench_keys.hpp"
#include "lab/experiment_rows.hpp"
#include "lab/kinds.hpp"

namespace tessera::lab {
namespace {

using config::Rules, config::Settings, config::Offload, config::Shard;

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
  for (const auto& [key, is_default] : {std::pair<std::string_view, bool>{"bench.phase", bench.phase == Bench{}.phase},
                                        {"bench.profile", bench.profile == Bench{}.profile}}) {
    rules.require(is_default, {key, "job.kind"}, "would be ignored: job.kind is \"bench.strategies\"",
                  "job.kind = \"bench.step\"");
  }
}

/// Forward passes alone have whole weights on each rank, and run launch by launch.
void check_forward_phase(const Settings& settings, Rules& rules) {
  const Bench& bench = settings.section<Bench>();
  if (settings.job.kind != kBenchStep || bench.phase != "forward") return;
  for (const auto& [key, is_free, legal] :
       {std::tuple<std::string_view, bool, std::string_view>{"parallel.shard", settings.parallel.shard == Shard::none,
                                                             "\"none\""},
        {"parallel.offload", settings.parallel.offload == Offload::none, "\"none\""},
        {"train.graph", !settings.train.graph, "false"},
        {"bench.profile", !bench.profile, "false"}}) {
    rules.require(is_free, {key, "bench.phase"}, "would be ignored: bench.phase is \"forward\"",
                  fmt::format("{}, or bench.phase = \"step\"", legal));
  }
}

}  // namespace

void check(const Settings& settings, Rules& rules) {
  check_attention(settings.section<Bench>(), rules);
  check_strategies(settings, rules);
  check_forward_phase(settings, rules);
  rules.require(settings.section<Experiment>() == Experiment{}, {"job.kind"},
                "is not \"experiment\", so [experiment] would be ignored", "job.kind = \"experiment\"");
}

}  // namespace tessera::lab
