/// What --plan --compare RUN.h5 prints: a training run's measurements beside what --plan predicts of it.
///
///   arena          peak_bytes of /steps, beside the layout's: equal to the byte where the same build made both
///   the others     medians over /steps, of the rows after the first kWarmupSteps; profiled steps have no times
///
/// The prediction is for the deck that the run stored, or for another one, on as many ranks as the run had, on the
/// device and the hosts that it names, unless plan.device and plan.ranks_per_node say otherwise.
///
/// Throws  Failure(Exit::files) with what is missing, for a file that is no run.h5 or has too few timed steps;
///         Exit::usage for a deck of another job or another number of ranks; what plan_training throws.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/command_line.hpp"
#include "config/settings.hpp"

namespace tessera::jobs {

/// Steps that do not count: they touch memory for the first time, and record graphs.
inline constexpr std::size_t kWarmupSteps = 5;

/// What a run.h5 says of its run. NaN where it measured nothing.
struct RunFigures {
  std::string deck;     // resolved, as TOML
  std::string devices;  // the GPU of each rank; empty on CPUs
  int ranks = 1, hosts = 1;
  int ranks_per_host = 1;       // on the first host
  std::size_t timed_steps = 0;  // that count
  bool is_resumed = false;  // then all figures are those since the last resume: before it all may have been different
  double peak_bytes, step_s, forward_s, backward_s, exposed_s, optimizer_s;
};
RunFigures read_run(const std::filesystem::path& run);

/// The median of what is a number, without the first `skipped`; NaN of nothing.
double median_after(std::vector<double> values, std::size_t skipped);

/// `line.compare` names the run; `line.deck` may be empty, then the overrides apply to the run's own deck.
std::string compare_text(const config::CommandLine& line);

}  // namespace tessera::jobs
