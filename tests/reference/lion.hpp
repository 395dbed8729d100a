/// One Lion step in double, line by line as algorithm 2 of arXiv:2302.06675 writes it.
#pragma once

namespace tessera::reference {

struct LionConfig {
  double learning_rate, beta1, beta2, weight_decay;
};

struct LionState {
  double p, m;
};

/// What Lion takes the sign of.
inline double lion_direction(const LionState& state, double grad, const LionConfig& config) {
  return config.beta1 * state.m + (1 - config.beta1) * grad;
}

inline LionState lion(LionState state, double grad, const LionConfig& config) {
  const double c = lion_direction(state, grad, config);
  const double sign = c > 0 ? 1 : c < 0 ? -1 : 0;
  const auto [p, m] = state;
  return {p - config.learning_rate * (sign + config.weight_decay * p), config.beta2 * m + (1 - config.beta2) * grad};
}

}  // namespace tessera::reference
