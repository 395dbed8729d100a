/// Rows of an experiment: the combinations that [experiment] describes, the entries to record, and each row's baseline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/faults.hpp"
#include "config/settings.hpp"

namespace tessera::lab {

/// A key that an experiment's rows set, with its values as TOML: one, or in a product a list of them.
struct RowValues {
  std::string key;
  std::vector<std::string> values;
  config::Where where = {};

  bool operator==(const RowValues& other) const { return key == other.key && values == other.values; }
};

/// The values of `key` among them; null if there are none.
const RowValues* find(const std::vector<RowValues>& all, std::string_view key);

/// Rows of an experiment: every combination of the lists in `product`, each with `keys`.
struct Variation {
  std::string name;
  std::vector<RowValues> keys, product;

  bool operator==(const Variation&) const = default;
};

struct Experiment {
  std::string question;
  config::JobKind job = config::JobKind::train;  // of every row that sets no job.kind
  std::vector<std::string> record;               // "DATASET" or "DATASET:STATISTIC" of a row's file; none: all
  std::vector<std::int64_t> ranks = {1};         // that scripts/experiment starts, one launch for each number
  bool fresh_processes = false;                  // scripts/experiment starts one for each row
  std::vector<std::string> only;                 // rows that run, by name; none: all
  bool quick = false;
  std::int64_t rounds = 1;         // how many times all rows are measured
  std::string baseline;            // the variation to whose rows the others relate; "": none
  double time_limit_s = 0;         // wall seconds after which no further row starts; 0: none
  std::vector<RowValues> product;  // common to all variations
  std::vector<Variation> rows;     // none: one without a name
  Variation when_quick;            // its keys, and lists in place of those of the same keys, count where quick is true

  bool operator==(const Experiment&) const = default;
};

constexpr std::size_t kMaxRows = 10000;

/// One row: the keys that it sets, in the order in which they are set.
struct RowKeys {
  struct Assignment {
    std::string key, value;  // the value as TOML
    config::Where where;
    bool is_of_list;  // one of a product
  };
  std::string name;       // of its variation and of its values, "flash2_4096_bf16": fit for a file's name
  std::string variation;  // its table's name
  std::vector<Assignment> keys;
};

/// The rows, at most kMaxRows + 1: for each variation, every combination of the common lists and its own, the last list
/// changing fastest. With experiment.quick, lists of when_quick replace those of the same keys.
std::vector<RowKeys> expand(const Experiment& experiment);

/// Whether experiment.only lets the row of this name run.
bool is_chosen(const Experiment& experiment, std::string_view row);

/// The keys of a resolved deck (translated if an earlier program stored it) that decide what it computes: all but
/// job.directory, job.overwrite and job.progress.
std::string what_is_computed(const std::string& resolved);

/// The keys that rows set, each once, in the order of the deck.
std::vector<std::string> varied_keys(const Experiment& experiment);

/// The tables of [experiment] as TOML; reads back to the same.
std::string tables_text(const Experiment& experiment);

enum class Statistic { values, mean, std, median, min, max, sum, count, first, last };  // values: all, as they are

/// A dataset of a row's file, and what is kept of it.
struct Recorded {
  std::string path;
  Statistic statistic = Statistic::values;
};

/// "DATASET" or "DATASET:STATISTIC"; nothing if the statistic is unknown or the dataset is not named.
std::optional<Recorded> parse_recorded(std::string_view text);

/// The names of all statistics but `values`, with blanks between them.
std::string statistic_names();

struct Baselines {
  std::vector<std::size_t> rows;  // by row, as expand() counts them; empty without experiment.baseline
  std::string wrong;              // with experiment.baseline: no such table, or not one row of it for each row
};

/// The row of [experiment.rows.<baseline>] that agrees on every key that it takes from a list and the row sets, too.
Baselines baselines_of(const Experiment& experiment, const std::vector<RowKeys>& rows);

/// How to compare two numbers of these units, so that more is better.
enum class Comparison {
  none,      // other units
  speed_up,  // times: baseline / row; rates: row / baseline
  saved      // bytes: 1 - row / baseline
};
Comparison comparison_of(std::string_view units);

/// NaN where either is, and where a number would be divided by 0.
double compared(std::string_view units, double row, double baseline);

}  // namespace tessera::lab
