/// Token embedding in double: rows of a table, and the gradient of the table.
#pragma once

#include <vector>

namespace tessera::reference {

/// out[n,:] = weight[tokens[n],:]
inline std::vector<double> embedding_forward(const std::vector<int>& tokens, const std::vector<double>& weight, int C) {
  std::vector<double> out;
  for (int token : tokens) {
    for (int c = 0; c < C; ++c) out.push_back(weight[token * C + c]);
  }
  return out;
}

/// d_weight[v,:] = before[v,:] + sum_{n: tokens[n]=v} d_out[n,:]
inline std::vector<double> embedding_backward(const std::vector<int>& tokens, const std::vector<double>& d_out, int C,
                                              const std::vector<double>& before) {
  std::vector<double> d_weight = before;
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    for (int c = 0; c < C; ++c) d_weight[tokens[n] * C + c] += d_out[n * C + c];
  }
  return d_weight;
}

}  // namespace tessera::reference
