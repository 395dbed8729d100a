/// Sampling in double: the tokens that may be drawn, with their probabilities, and the one that u draws.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace tessera::reference {

/// The probability of each token; 0 for those that are not among the top_k largest (0: all). Of equal logits the lower
/// index counts as larger. Temperature 0: all of it for the largest.
inline std::vector<double> probabilities(const std::vector<double>& logits, double temperature, std::size_t top_k) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (temperature == 0) top_k = 1;
  if (top_k > 0 && top_k < order.size()) order.resize(top_k);
  std::vector<double> p(logits.size());
  double sum = 0;
  for (const std::size_t v : order) {
    p[v] = temperature == 0 ? 1 : std::exp((logits[v] - logits[order.front()]) / temperature);
    sum += p[v];
  }
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace tessera::reference
