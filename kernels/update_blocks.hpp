/// The work of an optimizer: spans of the flat parameter arrays, cut into blocks, one per team; and the numbers of a
/// step that it reads from device memory, so that a captured step can be replayed.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/round_up.hpp"

namespace tessera::kernels {

struct UpdateSpan {                 // a tensor, or the part of it that this rank owns
  std::int64_t param, grad, state;  // first element: of the weights; of the gradients; of moments and a separate master
  std::int64_t count;
  bool decay;
  std::int64_t index = 0;  // of its first element among all parameters: the counter of the random numbers
};

struct UpdateBlock {  // the work of one team
  std::int64_t param, grad, state;
  std::int32_t count;
  bool decay;
  std::int64_t index;
};

struct UpdateScalars {  // in device memory
  double learning_rate;
  double bias1, bias2;      // 1 - beta1^step, 1 - beta2^step; steps count from 1
  double grad_scale;        // clip factor / loss scale
  int skip;                 // non-zero: change nothing (an fp16 overflow)
  std::uint64_t noise = 0;  // of this step's stochastic rounding
};

/// The same in every step.
template <class Real>
struct Hyperparameters {
  double beta1, beta2;  // 1 - beta is formed in double, so that betas near 1 lose no digits
  Real eps, weight_decay;
};

inline constexpr std::int64_t kUpdateBlock = 8192;  // elements per team

/// Blocks that make_update_blocks makes of a span of `count` elements.
constexpr std::int64_t update_blocks(std::int64_t count) { return ceil_div(count, kUpdateBlock); }

/// Cuts spans into blocks of at most `kUpdateBlock` elements, on the host.
/// Throws  std::invalid_argument for a negative span, or spans whose weights or states overlap.
std::vector<UpdateBlock> make_update_blocks(const std::vector<UpdateSpan>& spans);

}  // namespace tessera::kernels
