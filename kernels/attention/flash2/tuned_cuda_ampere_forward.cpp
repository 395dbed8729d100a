#include "kernels/attention/flash2/tuned_cuda_ampere_forward.hpp"  // the contract is there; here is the choice of a width

#include "kernels/attention/check.hpp"
#include "kernels/attention/flash2/tuned_cuda_ampere_widths.hpp"

namespace tessera::kernels {

template <class Scalar>
void AmpereForward<Scalar>::launch(const Exec& exec) const {
  detail::require_attention_shapes(q, k, 256);
  TESSERA_REQUIRE(supports(q.extent_int(3)), "ampere attention forward: D must be a multiple of 8 up to 256",
                  q.extent(3));
  TESSERA_REQUIRE(scale > 0, "ampere attention forward: scale must be positive", scale);
  detail::require_same_heads("ampere attention forward: q must have a contiguous head width", q, q);
  detail::require_same_heads("ampere attention forward: k must have a contiguous head width", k, k);
  detail::require_same_heads("ampere attention forward: v must have k's shape and a contiguous head width", k, v);
  detail::require_same_heads("ampere attention forward: out must have q's shape and a contiguous head width", q, out);
  detail::require_head_rows("ampere attention forward: lse must be [B,H,Tq]", q, lse);
  ampere::require_aligned_rows("ampere attention forward: rows of q must start at multiples of 16 bytes", q);
  ampere::require_aligned_rows("ampere attention forward: rows of k must start at multiples of 16 bytes", k);
  ampere::require_aligned_rows("ampere attention forward: rows of v must start at multiples of 16 bytes", v);
  ampere::require_aligned_rows("ampere attention forward: rows of out must start at multiples of 16 bytes", out);
  if (q.extent(0) * q.extent(1) * q.extent(2) == 0) return;
  ampere::for_width<ampere::kLeastForward>(q.extent_int(3),
                                           [&]<int kWidth>() { ampere::launch_forward<Scalar, kWidth>(exec, *this); });
}

template struct AmpereForward<bfloat16>;
template struct AmpereForward<float16>;

}  // namespace tessera::kernels
