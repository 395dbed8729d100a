/// Reads the tables of [experiment] that are no keys: product, rows and when_quick.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "config/faults.hpp"
#include "config/settings.hpp"
#include "config/toml.hpp"

namespace tessera::config {

/// Whether `leaf` names such a table.
bool is_experiment_table(std::string_view leaf);

/// Reads them, and remembers where each value stands. Whether a value is legal for its key is not decided here.
class ExperimentReader {
 public:
  using Locate = std::function<Where(const toml::node&)>;

  /// Reads the table `leaf` into `experiment`. With `is_override` only its lists of the keys named there are replaced.
  void read(std::string_view leaf, const toml::node& node, const Locate& locate, Experiment& experiment, Faults& faults,
            bool is_override = false);

  /// Where `key` stands in a table, as RowKeys::Assignment names it.
  const Where& where(const std::string& table, const std::string& key) const { return places_.at(table + " " + key); }

 private:
  struct Entry {
    std::string key;
    const toml::node* node;
  };
  void read_variation(const std::string& table, const toml::table& node, Variation& variation);
  void read_keys(const std::string& table, const toml::table& node, bool are_lists, std::vector<RowValues>& out);
  void refuse(const toml::node& node, const std::string& key, const std::string& wrong, const std::string& legal);

  std::map<std::string, Where> places_;  // by table and key
  const Locate* locate_ = nullptr;       // of the call to read() under way, like the next
  Faults* faults_ = nullptr;
};

}  // namespace tessera::config
