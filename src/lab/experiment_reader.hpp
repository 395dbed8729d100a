/// Reads the tables of [experiment] that are no keys, product, rows and when_quick, and makes rows of them.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/faults.hpp"
#include "config/row_tables.hpp"
#include "config/rules.hpp"
#include "lab/experiment_rows.hpp"

namespace tessera::lab {

/// Whether a value is legal for its key is not decided here.
class ExperimentTables final : public config::RowTables {
 public:
  bool has(std::string_view name) const override;

  /// With `is_override` only the lists of the keys that are named there are replaced.
  void read(std::string_view name, const toml::node& node, const Locate& locate, config::Settings& settings,
            config::Faults& faults, bool is_override) override;

  bool sweeps(std::string_view key, const config::Settings& settings) const override;
  std::optional<std::string> sweep(const std::string& key, const toml::node& node, config::Settings& settings,
                                   config::Faults& faults) override;

  std::vector<config::DescribedRow> rows(const config::Settings& settings, const config::Sources& sources,
                                         std::string_view deck, config::Faults& faults) const override;
  void check_row(const config::DescribedRow& row, const config::Settings& settings,
                 config::Faults& faults) const override;
  void forget(config::Settings& settings, config::Sources& sources) const override;

 private:
  void read_variation(const std::string& table, const toml::table& node, Variation& variation);
  void read_keys(const std::string& table, const toml::table& node, bool are_lists, std::vector<RowValues>& out);
  bool replace_lists(Experiment& experiment, const RowValues& list, bool everywhere);

  /// Refuses `node` in these words unless it has elements and all of them are values, each once.
  std::optional<RowValues> values_of(const std::string& key, const toml::node& node,
                                     const std::vector<const toml::node*>& elements, const std::string& wrong,
                                     const std::string& legal);
  void refuse(const toml::node& node, const std::string& key, const std::string& wrong, const std::string& legal);

  std::set<std::string, std::less<>> swept_;  // keys that the command line has set by name
  const Locate* locate_ = nullptr;            // of the call to read() under way, like the next
  config::Faults* faults_ = nullptr;
};

}  // namespace tessera::lab
