#include "kernels/attention/flash2/tuned_cuda_ampere_backward.hpp"  // the contract is there; here is the choice of a width

#include "kernels/attention/check.hpp"
#include "kernels/attention/flash2/tuned_cuda_ampere_backward_team.hpp"
#include "kernels/attention/flash2/tuned_cuda_ampere_widths.hpp"

namespace tessera::kernels {

template <class Scalar>
bool AmpereBackward<Scalar>::supports(int D) {
  if (D < 8 || D > 256 || D % 8 != 0) return false;
  bool has_room = false;
  ampere::for_width<ampere::kLeastBackward>(D, [&]<int kWidth>() { has_room = ampere::kKeysFit<kWidth>; });
  return has_room;
}

template <class Scalar>
std::int64_t AmpereBackward<Scalar>::workspace_bytes(int B, int H, int Tq, int, int D) {
  std::int64_t bytes = 0;
  ampere::for_width<ampere::kLeastBackward>(
      D, [&]<int kWidth>() { bytes = ampere::BackwardRows::bytes(B, H, Tq, kWidth); });
  return bytes;
}

template <class Scalar>
void AmpereBackward<Scalar>::launch(const Exec& exec) const {
  detail::require_attention_shapes(q, k, 256);
  TESSERA_REQUIRE(supports(q.extent_int(3)),
                  "ampere attention backward: D must be a multiple of 8 up to 256 (less on chips with less scratch)",
                  q.extent(3));
  TESSERA_REQUIRE(scale > 0, "ampere attention backward: scale must be positive", scale);
  detail::require_same_heads("ampere attention backward: q must have a contiguous head width", q, q);
  detail::require_same_heads("ampere attention backward: k must have a contiguous head width", k, k);
  detail::require_same_heads("ampere attention backward: v must have k's shape and a contiguous head width", k, v);
  detail::require_same_heads("ampere attention backward: out must have q's shape and a contiguous head width", q, out);
  detail::require_same_heads("ampere attention backward: d_out must have q's shape and a contiguous head width", q,
                             d_out);
  detail::require_same_heads("ampere attention backward: d_q must have q's shape and a contiguous head width", q, d_q);
  detail::require_same_heads("ampere attention backward: d_k must have k's shape and a contiguous head width", k, d_k);
  detail::require_same_heads("ampere attention backward: d_v must have k's shape and a contiguous head width", k, d_v);
  detail::require_head_rows("ampere attention backward: lse must be [B,H,Tq]", q, lse);
  ampere::require_aligned_rows("ampere attention backward: rows of q must start at multiples of 16 bytes", q);
  ampere::require_aligned_rows("ampere attention backward: rows of k must start at multiples of 16 bytes", k);
  ampere::require_aligned_rows("ampere attention backward: rows of v must start at multiples of 16 bytes", v);
  ampere::require_aligned_rows("ampere attention backward: rows of out must start at multiples of 16 bytes", out);
  ampere::require_aligned_rows("ampere attention backward: rows of d_out must start at multiples of 16 bytes", d_out);
  ampere::require_aligned_rows("ampere attention backward: rows of d_q must start at multiples of 16 bytes", d_q);
  ampere::require_aligned_rows("ampere attention backward: rows of d_k must start at multiples of 16 bytes", d_k);
  ampere::require_aligned_rows("ampere attention backward: rows of d_v must start at multiples of 16 bytes", d_v);
  TESSERA_REQUIRE(q.extent(2) == 0 || (workspace != nullptr && reinterpret_cast<std::uintptr_t>(workspace) % 16 == 0),
                  "ampere attention backward: the workspace must be there and aligned to 16 bytes", workspace);
  if (q.extent(0) * q.extent(1) == 0) return;
  ampere::for_width<ampere::kLeastBackward>(
      q.extent_int(3), [&]<int kWidth>() { ampere::launch_backward<Scalar, kWidth>(exec, *this); });
}

template struct AmpereBackward<bfloat16>;
template struct AmpereBackward<float16>;

}  // namespace tessera::kernels
