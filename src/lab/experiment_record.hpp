/// An experiment's record of each row: the outcome of its measurement in each round, and statistics of datasets of the
/// row's file.
#pragma once

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "errors.hpp"
#include "lab/experiment_rows.hpp"

namespace tessera::lab {

/// One dataset of one row's file after its statistic: numbers, or texts.
struct Quantity {
  std::string units = "1", description;
  bool is_text = false;
  std::vector<double> numbers;  // one, or with Statistic::values those of the dataset in row-major order
  std::vector<std::string> texts;
};

/// Ignores NaN; NaN if no other number is left. `std` is a sample's: 0 for one number.
double statistic_of(Statistic statistic, const std::vector<double>& numbers);

/// The results of one measurement of a row, by entry of experiment.record or by column.
struct RowRecord {
  std::map<std::string, Quantity> quantities;
  std::map<std::string, std::string> lacking;  // why there is none: no such dataset, or numbers asked of a text
};

/// Opens the file once. No entries: every column of a benchmark's table, and nothing of another file.
/// Throws Failure(Exit::files) if the file cannot be opened.
RowRecord read_record(const std::filesystem::path& file, const std::vector<std::string>& entries);

/// How a measurement ended.
struct Outcome {
  Exit code = Exit::finished;
  std::string reason;  // the message of its failure
  double seconds = NAN;
};

struct Measurement {
  Outcome outcome;
  RowRecord record = {};
};

/// A row's outcomes by round. Only the last may be a failure: after it, only --resume auto measures the row again.
using Rounds = std::vector<Measurement>;

inline constexpr const char* kStoppedByItsLimit = "stopped by its train.time_limit_s";  // a reason with Exit::stopped

/// Whether a measurement with this outcome has a result.
inline bool has_run(const Outcome& outcome) {
  return outcome.code == Exit::finished || (outcome.code == Exit::stopped && outcome.reason == kStoppedByItsLimit);
}

/// Whether a resumed experiment keeps it.
inline bool is_final(const Outcome& outcome) {
  if (outcome.code == Exit::stopped) return has_run(outcome);
  return outcome.code != Exit::files && outcome.code != Exit::environment;
}

}  // namespace tessera::lab
