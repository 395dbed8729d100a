/// Learning rate as a function of the step: linear warm-up, then a cosine down to the minimum.
#pragma once

#include "kernels/core/compat.hpp"

#include <cstdint>

namespace tessera::optim {

struct Schedule {
  double peak, minimum;
  std::int64_t warmup_steps, steps;

  /// Rate of step 0, 1, ...: the last warm-up step has the peak; from `steps` on it is the minimum.
  /// Source: Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, one cycle.
  KOKKOS_INLINE_FUNCTION double learning_rate_at(std::int64_t step) const {
    if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    if (step >= steps) return minimum;
    const double done = static_cast<double>(step - warmup_steps) / static_cast<double>(steps - warmup_steps);
    return minimum + 0.5 * (peak - minimum) * (1 + kernels::cos(3.14159265358979323846 * done));
  }
};

}  // namespace tessera::optim
