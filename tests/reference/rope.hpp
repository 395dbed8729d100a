/// Rotary position embedding in double (Su et al. 2021, arXiv:2104.09864), x [B,H,T,D], neighbouring pairs.
#pragma once

#include <cmath>
#include <complex>
#include <vector>

namespace tessera::reference {

/// A pair is a complex number; position p multiplies pair i by exp(sign * i * p * theta^(-2i/D)).
inline std::vector<double> rope(const std::vector<double>& x, int T, int D, double theta, int first_position,
                                double sign) {
  std::vector<double> turned = x;
  for (std::size_t at = 0; at < x.size(); at += 2) {
    const int d = static_cast<int>(at % D), t = static_cast<int>(at / D % T);
    const double angle = (first_position + t) * std::pow(theta, -static_cast<double>(d) / D);
    const auto pair = std::complex<double>(x[at], x[at + 1]) * std::polar(1.0, sign * angle);
    turned[at] = pair.real();
    turned[at + 1] = pair.imag();
  }
  return turned;
}

}  // namespace tessera::reference
