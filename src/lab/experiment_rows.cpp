#include "lab/experiment_rows.hpp"  // the contract is there; here is how

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "config/deck.hpp"
#include "config/text.hpp"

namespace tessera::lab {
namespace {

constexpr std::size_t kMaxNameBytes = 80;

constexpr std::pair<std::string_view, Statistic> kStatistics[] = {
    {"mean", Statistic::mean},   {"std", Statistic::std},     {"median", Statistic::median},
    {"min", Statistic::min},     {"max", Statistic::max},     {"sum", Statistic::sum},
    {"count", Statistic::count}, {"first", Statistic::first}, {"last", Statistic::last}};

/// A list with the table in which it stands.
struct List {
  const RowValues* values;
  std::string table;
};

const RowValues* find(const std::vector<RowValues>& all, std::string_view key) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const RowValues& v) { return v.key == key; });
  return found == all.end() ? nullptr : &*found;
}

/// The variations; one without a name if the deck names none.
std::vector<Variation> variations_of(const Experiment& experiment) {
  return experiment.rows.empty() ? std::vector<Variation>(1) : experiment.rows;
}

/// The lists that a variation's rows combine: the common ones, then its own.
std::vector<List> lists_of(const Experiment& experiment, const Variation& variation) {
  std::vector<List> lists;
  const auto add = [&](const std::vector<RowValues>& product, const std::string& table) {
    for (const RowValues& values : product) {
      const RowValues* quick = experiment.quick ? find(experiment.when_quick.product, values.key) : nullptr;
      lists.push_back(quick != nullptr ? List{quick, "when_quick.product"} : List{&values, table});
    }
  };
  add(experiment.product, "product");
  add(variation.product, fmt::format("rows.{}.product", variation.name));
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

std::string key_text(std::string_view key) {
  return std::string(key);  // dotted, unquoted: TOML reads a table, which the reader takes apart
}

std::string values_text(const std::vector<RowValues>& all, bool are_lists) {
  std::string text;
  for (const RowValues& values : all) {
    text += are_lists ? fmt::format("{} = [{}]\n", key_text(values.key), fmt::join(values.values, ", "))
                      : fmt::format("{} = {}\n", key_text(values.key), values.values.front());
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

}  // namespace

std::size_t count_rows(const Experiment& experiment) {
  std::size_t all = 0;
  for (const Variation& variation : variations_of(experiment)) {
    std::size_t count = 1;
    for (const List& list : lists_of(experiment, variation)) {
      count = std::min(kMaxRows + 1, count * list.values->values.size());
    }
    all = std::min(kMaxRows + 1, all + count);
  }
  return all;
}

std::vector<RowKeys> expand(const Experiment& experiment) {
  std::vector<RowKeys> rows;
  for (const Variation& variation : variations_of(experiment)) {
    const std::vector<List> lists = lists_of(experiment, variation);
    std::size_t count = 1;
    for (const List& list : lists) count = std::min(kMaxRows, count * list.values->values.size());
    for (std::size_t number = 0; number < count && rows.size() < kMaxRows; ++number) {
      RowKeys row;
      row.name = name_part(variation.name);
      row.variation = variation.name;
      for (const RowValues& key : variation.keys)
        row.keys.push_back({key.key, key.values.front(), "rows." + variation.name});
      std::size_t rest = number, combinations = count;
      for (const List& list : lists) {  // the first changes slowest
        combinations /= list.values->values.size();
        const std::string& value = list.values->values[rest / combinations];
        rest %= combinations;
        row.keys.push_back({list.values->key, value, list.table});
        row.name += (row.name.empty() ? "" : "_") + name_part(value);
      }
      if (row.name.empty()) row.name = "deck";
      row.name.resize(std::min(row.name.size(), kMaxNameBytes));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

bool is_chosen(const Experiment& experiment, std::string_view row) {
  return experiment.only.empty() ||
         std::find(experiment.only.begin(), experiment.only.end(), row) != experiment.only.end();
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
      if (std::find(keys.begin(), keys.end(), values.key) == keys.end()) keys.push_back(values.key);
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

}  // namespace tessera::lab
