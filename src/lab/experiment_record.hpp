/// What an experiment keeps of each row: how its measurements ended, one in each round, and what they gave, datasets of
/// the row's file and their statistics.
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

/// Of the numbers that are not NaN; NaN if there are none. `std` is that of a sample: 0 for one number.
double statistic_of(Statistic statistic, const std::vector<double>& numbers);

/// What is known of one measurement of a row, by entry of experiment.record or by column.
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

/// A row's, round by round. Only the last one may have failed: such a row is not measured again, but by --resume auto.
using Rounds = std::vector<Measurement>;

inline constexpr const char* kStoppedByItsLimit = "stopped by its train.time_limit_s";  // a reason with Exit::stopped

/// Whether a measurement that ended so has a result.
inline bool has_run(const Outcome& outcome) {
  return outcome.code == Exit::finished || (outcome.code == Exit::stopped && outcome.reason == kStoppedByItsLimit);
}

/// Whether a resumed experiment keeps it.
inline bool is_final(const Outcome& outcome) {
  if (outcome.code == Exit::stopped) return has_run(outcome);
  return outcome.code != Exit::files && outcome.code != Exit::environment;
}

}  // namespace tessera::lab
