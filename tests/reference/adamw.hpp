/// One AdamW step in double, line by line as the documentation of torch.optim.AdamW writes it.
#pragma once

#include <cmath>

namespace tessera::reference {

struct AdamwConfig {
  double learning_rate, beta1, beta2, eps, weight_decay;
};

struct AdamwState {
  double p, m, v;
};

inline AdamwState adamw(AdamwState state, double grad, int step, const AdamwConfig& config) {
  auto [p, m, v] = state;
  p -= config.learning_rate * config.weight_decay * p;
  m = config.beta1 * m + (1 - config.beta1) * grad;
  v = config.beta2 * v + (1 - config.beta2) * grad * grad;
  const double m_hat = m / (1 - std::pow(config.beta1, step));
  const double v_hat = v / (1 - std::pow(config.beta2, step));
  p -= config.learning_rate * m_hat / (std::sqrt(v_hat) + config.eps);
  return {p, m, v};
}

}  // namespace tessera::reference
