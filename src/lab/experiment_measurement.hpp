/// Measurements of an experiment's rows: how each ended, and what it gave. A row has one in each round.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "errors.hpp"
#include "lab/experiment_record.hpp"

namespace tessera::lab {

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
