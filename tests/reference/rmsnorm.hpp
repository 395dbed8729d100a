/// RMSNorm in double (Zhang & Sennrich 2019, arXiv:1910.07467), rows of x [N,C].
#pragma once

#include <cmath>
#include <vector>

namespace tessera::reference {

struct Rmsnorm {
  std::vector<double> y;     // [N,C]
  std::vector<double> rrms;  // [N]
};

inline Rmsnorm rmsnorm_forward(const std::vector<double>& x, const std::vector<double>& gain, double eps) {
  const std::size_t C = gain.size(), N = x.size() / C;
  Rmsnorm result{std::vector<double>(N * C), std::vector<double>(N)};
  for (std::size_t n = 0; n < N; ++n) {
    double sum_sq = 0;
    for (std::size_t c = 0; c < C; ++c) sum_sq += x[n * C + c] * x[n * C + c];
    result.rrms[n] = 1 / std::sqrt(sum_sq / static_cast<double>(C) + eps);
    for (std::size_t c = 0; c < C; ++c) result.y[n * C + c] = x[n * C + c] * result.rrms[n] * gain[c];
  }
  return result;
}

struct RmsnormGradients {
  std::vector<double> d_x;     // [N,C]
  std::vector<double> d_gain;  // [C]
};

/// By the quotient rule on y = gain x / rms, without any of the kernel's rearrangements:
///   d y[c] / d x[k] = gain[c] (delta_ck r - x[c] x[k] r^3 / C)
inline RmsnormGradients rmsnorm_backward(const std::vector<double>& x, const std::vector<double>& gain,
                                         const std::vector<double>& d_y, double eps) {
  const std::size_t C = gain.size(), N = x.size() / C;
  RmsnormGradients result{std::vector<double>(N * C), std::vector<double>(C)};
  for (std::size_t n = 0; n < N; ++n) {
    const double *row = &x[n * C], *dy = &d_y[n * C];
    double sum_sq = 0, sum_dy_gain_x = 0;
    for (std::size_t c = 0; c < C; ++c) {
      sum_sq += row[c] * row[c];
      sum_dy_gain_x += dy[c] * gain[c] * row[c];
    }
    const double r = 1 / std::sqrt(sum_sq / static_cast<double>(C) + eps);
    for (std::size_t k = 0; k < C; ++k) {
      result.d_x[n * C + k] = dy[k] * gain[k] * r - row[k] * r * r * r / static_cast<double>(C) * sum_dy_gain_x;
      result.d_gain[k] += dy[k] * row[k] * r;
    }
  }
  return result;
}

}  // namespace tessera::reference
