/// Rows of the table of renamed keys (config/renamed_keys.hpp): [bench] once had lists, and keys of its own for what
/// other sections say.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/renamed_keys.hpp"
#include "lab/kinds.hpp"

namespace tessera::lab {

using config::NewSpelling, config::OldValues, config::RenamedKeys, config::renamed, config::values_of;

namespace {

/// Another name for the same values, in decks of these jobs.
RenamedKeys renamed_in(std::vector<std::string_view> jobs, std::string_view old, std::string_view now) {
  RenamedKeys row = renamed(old, now);
  row.jobs = std::move(jobs);
  return row;
}

NewSpelling passes(const OldValues& old) {
  const std::vector<std::string> values = values_of(old, "bench.passes", "");
  return {{{"bench.pass", values.size() == 3 ? std::vector<std::string>{"\"all\""} : values}}};
}

NewSpelling kernels(const OldValues& old) {
  return config::attention_kernel(
      values_of(old, "bench.implementations", "\"flash2\""), values_of(old, "bench.tuned", "\"auto\""),
      values_of(old, "bench.engines", "\"auto\""), values_of(old, "bench.flash1_steps", "0"),
      values_of(old, "bench.flash2_steps", "-1"));
}

NewSpelling sizes(const OldValues& old) {
  std::vector<std::string> values = values_of(old, "bench.sizes", "");
  if (values.size() == 1 && values.front() == "\"deck\"") return {};
  return {{{"model.size", std::move(values)}}};
}

/// "plain", "fused" and "graph" are values of two keys, "deck" is what they are.
NewSpelling variants(const OldValues& old) {
  NewSpelling now{{{"train.graph", {}}, {"train.fused", {}}}};
  const auto add = [](std::vector<std::string>& values, const char* value) {
    if (std::find(values.begin(), values.end(), value) == values.end()) values.emplace_back(value);
  };
  for (const std::string& variant : values_of(old, "bench.variants", "")) {
    if (variant == "\"deck\"") return {};
    add(now.keys[0].values, variant == "\"graph\"" ? "true" : "false");
    add(now.keys[1].values, variant == "\"plain\"" ? "false" : "true");
  }
  return now;
}

/// Words of two keys. The first's imply that nothing is sharded.
NewSpelling strategies(const OldValues& old) {
  NewSpelling::Assignment sync{"parallel.gradient_sync", {}}, shard{"parallel.shard", {}};
  for (const std::string& word : values_of(old, "bench.strategies", "")) {
    const bool shards = word == "\"optimizer\"" || word == "\"gradients\"" || word == "\"parameters\"";
    (shards ? shard : sync).values.push_back(word);
  }
  NewSpelling now;
  for (const auto& key : {sync, shard})
    if (!key.values.empty()) now.keys.push_back(key);
  return now;
}

}  // namespace

std::vector<RenamedKeys> old_keys() {
  return {renamed("bench.lengths", "bench.length"),
          renamed("bench.head_widths", "bench.head_width"),
          renamed("bench.dtypes", "bench.dtype"),
          renamed("bench.causal", "bench.causal"),
          renamed("bench.terms", "bench.terms"),
          renamed("bench.operations", "bench.operation"),
          renamed("bench.mbytes", "bench.mbyte"),
          {{"bench.passes"}, passes},
          {{"bench.implementations", "bench.tuned", "bench.engines", "bench.flash1_steps", "bench.flash2_steps"},
           kernels,
           {"bench.attention"}},
          renamed_in({"bench.attention"}, "bench.deterministic", "attention.deterministic"),
          renamed_in({"bench.decode"}, "bench.parts", "attention.decode_parts"),
          {{"bench.sizes"}, sizes, {"bench.step", "bench.strategies", "bench.generate"}},
          {{"bench.variants"}, variants, {"bench.step"}},
          {{"bench.strategies"}, strategies, {"bench.strategies"}}};
}

}  // namespace tessera::lab
