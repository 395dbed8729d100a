/// Cross-entropy in double, logits [n,V]; a target of -1 is ignored.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace tessera::reference {

struct CrossEntropy {
  std::vector<double> row_loss;  // [n]    nats
  std::vector<double> d_logits;  // [n,V]  gradient of grad_scale * sum(row_loss)
};

inline CrossEntropy cross_entropy(const std::vector<double>& logits, const std::vector<int>& targets,
                                  double grad_scale) {
  const std::size_t n = targets.size(), V = n ? logits.size() / n : 0;
  CrossEntropy result{std::vector<double>(n), std::vector<double>(n * V)};
  for (std::size_t i = 0; i < n; ++i) {
    if (targets[i] < 0) continue;
    const double* row = &logits[i * V];
    const double max = *std::max_element(row, row + V);
    double sum = 0;
    for (std::size_t v = 0; v < V; ++v) sum += std::exp(row[v] - max);
    result.row_loss[i] = std::log(sum) + max - row[targets[i]];
    for (std::size_t v = 0; v < V; ++v) {
      const double one_hot = static_cast<int>(v) == targets[i] ? 1 : 0;
      result.d_logits[i * V + v] = grad_scale * (std::exp(row[v] - max) / sum - one_hot);
    }
  }
  return result;
}

}  // namespace tessera::reference
