#include "kernels/attention/flash2/ampere/forward.hpp"  // the contract is there; here is the choice of a width

#include "kernels/attention/check.hpp"
#include "kernels/attention/flash2/ampere/widths.hpp"

namespace tessera::kernels {

template <class Scalar>
void AmpereForward<Scalar>::launch(const Exec& exec) const {
  const auto& [q, k, v, out, lse, scale, causal] = task;
  detail::require_forward_tensors("ampere attention forward", task, 256);
  TESSERA_REQUIRE(supports(q.extent_int(3)), "ampere attention forward: D must be a multiple of 8 up to 256",
                  q.extent(3));
  TESSERA_REQUIRE(scale > 0, "ampere attention forward: scale must be positive", scale);
  ampere::require_aligned_rows("ampere attention forward: rows of q must start at multiples of 16 bytes", q);
  ampere::require_aligned_rows("ampere attention forward: rows of k must start at multiples of 16 bytes", k);
  ampere::require_aligned_rows("ampere attention forward: rows of v must start at multiples of 16 bytes", v);
  ampere::require_aligned_rows("ampere attention forward: rows of out must start at multiples of 16 bytes", out);
  if (q.extent(0) * q.extent(1) * q.extent(2) == 0) return;
  ampere::for_width<ampere::kMinForward>(q.extent_int(3),
                                         [&]<int kWidth>() { ampere::launch_forward<Scalar, kWidth>(exec, task); });
}

template struct AmpereForward<bfloat16>;
template struct AmpereForward<float16>;

}  // namespace tessera::kernels
