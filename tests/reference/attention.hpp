/// Attention in double, forward and backward, with every score stored; q [B,H,Tq,D], k and v [B,H,Tk,D].
///
/// Causal is bottom-right: query i sees key j when j <= i + Tk - Tq. A query that sees no key has out 0, lse -inf
/// and no gradient. Heads are independent, so B and H are one index here.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tessera::reference {

struct AttentionShape {
  int heads, Tq, Tk, D;  // heads = B*H
  bool causal;
  double scale;

  int visible(int i) const { return causal ? std::clamp(i + Tk - Tq + 1, 0, Tk) : Tk; }  // keys [0, visible)
};

struct Attention {
  std::vector<double> out;            // [heads,Tq,D]
  std::vector<double> lse;            // [heads,Tq]
  std::vector<double> probabilities;  // [heads,Tq,Tk]
};

inline Attention attention_forward(const AttentionShape& s, const std::vector<double>& q, const std::vector<double>& k,
                                   const std::vector<double>& v) {
  const std::size_t rows = static_cast<std::size_t>(s.heads) * s.Tq;
  Attention result{std::vector<double>(rows * s.D), std::vector<double>(rows), std::vector<double>(rows * s.Tk)};
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t first_key = row / s.Tq * s.Tk;
    const int visible = s.visible(static_cast<int>(row % s.Tq));
    double* p = result.probabilities.data() + row * s.Tk;
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int j = 0; j < visible; ++j) {
      for (int d = 0; d < s.D; ++d) p[j] += s.scale * q[row * s.D + d] * k[(first_key + j) * s.D + d];
      max = std::max(max, p[j]);
    }
    for (int j = 0; j < visible; ++j) sum += std::exp(p[j] - max);
    result.lse[row] = visible > 0 ? max + std::log(sum) : max;
    for (int j = 0; j < visible; ++j) {
      p[j] = std::exp(p[j] - result.lse[row]);
      for (int d = 0; d < s.D; ++d) result.out[row * s.D + d] += p[j] * v[(first_key + j) * s.D + d];
    }
  }
  return result;
}

struct AttentionGradients {
  std::vector<double> d_q, d_k, d_v;
};

/// `saved` is what attention_forward returned.
inline AttentionGradients attention_backward(const AttentionShape& s, const Attention& saved,
                                             const std::vector<double>& q, const std::vector<double>& k,
                                             const std::vector<double>& v, const std::vector<double>& d_out) {
  AttentionGradients result{std::vector<double>(q.size()), std::vector<double>(k.size()),
                            std::vector<double>(v.size())};
  const std::size_t rows = static_cast<std::size_t>(s.heads) * s.Tq;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t first_key = row / s.Tq * s.Tk;
    const double* p = saved.probabilities.data() + row * s.Tk;
    const int visible = s.visible(static_cast<int>(row % s.Tq));
    std::vector<double> d_p(visible);
    double p_dot_d_p = 0;
    for (int j = 0; j < visible; ++j) {
      for (int d = 0; d < s.D; ++d) {
        d_p[j] += d_out[row * s.D + d] * v[(first_key + j) * s.D + d];
        result.d_v[(first_key + j) * s.D + d] += p[j] * d_out[row * s.D + d];
      }
      p_dot_d_p += p[j] * d_p[j];
    }
    for (int j = 0; j < visible; ++j) {
      const double d_score = p[j] * (d_p[j] - p_dot_d_p);
      for (int d = 0; d < s.D; ++d) {
        result.d_q[row * s.D + d] += s.scale * d_score * k[(first_key + j) * s.D + d];
        result.d_k[(first_key + j) * s.D + d] += s.scale * d_score * q[row * s.D + d];
      }
    }
  }
  return result;
}
inline AttentionGradients attention_backward(const AttentionShape& s, const std::vector<double>& q,
                                             const std::vector<double>& k, const std::vector<double>& v,
                                             const std::vector<double>& d_out) {
  return attention_backward(s, attention_forward(s, q, k, v), q, k, v, d_out);
}

}  // namespace tessera::reference
