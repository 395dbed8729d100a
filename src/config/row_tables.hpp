/// Tables of a deck that hold no keys but describe rows; each row is a deck of its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/faults.hpp"
#include "config/rules.hpp"
#include "config/settings.hpp"
#include "config/toml.hpp"

namespace tessera::config {

/// One row: its differences from the deck.
struct DescribedRow {
  struct Value {
    std::string key, value;  // the value as TOML
    Where where;
    bool is_common = false;  // of all rows: a key on the command line wins over it, and DeckRow::given leaves it out
  };
  std::string name;  // fit for a file's name
  JobKind kind;      // unless `values` set job.kind
  std::vector<Value> values;
  bool is_chosen = true;  // whether it runs
};

/// Reads the tables of one deck, and remembers where each value stands.
class RowTables {
 public:
  using Locate = std::function<Where(const toml::node&)>;

  virtual ~RowTables() = default;

  /// Whether `name`, "section.table", is such a table.
  virtual bool has(std::string_view name) const = 0;

  /// Reads it into `settings`; `is_override`: it comes from the command line.
  virtual void read(std::string_view name, const toml::node& node, const Locate& locate, Settings& settings,
                    Faults& faults, bool is_override) = 0;

  /// Whether rows take the values of `key` from lists.
  virtual bool sweeps(std::string_view key, const Settings& settings) const = 0;

  /// Replaces all such lists by a value or a list from the command line. A single value is returned, as TOML.
  virtual std::optional<std::string> sweep(const std::string& key, const toml::node& node, Settings& settings,
                                           Faults& faults) = 0;

  /// The rows of a deck whose job has some, with the faults of the tables as a whole.
  virtual std::vector<DescribedRow> rows(const Settings& settings, const Sources& sources, std::string_view deck,
                                         Faults& faults) const = 0;

  /// Adds the faults that only a row, now in `settings`, can have.
  virtual void check_row(const DescribedRow& row, const Settings& settings, Faults& faults) const = 0;

  /// Removes the description of rows from a row.
  virtual void forget(Settings& settings, Sources& sources) const = 0;
};

}  // namespace tessera::config
