/// How a row of an experiment ended.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "errors.hpp"

namespace tessera::lab {

struct Outcome {
  Exit code = Exit::finished;
  std::string reason;  // the message of its failure
  double seconds = NAN;
};

/// Of each row of the deck, once it has one.
using Outcomes = std::vector<std::optional<Outcome>>;

inline constexpr const char* kStoppedByItsLimit = "stopped by its train.time_limit_s";  // a reason with Exit::stopped

/// Whether a row that ended so has a result.
inline bool has_run(const Outcome& outcome) {
  return outcome.code == Exit::finished || (outcome.code == Exit::stopped && outcome.reason == kStoppedByItsLimit);
}

/// Whether a resumed experiment keeps a row that ended so.
inline bool is_final(const Outcome& outcome) {
  if (outcome.code == Exit::stopped) return has_run(outcome);
  return outcome.code != Exit::files && outcome.code != Exit::environment;
}

}  // namespace tessera::lab
