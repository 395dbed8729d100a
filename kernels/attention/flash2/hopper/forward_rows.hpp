/// The running softmax of Hopper's attention forward, per lane: two rows, g and g + 8 of the warp's 16, and of each the
/// columns of the lane's fragment (kernels/cuda/wgmma.hpp). Four lanes share a row.
///
///   weight = 2^(score * scale_log2 - shift),   out = sum weight v / sum weight
///
/// holds for any shift of a row that keeps the weights within the range of the format. So the shift need not follow
/// every new maximum: it is raised either at each one (raise, then weigh), or only when weights turn out too large
/// (weigh, has_outgrown, raise, weigh again). Each row has its own shift: the result of a query does not depend on its
/// neighbours.
///
/// Source    Milakov & Gimelshein 2018, arXiv:1805.02867. Departs in the shift, which may lag behind the maximum.
/// Numerics  scores, sums and shifts in float. The relative error of a weight does not depend on the shift; bf16 and
///           fp16 can represent kMaxSum. NaN scores give NaN weights and sums either way.
#pragma once

#include <cmath>

#include "kernels/cuda/registers.hpp"

namespace tessera::kernels::detail::hopper_forward {

using namespace cuda;

/// Hides scores beyond the mask: those of row g (of row g + 8: 8 more) behind column `last_seen` and those behind
/// `last_key`, both counted from this lane's first column.
template <int kCount>
TESSERA_DEVICE void hide_unseen(float (&scores)[kCount], int last_seen, int last_key) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int last = min(last_key, last_seen + 8 * (i >> 1 & 1));
    if (8 * (i >> 2) + (i & 1) > last) scores[i] = -INFINITY;
  }
}

struct Rows {
  static constexpr float kMaxSum = 1024;  // over a lane's part of a tile; beyond it the shift moves

  float top[2] = {-INFINITY, -INFINITY};  // the score whose weight is 1
  float shift[2] = {0, 0};                // top * scale_log2; 0 where nothing was seen
  float sum[2] = {0, 0};                  // of the weights of this lane's columns

  /// Raises the tops of the rows selected by `moves` to the largest of these scores. A row's four lanes agree. The
  /// caller multiplies the outputs so far by `shrink`, 2^(old shift - new shift).
  template <int kCount>
  TESSERA_DEVICE void raise(const float (&scores)[kCount], float scale_log2, float (&shrink)[2],
                            const bool (&moves)[2] = {true, true}) {
    float part[4];  // four independent chains, against latency
#pragma unroll
    for (int i = 0; i < 4; ++i) part[i] = scores[i];
#pragma unroll
    for (int i = 4; i < kCount; ++i) part[i & 3] = fmaxf(part[i & 3], scores[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float cap = moves[r] ? INFINITY : -INFINITY;  // a branch here would cost the loop around its registers
      const float raised = quad_max(fmaxf(top[r], fminf(fmaxf(part[2 * r], part[2 * r + 1]), cap)));
      const float before = shift[r];
      shift[r] = raised == -INFINITY ? 0 : raised * scale_log2;  // nothing seen yet: every weight is 0
      shrink[r] = exp2_approx(top[r] == -INFINITY ? -INFINITY : before - shift[r]);
      top[r] = raised;
      sum[r] *= shrink[r];
    }
  }

  /// Weights as pairs of Scalar, and their sums over this lane, not yet added to the rows' sums.
  template <class Scalar, int kCount, int kWords>
  TESSERA_DEVICE void weigh(const float (&scores)[kCount], float scale_log2, std::uint32_t (&weights)[kWords],
                            float (&sums)[2]) const {
    static_assert(kCount <= 2 * kWords);
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const int r = i >> 1 & 1;
      const float a = exp2_approx(fmaf(scores[i], scale_log2, -shift[r]));
      const float b = exp2_approx(fmaf(scores[i + 1], scale_log2, -shift[r]));
      sums[r] = i < 4 ? a + b : sums[r] + (a + b);
      weights[i / 2] = pack<Scalar>(a, b);
    }
  }

  /// Whether weights of any row of the warp are too large to use. No term of a sum exceeds the sum.
  TESSERA_DEVICE static bool has_outgrown(const float (&sums)[2]) {
    return __any_sync(0xffffffffu, sums[0] > kMaxSum || sums[1] > kMaxSum);
  }
  TESSERA_DEVICE void add(const float (&sums)[2]) { sum[0] += sums[0], sum[1] += sums[1]; }
};

}  // namespace tessera::kernels::detail::hopper_forward
