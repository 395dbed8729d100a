#include "lab/experiment_baseline.hpp"  // the contract is there; here is how

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace tessera::lab {
namespace {

using Values = std::map<std::string, std::string>;  // by key

bool is_list(const RowKeys::Assignment& assignment) { return assignment.table.ends_with("product"); }

/// Of several assignments of a key the last one counts.
Values values_of(const RowKeys& row) {
  Values values;
  for (const RowKeys::Assignment& assignment : row.keys) values[assignment.key] = assignment.value;
  return values;
}

/// The values of `keys` as far as the row sets them.
Values common_values(const Values& keys, const Values& row) {
  Values common;
  for (const auto& [key, of_baseline] : keys) {
    if (const auto found = row.find(key); found != row.end()) common.insert(*found);
  }
  return common;
}

bool contains(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool is_rate(std::string_view units) { return units.ends_with("/s"); }

}  // namespace

Baselines baselines_of(const Experiment& experiment, const std::vector<RowKeys>& rows) {
  Baselines found;
  if (experiment.baseline.empty()) return found;
  std::vector<std::size_t> candidates;
  Values lists;  // the keys alone count
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].variation != experiment.baseline) continue;
    candidates.push_back(i);
    for (const RowKeys::Assignment& assignment : rows[i].keys)
      if (is_list(assignment)) lists[assignment.key];
  }
  if (candidates.empty()) {
    found.wrong = fmt::format("there is no [experiment.rows.{}]", experiment.baseline);
    return found;
  }
  std::map<Values, std::map<Values, std::vector<std::size_t>>> by_keys;  // candidates by values, for each set of keys
  for (const RowKeys& row : rows) {
    const Values wanted = common_values(lists, values_of(row));
    Values keys;
    for (const auto& [key, value] : wanted) keys[key];
    auto [of_keys, is_new] = by_keys.try_emplace(keys);
    for (std::size_t i = 0; is_new && i < candidates.size(); ++i)
      of_keys->second[common_values(keys, values_of(rows[candidates[i]]))].push_back(candidates[i]);
    const std::vector<std::size_t>& same = of_keys->second[wanted];
    if (same.size() != 1) {
      found.wrong = same.empty() ? fmt::format("has no row with the values of row {}", row.name)
                                 : fmt::format("has {} rows with the values of row {}: {} and {}", same.size(),
                                               row.name, rows[same[0]].name, rows[same[1]].name);
      found.rows.clear();
      return found;
    }
    found.rows.push_back(same.front());
  }
  return found;
}

Comparison comparison_of(std::string_view units) {
  if (is_rate(units) || contains(units, {"s", "ms", "us"})) return Comparison::speed_up;
  if (contains(units, {"B", "byte", "bytes", "KiB", "MiB", "GiB", "MB", "GB"})) return Comparison::saved;
  return Comparison::none;
}

double compared(std::string_view units, double row, double baseline) {
  const double over = is_rate(units) ? row : baseline, under = is_rate(units) ? baseline : row;
  if (comparison_of(units) == Comparison::saved) return baseline == 0 ? NAN : 1 - row / baseline;
  return comparison_of(units) == Comparison::none || under == 0 ? NAN : over / under;
}

}  // namespace tessera::lab
