/// Statistics of measurements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace tessera::jobs {

/// NaN if there are no numbers, like the next.
inline double mean_of(const std::vector<double>& numbers) {
  const double sum = std::accumulate(numbers.begin(), numbers.end(), 0.0);
  return numbers.empty() ? NAN : sum / static_cast<double>(numbers.size());
}

inline double median_of(std::vector<double> numbers) {
  if (numbers.empty()) return NAN;
  std::sort(numbers.begin(), numbers.end());
  return (numbers[(numbers.size() - 1) / 2] + numbers[numbers.size() / 2]) / 2;
}

/// The standard deviation of a sample: 0 for one number.
inline double deviation_of(const std::vector<double>& numbers) {
  const double mean = mean_of(numbers);
  double squares = 0;
  for (const double x : numbers) squares += (x - mean) * (x - mean);
  return numbers.size() > 1 ? std::sqrt(squares / static_cast<double>(numbers.size() - 1)) : 0;
}

/// First steps of a training run, which do not count: they touch memory for the first time, and capture graphs.
inline constexpr std::size_t kWarmupSteps = 5;

/// The median of the steps that count; NaN marks steps that do not.
inline double median_of_steps(std::vector<double> values) {
  values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(std::min(kWarmupSteps, values.size())));
  std::erase_if(values, [](double value) { return std::isnan(value); });
  return median_of(std::move(values));
}

}  // namespace tessera::jobs
