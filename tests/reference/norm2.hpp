/// Square of the Euclidean norm, in extended precision.
#pragma once

#include <vector>

namespace tessera::reference {

inline double square_norm(const std::vector<double>& x) {
  long double sum = 0;
  for (double value : x) sum += static_cast<long double>(value) * value;
  return static_cast<double>(sum);
}

}  // namespace tessera::reference
