#include "kernels/attention/flash2/ampere/backward.hpp"  // the contract is there; here is the choice of a width

#include "kernels/attention/check.hpp"
#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/attention/flash2/ampere/widths.hpp"
#include "kernels/cuda/target.hpp"

namespace tessera::kernels {

template <class Scalar>
bool AmpereBackward<Scalar>::supports(int D) {
  return ampere::supports_backward(kBuiltTarget, D);
}

template <class Scalar>
std::int64_t AmpereBackward<Scalar>::workspace_bytes(int B, int H, int Tq, int D) {
  return ampere::backward_workspace_bytes(B, H, Tq, D);
}

template <class Scalar>
void AmpereBackward<Scalar>::launch(const Exec& exec) const {
  const auto& [q, k, v, out, lse, d_out, d_q, d_k, d_v, scale, causal] = task;
  detail::require_backward_tensors("ampere attention backward", task, 256);
  TESSERA_REQUIRE(supports(q.extent_int(3)),
                  "ampere attention backward: D must be a multiple of 8 up to 256 (less on chips with less scratch)",
                  q.extent(3));
  TESSERA_REQUIRE(scale > 0, "ampere attention backward: scale must be positive", scale);
  ampere::require_aligned_rows("ampere attention backward: rows of q must start at multiples of 16 bytes", q);
  ampere::require_aligned_rows("ampere attention backward: rows of k must start at multiples of 16 bytes", k);
  ampere::require_aligned_rows("ampere attention backward: rows of v must start at multiples of 16 bytes", v);
  ampere::require_aligned_rows("ampere attention backward: rows of out must start at multiples of 16 bytes", out);
  ampere::require_aligned_rows("ampere attention backward: rows of d_out must start at multiples of 16 bytes", d_out);
  ampere::require_aligned_rows("ampere attention backward: rows of d_q must start at multiples of 16 bytes", d_q);
  ampere::require_aligned_rows("ampere attention backward: rows of d_k must start at multiples of 16 bytes", d_k);
  ampere::require_aligned_rows("ampere attention backward: rows of d_v must start at multiples of 16 bytes", d_v);
  if (q.extent(0) * q.extent(1) == 0) return;
  detail::require_workspace("ampere attention backward: workspace_bytes() are needed, on a multiple of 16", workspace,
                            workspace_bytes(q.extent_int(0), q.extent_int(1), q.extent_int(2), q.extent_int(3)), 16);
  ampere::for_width<ampere::kMinBackward>(q.extent_int(3),
                                          [&]<int kWidth>() { ampere::launch_backward<Scalar, kWidth>(exec, *this); });
}

template struct AmpereBackward<bfloat16>;
template struct AmpereBackward<float16>;

}  // namespace tessera::kernels
