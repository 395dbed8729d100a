/// Weighted sum of rows in double: y[n] = sum_d w[d] x[n,d], and its gradients.
#pragma once

#include <vector>

namespace tessera::reference {

inline std::vector<double> weighted_sum_forward(const std::vector<double>& x, const std::vector<double>& w) {
  std::vector<double> y(x.size() / w.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i / w.size()] += w[i % w.size()] * x[i];
  return y;
}

struct WeightedSumGradients {
  std::vector<double> d_x;  // [N,D]
  std::vector<double> d_w;  // [D]
};

inline WeightedSumGradients weighted_sum_backward(const std::vector<double>& x, const std::vector<double>& w,
                                                  const std::vector<double>& d_y) {
  WeightedSumGradients result{std::vector<double>(x.size()), std::vector<double>(w.size())};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t n = i / w.size(), d = i % w.size();
    result.d_x[i] = d_y[n] * w[d];
    result.d_w[d] += d_y[n] * x[i];
  }
  return result;
}

}  // namespace tessera::reference
