/// What --plan --compare RUN.h5 prints: a training run's measurements beside what --plan predicts of it.
///
///   arena          peak_bytes of /steps, beside the layout's: equal to the byte where the same build made both
///   categories     largest live bytes in /memory/events, which the step reports as its tensors begin and end
///   GPU            what rank 0 took of its GPU's memory in the first steps, libraries included (/info)
///   transfers      bytes that a rank sends in a step, by /comm of the first one
///   link           to offloaded state, bytes/s as the run measured it (/info): with it the step's time is predicted,
///                  unless the command line gives plan.host_link_gbyte_per_s
///   times          medians over /steps, of the rows after the first kWarmupSteps; profiled steps have no times
///
/// All of them are those of the run's latest start.
///
/// The prediction is for the deck that the run stored, or for another one, on as many ranks as the run had, on the
/// device and the hosts that it names, unless plan.device and plan.ranks_per_node say otherwise.
///
/// Throws  Failure(Exit::files) with what is missing, for a file that is no run.h5 or has too few timed steps;
///         Exit::usage for a deck of another job or another number of ranks; what plan_training throws.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "config/command_line.hpp"
#include "config/settings.hpp"
#include "io/launch.hpp"

namespace tessera::lab {

/// What a run.h5 says of its run. NaN where it measured nothing.
struct RunFigures {
  std::string deck;  // resolved, as TOML
  io::Launch launch;
  std::size_t timed_steps = 0;  // that count
  bool is_resumed = false;  // then all figures are those since the last resume: before it all may have been different
  double peak_bytes, step_s, forward_s, backward_s, exposed_s, optimizer_s;
  double taken_bytes, host_link;                   // of rank 0's GPU; [bytes/s]
  std::map<std::string, double> live_bytes, sent;  // at most, by category; in a step, by operation: "all_reduce"
};
RunFigures read_run(const std::filesystem::path& run);

/// `line.compare` names the run; `line.deck` may be empty, then the overrides apply to the run's own deck.
std::string compare_text(const config::CommandLine& line);

}  // namespace tessera::lab
