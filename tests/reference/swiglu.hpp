/// SwiGLU in double (Shazeer 2020, arXiv:2002.05202), gate_up [N,2F]: gate, then up.
#pragma once

#include <cmath>
#include <vector>

namespace tessera::reference {

inline double silu(double x) { return x / (1 + std::exp(-x)); }

inline std::vector<double> swiglu_forward(const std::vector<double>& gate_up, std::size_t F) {
  std::vector<double> out(gate_up.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t n = i / F, f = i % F;
    out[i] = silu(gate_up[n * 2 * F + f]) * gate_up[n * 2 * F + F + f];
  }
  return out;
}

/// silu'(x) = (1 + e^-x + x e^-x) / (1 + e^-x)^2, the quotient rule as it stands
inline std::vector<double> swiglu_backward(const std::vector<double>& gate_up, const std::vector<double>& d_out,
                                           std::size_t F) {
  std::vector<double> d_gate_up(gate_up.size());
  for (std::size_t i = 0; i < d_out.size(); ++i) {
    const std::size_t gate = i / F * 2 * F + i % F, up = gate + F;
    const double x = gate_up[gate], e = std::exp(-x), slope = (1 + e + x * e) / ((1 + e) * (1 + e));
    d_gate_up[gate] = d_out[i] * gate_up[up] * slope;
    d_gate_up[up] = d_out[i] * silu(x);
  }
  return d_gate_up;
}

}  // namespace tessera::reference
