/// Reads the tables of [experiment] that are no keys, product, rows and when_quick, and makes rows of them.

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "config/deck_file.hpp"
#include "config/job_traits.hpp"
#include "config/keys.hpp"
#include "config/renamed_keys.hpp"
#include "config/row_tables.hpp"
#include "config/rules.hpp"
#include "config/text.hpp"
#include "lab/experiment_rows.hpp"
#include "lab/kinds.hpp"

namespace tessera::lab {
namespace {

/// Keys of the launch or the experiment's own files: one value for all rows. Not job.kind: named rows may be other
/// kinds of jobs.
constexpr std::string_view kCommonKeys[] = {"parallel.collectives", "parallel.transfers",
                                            "parallel.allow_shared_device", "parallel.timeout_s", "parallel.ranks"};

bool is_common(std::string_view key) {
  const bool is_jobs = key.starts_with("job.") && key != "job.seed" && key != "job.input" && key != "job.kind";
  return is_jobs || key.starts_with("experiment.") || std::ranges::count(kCommonKeys, key) > 0;
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

std::vector<const toml::node*> elements_of(const toml::array* list) {
  std::vector<const toml::node*> elements;
  if (list == nullptr) return elements;
  for (const toml::node& element : *list) elements.push_back(&element);
  return elements;
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

/// Adds the faults of [experiment] as a whole.
void check_experiment(const config::Settings& settings, config::Rules rules) {
  const Experiment& experiment = settings.section<Experiment>();
  for (const std::string& text : experiment.record)
    rules.require(parse_recorded(text).has_value(), {"experiment.record"},
                  fmt::format("\"{}\" names no known statistic", text),
                  fmt::format("DATASET or DATASET:STATISTIC, with {}", statistic_names()));
  rules.require(settings.job.output.empty(), {"job.output"}, "would be ignored: every row writes into its own folder",
                "job.directory");
  rules.require(experiment.record.empty() || !config::traits_of(experiment.job).file.empty(),
                {"experiment.record", "experiment.job"},
                "has nothing to read: rows of this experiment.job write no file", "experiment.record = []");
  const auto is_known = [&](const std::string& key) { return std::ranges::count(varied_keys(experiment), key) > 0; };
  for (const RowValues& values : experiment.when_quick.product)
    rules.require(is_known(values.key), {"experiment.quick"},
                  fmt::format("would not use when_quick.product's {}: no product has it", values.key),
                  "a key of experiment.product or of a row's product");
}

/// Row names must differ: folders and --resume go by them.
void check_names(std::vector<std::string_view> names, std::string_view deck, config::Faults& faults) {
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return;
  faults.add({{std::string(deck)},
              "experiment.rows",
              fmt::format("describes two rows \"{}\"", *twice),
              "rows whose names, made of that of their table and of their values, differ in their first 80 letters",
              ""});
}

std::vector<std::string_view> variation_names(const Experiment& experiment) {
  std::vector<std::string_view> names;
  for (const Variation& variation : experiment.rows) names.push_back(variation.name);
  return names;
}

/// Whether a variation has the key in `part`.
bool any_row_has(std::string_view key, std::vector<RowValues> Variation::*part, const Experiment& experiment) {
  return std::ranges::any_of(experiment.rows, [&](const Variation& row) { return find(row.*part, key) != nullptr; });
}

/// Whether a value is legal for its key is not decided here.
class ExperimentTables final : public config::RowTables {
 public:
  bool has(std::string_view name) const override {
    return name == "experiment.product" || name == "experiment.rows" || name == "experiment.when_quick";
  }

  /// With `is_override`, replaces only the lists of the keys named there.
  void read(std::string_view name, const toml::node& node, const Locate& locate, config::Settings& settings,
            config::Faults& faults, bool is_override) override {
    locate_ = &locate;
    faults_ = &faults;
    Experiment& experiment = settings.section<Experiment>();
    const std::string_view leaf = name.substr(name.find('.') + 1);
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      refuse(node, std::string(name), "is not a table", fmt::format("[{}]", name));
      return;
    }
    if (leaf == "when_quick") return read_variation("when_quick", *table, experiment.when_quick);
    if (leaf == "rows") {
      if (is_override) experiment.rows.clear();
      for (const auto& [row, variation] : in_order(*table)) {
        if (const toml::table* keys = variation->as_table()) {
          experiment.rows.push_back({row, {}, {}});
          read_variation("rows." + row, *keys, experiment.rows.back());
        } else {
          refuse(*variation, "experiment.rows." + row, "is not a table", "[experiment.rows.NAME] with keys below");
        }
      }
      return;
    }
    std::vector<RowValues> lists;
    read_keys("product", *table, true, lists);
    for (RowValues& list : lists) {
      if (!replace_lists(experiment, list, is_override)) experiment.product.push_back(std::move(list));
    }
  }

  bool sweeps(std::string_view key, const config::Settings& settings) const override {
    const Experiment& experiment = settings.section<Experiment>();
    return find(experiment.product, key) != nullptr || any_row_has(key, &Variation::product, experiment);
  }

  std::optional<std::string> sweep(const std::string& key, const toml::node& node, config::Settings& settings,
                                   config::Faults& faults) override {
    static const Locate kThere = [](const toml::node&) { return config::kCommandLine; };
    locate_ = &kThere;
    faults_ = &faults;
    const bool is_one = !node.is_array();
    const auto elements = is_one ? std::vector<const toml::node*>{&node} : elements_of(node.as_array());
    std::optional<RowValues> values =
        values_of(key, node, elements, "is neither a value nor a list of values",
                  "a value of the key, or a list that is not empty: one value for each row");
    if (!values) return std::nullopt;
    for (std::size_t i = 0; config::find_key(key)->legal.is_path && i < elements.size(); ++i) {
      if (const auto* path = elements[i]->as_string())  // of the command line: from the current directory
        values->values[i] = config::toml_string(config::resolved_path(path->get(), config::working_directory()));
    }
    replace_lists(settings.section<Experiment>(), *values, true);
    swept_.insert(key);
    return is_one ? std::optional(values->values.front()) : std::nullopt;
  }

  std::vector<config::DescribedRow> rows(const config::Settings& settings, const config::Sources& sources,
                                         std::string_view deck, config::Faults& faults) const override {
    const Experiment& experiment = settings.section<Experiment>();
    const std::vector<RowKeys> expanded = expand(experiment);
    const bool has_too_many = expanded.size() > kMaxRows;
    if (has_too_many)
      faults.add({{std::string(deck)},
                  "experiment.product",
                  "describes too many rows",
                  fmt::format("at most {} rows", kMaxRows),
                  ""});
    check_experiment(settings, config::Rules(sources, deck, faults));
    for (const std::string& key : varied_keys(experiment)) {
      const auto source = sources.find(key);
      if (source != sources.end() && source->second.origin == config::Origin::command_line &&
          (!swept_.contains(key) || any_row_has(key, &Variation::keys, experiment)))
        faults.add({config::kCommandLine, key, "would be ignored: rows of the experiment set it",
                    fmt::format("'experiment.product={{{}=[...]}}'", key), ""});
    }
    if (has_too_many) return {};
    std::vector<config::DescribedRow> rows;
    std::vector<std::string_view> names;
    for (const RowKeys& keys : expanded) {
      config::DescribedRow row{keys.name, experiment.job, {}, is_chosen(experiment, keys.name)};
      if (experiment.quick) {
        for (const RowValues& values : experiment.when_quick.keys)
          row.values.push_back({values.key, values.values.front(), values.where, true});
      }
      for (const RowKeys::Assignment& key : keys.keys) row.values.push_back({key.key, key.value, key.where});
      rows.push_back(std::move(row));
      names.push_back(keys.name);
    }
    check_names(names, deck, faults);
    if (const std::string wrong = baselines_of(experiment, expanded).wrong; !wrong.empty())
      faults.add({sources.at("experiment.baseline").where, "experiment.baseline", wrong,
                  "the NAME of an [experiment.rows.NAME] that has one row for each row that is compared",
                  config::nearest(experiment.baseline, variation_names(experiment))});
    for (const std::string& name : experiment.only)
      if (std::find(names.begin(), names.end(), name) == names.end())
        faults.add({sources.at("experiment.only").where, "experiment.only", fmt::format("no row is named \"{}\"", name),
                    "names that --check lists", config::nearest(name, names)});
    return rows;
  }

  void check_row(const config::DescribedRow& row, const config::Settings& settings,
                 config::Faults& faults) const override {
    if (settings.job.kind != kExperiment) return;
    for (const config::DescribedRow::Value& value : row.values) {
      if (value.key == "job.kind")
        faults.add({value.where, "job.kind", "is an experiment in an experiment",
                    "the job of a row: see --explain experiment.job", ""});
    }
  }

  void forget(config::Settings& settings, config::Sources& sources) const override {
    settings.section<Experiment>() = {};
    std::erase_if(sources, [](const auto& source) { return source.first.starts_with("experiment."); });
  }

 private:
  void read_variation(const std::string& table, const toml::table& node, Variation& variation) {
    read_keys(table, node, false, variation.keys);
    const toml::node* product = node.get("product");
    if (product == nullptr) return;
    if (const toml::table* lists = product->as_table()) {
      read_keys(table + ".product", *lists, true, variation.product);
    } else {
      refuse(*product, fmt::format("experiment.{}.product", table), "is not a table", "lists by key");
    }
  }

  void read_keys(const std::string& table, const toml::table& node, bool are_lists, std::vector<RowValues>& out) {
    for (const auto& [key, value] : dotted(node)) {
      if (key == "product" && !are_lists) continue;  // read_variation's
      if (config::find_key(key) == nullptr) {
        if (const config::RenamedKeys* old = config::find_renamed(key)) {
          const config::NewSpelling now = old->now({{key, {config::element_texts(*value)}}});
          faults_->add(
              {(*locate_)(*value), key, "is an old spelling", config::text_of(now, are_lists ? "" : "product."), ""});
          continue;
        }
        refuse(*value, key, "unknown key", "section.key of a deck");
        continue;
      }
      if (is_common(key) || (key == "job.kind" && table.starts_with("when_quick"))) {
        refuse(*value, key, "belongs to the whole experiment, not to a row", "set it in its own section");
        continue;
      }
      const toml::array* list = value->as_array();
      const bool leaves_out = table == "when_quick.product" && list != nullptr && list->empty();
      std::optional<RowValues> values = leaves_out ? RowValues{key, {}, (*locate_)(*value)}
                                        : are_lists
                                            ? values_of(key, *value, elements_of(list), "is not a list of values",
                                                        "a list that is not empty: one value of the key for each row")
                                            : values_of(key, *value, {value}, "is not a value", "a value of the key");
      if (!values) continue;
      const auto same = std::find_if(out.begin(), out.end(), [&](const RowValues& v) { return v.key == key; });
      if (same == out.end()) {
        out.push_back(std::move(*values));
      } else {
        *same = std::move(*values);
      }
    }
  }

  /// Replaces the list of the same key in [experiment.product] or, with `everywhere`, in every table. Returns whether
  /// it replaced one outside when_quick.
  bool replace_lists(Experiment& experiment, const RowValues& list, bool everywhere) {
    bool is_replaced = false;
    const auto replace = [&](std::vector<RowValues>& all) {
      for (RowValues& values : all) {
        if (values.key != list.key) continue;
        values = list;
        is_replaced = true;
      }
    };
    replace(experiment.product);
    if (!everywhere) return is_replaced;
    for (Variation& variation : experiment.rows) replace(variation.product);
    const bool is_of_rows = is_replaced;
    replace(experiment.when_quick.product);
    return is_of_rows;
  }

  /// Refuses `node` with these words unless it has elements, all values, each once.
  std::optional<RowValues> values_of(const std::string& key, const toml::node& node,
                                     const std::vector<const toml::node*>& elements, const std::string& wrong,
                                     const std::string& legal) {
    RowValues values{key, {}, (*locate_)(node)};
    for (const toml::node* element : elements) {
      std::optional<std::string> text = config::node_text(*element);
      if (!text) break;
      if (std::find(values.values.begin(), values.values.end(), *text) != values.values.end()) {
        refuse(node, key, fmt::format("lists {} twice", *text),
               "each value once: experiment.rounds measures rows again");
        return std::nullopt;
      }
      values.values.push_back(std::move(*text));
    }
    if (!elements.empty() && values.values.size() == elements.size()) return values;
    refuse(node, key, wrong, legal);
    return std::nullopt;
  }

  void refuse(const toml::node& node, const std::string& key, const std::string& wrong, const std::string& legal) {
    faults_->add(
        {(*locate_)(node), key, wrong, legal, config::find_key(key) == nullptr ? config::nearest_key(key) : ""});
  }

  std::set<std::string, std::less<>> swept_;  // keys that the command line has set by name
  const Locate* locate_ = nullptr;            // of the call to read() under way, like the next
  config::Faults* faults_ = nullptr;
};

}  // namespace

std::shared_ptr<config::RowTables> make_tables() { return std::make_shared<ExperimentTables>(); }

}  // namespace tessera::lab
