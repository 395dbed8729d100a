/// Which steps of a training run count where times are summed up.
#pragma once

#include <cstddef>
#include <vector>

namespace tessera::jobs {

/// Steps at the beginning that do not count: they touch memory for the first time, and record graphs.
inline constexpr std::size_t kWarmupSteps = 5;

/// The median of what is a number, without the first `skipped`; NaN of nothing.
double median_after(std::vector<double> values, std::size_t skipped);

}  // namespace tessera::jobs
