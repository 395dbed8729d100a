/// Matrix product in double: c[m,n] = before + op(a) op(b), op the identity or the transpose.
#pragma once

#include <vector>

namespace tessera::reference {

inline std::vector<double> gemm(const std::vector<double>& a, bool transpose_a, const std::vector<double>& b,
                                bool transpose_b, int m, int n, int k, const std::vector<double>& before) {
  std::vector<double> c = before;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      for (int l = 0; l < k; ++l) {
        c[i * n + j] += (transpose_a ? a[l * m + i] : a[i * k + l]) * (transpose_b ? b[j * k + l] : b[l * n + j]);
      }
    }
  }
  return c;
}

}  // namespace tessera::reference
