#include "kernels/attention/flash2/ampere/forward.hpp"  // the contract is there; here is the choice of a width

#include "kernels/attention/check.hpp"
#include "kernels/attention/flash2/ampere/float_forward.hpp"
#include "kernels/attention/flash2/ampere/widths.hpp"
#include "kernels/cuda/target.hpp"

namespace tessera::kernels {

namespace {

template <class Scalar>
void require_task(const ForwardTask<Kokkos::Cuda, Scalar>& task, bool is_supported) {
  const auto& [q, k, v, out, lse, scale, causal] = task;
  detail::require_forward_tensors("ampere attention forward", task, 256);
  TESSERA_REQUIRE(is_supported, "ampere attention forward: D must be a multiple of 8 up to 256", q.extent(3));
  TESSERA_REQUIRE(scale > 0, "ampere attention forward: scale must be positive", scale);
  ampere::require_aligned_rows("ampere attention forward: rows of q must start at multiples of 16 bytes", q);
  ampere::require_aligned_rows("ampere attention forward: rows of k must start at multiples of 16 bytes", k);
  ampere::require_aligned_rows("ampere attention forward: rows of v must start at multiples of 16 bytes", v);
  ampere::require_aligned_rows("ampere attention forward: rows of out must start at multiples of 16 bytes", out);
}

}  // namespace

template <class Scalar>
void AmpereForward<Scalar>::launch(const Exec& exec) const {
  const auto& q = task.q;
  require_task(task, supports(q.extent_int(3)));
  if (q.extent(0) * q.extent(1) * q.extent(2) == 0) return;
  ampere::for_width<ampere::kMinForward>(q.extent_int(3),
                                         [&]<int kWidth>() { ampere::launch_forward<Scalar, kWidth>(exec, task); });
}

bool AmpereFloatForward::supports(int D) { return ampere::supports_float_forward(kBuiltTarget, D); }

void AmpereFloatForward::launch(const Exec& exec) const {
  const auto& q = task.q;
  require_task(task, supports(q.extent_int(3)));
  TESSERA_REQUIRE(products == 1 || products == 3, "ampere attention forward: float takes 1 or 3 TF32 products",
                  products);
  if (q.extent(0) * q.extent(1) * q.extent(2) == 0) return;
  ampere::for_width<ampere::kMinForward>(q.extent_int(3), [&]<int kWidth>() {
    if (products == 3) {
      ampere::launch_float_forward<3, kWidth>(exec, task);
    } else {
      ampere::launch_float_forward<1, kWidth>(exec, task);
    }
  });
}

template struct AmpereForward<bfloat16>;
template struct AmpereForward<float16>;

}  // namespace tessera::kernels
