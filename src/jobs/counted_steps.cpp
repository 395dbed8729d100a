#include "jobs/counted_steps.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::jobs {

double median_after(std::vector<double> values, std::size_t skipped) {
  values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(std::min(skipped, values.size())));
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return NAN;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace tessera::jobs
