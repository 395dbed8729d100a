#include "lab/experiment_rows.hpp"  // the contract is there; here is how

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <utility>

#include "config/deck.hpp"
#include "config/text.hpp"

namespace tessera::lab {
namespace {

constexpr std::size_t kMaxNameBytes = 80;

constexpr std::pair<std::string_view, Statistic> kStatistics[] = {
    {"mean", Statistic::mean},   {"std", Statistic::std},     {"median", Statistic::median},
    {"min", Statistic::min},     {"max", Statistic::max},     {"sum", Statistic::sum},
    {"count", Statistic::count}, {"first", Statistic::first}, {"last", Statistic::last}};

/// The variations; one without a name if the deck names none.
std::vector<Variation> variations_of(const Experiment& experiment) {
  return experiment.rows.empty() ? std::vector<Variation>(1) : experiment.rows;
}

/// The lists that a variation's rows combine: the common ones, then its own.
std::vector<const RowValues*> lists_of(const Experiment& experiment, const Variation& variation) {
  std::vector<const RowValues*> lists;
  for (const std::vector<RowValues>* product : {&experiment.product, &variation.product}) {
    for (const RowValues& values : *product) {
      const RowValues* quick = experiment.quick ? find(experiment.when_quick.product, values.key) : nullptr;
      lists.push_back(quick != nullptr ? quick : &values);
    }
  }
  return lists;
}

/// `text` as part of a file's name: letters, digits, "_", "-", "+" and "."; others become "-".
std::string name_part(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '[' || c == ']' || c == '\'') continue;
    const bool is_plain =
        std::isalnum(static_cast<unsigned char>(c)) || std::string_view("_-+.").find(c) != std::string_view::npos;
    if (is_plain || (!out.empty() && out.back() != '-')) out += is_plain ? c : '-';
  }
  return out;
}

/// Dotted keys, unquoted: TOML reads a table, which the reader takes apart.
std::string values_text(const std::vector<RowValues>& all, bool are_lists) {
  std::string text;
  for (const RowValues& values : all) {
    text += are_lists ? fmt::format("{} = [{}]\n", values.key, fmt::join(values.values, ", "))
                      : fmt::format("{} = {}\n", values.key, values.values.front());
  }
  return text;
}

std::string variation_text(const Variation& variation, const std::string& table) {
  if (variation == Variation{}) return "";
  std::string text = fmt::format("\n[experiment.{}]\n{}", table, values_text(variation.keys, false));
  if (!variation.product.empty())
    text += fmt::format("\n[experiment.{}.product]\n{}", table, values_text(variation.product, true));
  return text;
}

using Values = std::map<std::string, std::string>;  // by key

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

const RowValues* find(const std::vector<RowValues>& all, std::string_view key) {
  const auto found = std::ranges::find(all, key, &RowValues::key);
  return found == all.end() ? nullptr : &*found;
}

std::vector<RowKeys> expand(const Experiment& experiment) {
  std::vector<RowKeys> rows;
  for (const Variation& variation : variations_of(experiment)) {
    const std::vector<const RowValues*> lists = lists_of(experiment, variation);
    std::size_t count = 1;
    for (const RowValues* list : lists) count = std::min(kMaxRows + 1, count * list->values.size());
    for (std::size_t number = 0; number < count && rows.size() <= kMaxRows; ++number) {
      RowKeys row{name_part(variation.name), variation.name, {}};
      for (const RowValues& key : variation.keys) row.keys.push_back({key.key, key.values.front(), key.where, false});
      std::size_t rest = number;
      std::vector<const std::string*> values(lists.size());
      for (std::size_t i = lists.size(); i-- > 0; rest /= lists[i]->values.size())  // the last changes fastest
        values[i] = &lists[i]->values[rest % lists[i]->values.size()];
      for (std::size_t i = 0; i < lists.size(); ++i) {
        row.keys.push_back({lists[i]->key, *values[i], lists[i]->where, true});
        row.name += (row.name.empty() ? "" : "_") + name_part(*values[i]);
      }
      if (row.name.empty()) row.name = "deck";
      row.name.resize(std::min(row.name.size(), kMaxNameBytes));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

bool is_chosen(const Experiment& experiment, std::string_view row) {
  return experiment.only.empty() || std::ranges::count(experiment.only, row) > 0;
}

std::string what_is_computed(const std::string& resolved) {
  const config::Deck deck = config::parse_stored_deck(resolved, "a row's deck");
  std::string computed;
  for (const config::Key& key : config::all_keys()) {
    if (key.name == "job.directory" || key.name == "job.overwrite" || key.name == "job.progress") continue;
    computed += fmt::format("{} = {}\n", key.name, config::value_text(key, deck.settings));
  }
  for (const std::string& old : deck.dropped) computed += old + '\n';
  return computed;
}

std::vector<std::string> varied_keys(const Experiment& experiment) {
  std::vector<std::string> keys;
  const auto add = [&](const std::vector<RowValues>& all) {
    for (const RowValues& values : all)
      if (std::ranges::count(keys, values.key) == 0) keys.push_back(values.key);
  };
  for (const Variation& variation : experiment.rows) add(variation.keys);
  add(experiment.product);
  for (const Variation& variation : experiment.rows) add(variation.product);
  return keys;
}

std::string tables_text(const Experiment& experiment) {
  std::string text;
  if (!experiment.product.empty())
    text += fmt::format("\n[experiment.product]\n{}", values_text(experiment.product, true));
  for (const Variation& variation : experiment.rows)
    text += variation_text(variation, "rows." + config::toml_string(variation.name));
  return text + variation_text(experiment.when_quick, "when_quick");
}

std::optional<Recorded> parse_recorded(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  Recorded recorded{std::string(text.substr(0, colon)), Statistic::values};
  if (recorded.path.empty()) return std::nullopt;
  if (colon == std::string_view::npos) return recorded;
  for (const auto& [name, statistic] : kStatistics) {
    if (name != text.substr(colon + 1)) continue;
    recorded.statistic = statistic;
    return recorded;
  }
  return std::nullopt;
}

std::string statistic_names() {
  std::string names;
  for (const auto& [name, statistic] : kStatistics) names += (names.empty() ? "" : " ") + std::string(name);
  return names;
}

Baselines baselines_of(const Experiment& experiment, const std::vector<RowKeys>& rows) {
  Baselines found;
  if (experiment.baseline.empty()) return found;
  std::vector<std::size_t> candidates;
  Values lists;  // the keys alone count
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].variation != experiment.baseline) continue;
    candidates.push_back(i);
    for (const RowKeys::Assignment& assignment : rows[i].keys)
      if (assignment.is_of_list) lists[assignment.key];
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
