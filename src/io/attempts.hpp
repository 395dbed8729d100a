/// /attempts of run.h5: every start of a run, also those whose steps a later one has rewound.
///
///   start, end, reason, from_step, hosts, ranks, job, commit [attempt]
///
/// `end` is when the file was last written while the start is under way, or if it was killed. `reason` says how it
/// ended: "finished", "stopped by ...", "failed: exit N"; "running" while it is under way.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/h5.hpp"
#include "io/step_record.hpp"

namespace tessera::io {

/// Units of a wall-clock time, as xarray turns them into dates (CF conventions).
constexpr const char* kWallClock = "seconds since 1970-01-01 00:00:00";

/// Seconds since 1970, UTC.
double wall_clock_s();

struct Attempt {
  double start_s = kNotMeasured, end_s = kNotMeasured;  // seconds since 1970
  std::string reason;
  std::int64_t from_step = 0;  // optimizer steps done when it started
  std::string hosts;
  std::int64_t ranks = 0;
  std::string job;     // Slurm's number of it; "" without Slurm
  std::string commit;  // of the program
};

constexpr const char* kRunning = "running";

void write_attempts(h5::Group& file, const std::vector<Attempt>& attempts);

/// Those of an earlier file that has `count`. One that was under way then, was killed. Files of older versions have
/// only the number: "not recorded".
std::vector<Attempt> load_attempts(const h5::Group& file, std::int64_t count);

}  // namespace tessera::io
