#include "lab/experiment_reader.hpp"  // the contract is there; here is how

#include <algorithm>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "config/keys.hpp"
#include "config/text.hpp"

namespace tessera::config {
namespace {

/// Keys that belong to the launch or to the experiment's own files: one value for all rows. job.kind is not among them:
/// named rows may be jobs of their own, measured beside the others.
constexpr std::string_view kCommonKeys[] = {"parallel.collectives", "parallel.all_reduce",
                                            "parallel.allow_shared_device", "parallel.timeout_s", "parallel.ranks"};

bool is_common(std::string_view key) {
  const bool is_jobs = key.starts_with("job.") && key != "job.seed" && key != "job.input" && key != "job.kind";
  return is_jobs || key.starts_with("experiment.") ||
         std::find(std::begin(kCommonKeys), std::end(kCommonKeys), key) != std::end(kCommonKeys);
}

/// The members of a table in the order of the deck; toml++ sorts them by name.
std::vector<std::pair<std::string, const toml::node*>> in_order(const toml::table& table) {
  std::vector<std::tuple<std::uint32_t, std::uint32_t, std::string, const toml::node*>> found;
  for (const auto& [key, node] : table) {
    const auto [line, column] = key.source().begin;
    found.emplace_back(line, column, std::string(key.str()), &node);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::pair<std::string, const toml::node*>> members;
  for (const auto& [line, column, name, node] : found) members.emplace_back(name, node);
  return members;
}

/// A value as TOML; nothing for tables and dates, which no key takes.
std::optional<std::string> text_of(const toml::node& node) {
  if (const auto* value = node.as_string()) return toml_string(value->get());
  if (const auto* value = node.as_integer()) return fmt::to_string(value->get());
  if (const auto* value = node.as_floating_point()) return toml_number(value->get());
  if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
  const auto* array = node.as_array();
  if (array == nullptr) return std::nullopt;
  std::string text = "[";
  for (const toml::node& element : *array) {
    const auto part = text_of(element);
    if (!part) return std::nullopt;
    text += (text.size() > 1 ? ", " : "") + *part;
  }
  return text + "]";
}

/// The members as dotted keys: model.size = ... in a table is a table `model` in it.
std::vector<std::pair<std::string, const toml::node*>> dotted(const toml::table& table) {
  std::vector<std::pair<std::string, const toml::node*>> keys;
  for (const auto& [name, node] : in_order(table)) {
    const toml::table* section = node->as_table();
    if (section == nullptr || name == "product") {
      keys.emplace_back(name, node);
      continue;
    }
    for (const auto& [leaf, value] : in_order(*section)) keys.emplace_back(name + "." + leaf, value);
  }
  return keys;
}

}  // namespace

bool is_experiment_table(std::string_view leaf) { return leaf == "product" || leaf == "rows" || leaf == "when_quick"; }

void ExperimentReader::refuse(const toml::node& node, const std::string& key, const std::string& wrong,
                              const std::string& legal) {
  faults_->add({(*locate_)(node), key, wrong, legal, find_key(key) == nullptr ? nearest_key(key) : ""});
}

void ExperimentReader::read_keys(const std::string& table, const toml::table& node, bool are_lists,
                                 std::vector<RowValues>& out) {
  for (const auto& [key, value] : dotted(node)) {
    if (key == "product" && !are_lists) continue;  // read_variation's
    if (find_key(key) == nullptr) {
      refuse(*value, key, "unknown key", "section.key of a deck");
      continue;
    }
    if (is_common(key) || (key == "job.kind" && table.starts_with("when_quick"))) {
      refuse(*value, key, "is of the whole experiment, not of a row", "set it in its own section");
      continue;
    }
    RowValues values{key, {}};
    const toml::array* list = value->as_array();
    bool is_plain = true;
    const auto add = [&](const toml::node& element) {
      const auto text = text_of(element);
      is_plain = is_plain && text.has_value();
      values.values.push_back(text.value_or(""));
    };
    if (are_lists) {
      if (list != nullptr)
        for (const toml::node& element : *list) add(element);
    } else {
      add(*value);
    }
    if (values.values.empty() || !is_plain) {
      refuse(*value, key, are_lists ? "is not a list of values" : "is not a value",
             are_lists ? "a list that is not empty: one value of the key for each row" : "a value of the key");
      continue;
    }
    const auto same = std::find_if(out.begin(), out.end(), [&](const RowValues& v) { return v.key == key; });
    places_[table + " " + key] = (*locate_)(*value);
    if (same == out.end()) {
      out.push_back(std::move(values));
    } else {
      *same = std::move(values);
    }
  }
}

void ExperimentReader::read_variation(const std::string& table, const toml::table& node, Variation& variation) {
  read_keys(table, node, false, variation.keys);
  const toml::node* product = node.get("product");
  if (product == nullptr) return;
  if (const toml::table* lists = product->as_table()) {
    read_keys(table + ".product", *lists, true, variation.product);
  } else {
    refuse(*product, fmt::format("experiment.{}.product", table), "is not a table", "lists by key");
  }
}

void ExperimentReader::read(std::string_view leaf, const toml::node& node, const Locate& locate, Experiment& experiment,
                            Faults& faults, bool is_override) {
  locate_ = &locate;
  faults_ = &faults;
  const toml::table* table = node.as_table();
  if (table == nullptr) {
    refuse(node, fmt::format("experiment.{}", leaf), "is not a table", fmt::format("[experiment.{}]", leaf));
    return;
  }
  if (leaf == "when_quick") return read_variation("when_quick", *table, experiment.when_quick);
  if (leaf == "rows") {
    if (is_override) experiment.rows.clear();
    for (const auto& [name, variation] : in_order(*table)) {
      if (const toml::table* keys = variation->as_table()) {
        experiment.rows.push_back({name, {}, {}});
        read_variation("rows." + name, *keys, experiment.rows.back());
      } else {
        refuse(*variation, "experiment.rows." + name, "is not a table", "[experiment.rows.NAME] with keys below");
      }
    }
    return;
  }
  std::vector<RowValues> lists;
  read_keys("product", *table, true, lists);
  for (RowValues& list : lists) {
    const auto replace = [&](std::vector<RowValues>& all, const std::string& where) {
      for (RowValues& values : all) {
        if (values.key != list.key) continue;
        values = list;
        places_[where + " " + list.key] = places_.at("product " + list.key);
        return true;
      }
      return false;
    };
    bool is_replaced = replace(experiment.product, "product");
    if (is_override) {  // of whichever product has the key, when_quick's included
      for (Variation& variation : experiment.rows)
        is_replaced = replace(variation.product, "rows." + variation.name + ".product") || is_replaced;
      replace(experiment.when_quick.product, "when_quick.product");
    }
    if (!is_replaced) experiment.product.push_back(std::move(list));
  }
}

}  // namespace tessera::config
