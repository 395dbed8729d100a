#include "kernels/attention/flash2/ampere/backward.hpp"  // the contract is there; here is the choice of a width

#include "kernels/attention/check.hpp"
#include "kernels/attention/flash2/ampere/float_backward.hpp"
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

namespace {

template <class Scalar>
void require_task(const BackwardTask<Kokkos::Cuda, Scalar>& task, bool is_supported) {
  const auto& [q, k, v, out, lse, d_out, d_q, d_k, d_v, scale, causal] = task;
  detail::require_backward_tensors("ampere attention backward", task, 256);
  TESSERA_REQUIRE(is_supported,
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
}

void require_workspace(const Vector<std::byte, Kokkos::Cuda>& workspace, std::int64_t bytes) {
  detail::require_workspace("ampere attention backward: workspace_bytes() are needed, on a multiple of 16", workspace,
                            bytes, 16);
}

}  // namespace

template <class Scalar>
void AmpereBackward<Scalar>::launch(const Exec& exec) const {
  const auto& q = task.q;
  require_task(task, supports(q.extent_int(3)));
  if (q.extent(0) * q.extent(1) == 0) return;
  require_workspace(workspace, workspace_bytes(q.extent_int(0), q.extent_int(1), q.extent_int(2), q.extent_int(3)));
  ampere::for_width<ampere::kMinBackward>(q.extent_int(3),
                                          [&]<int kWidth>() { ampere::launch_backward<Scalar, kWidth>(exec, *this); });
}

bool AmpereFloatBackward::supports(int D) { return ampere::supports_float_backward(kBuiltTarget, D); }

std::int64_t AmpereFloatBackward::workspace_bytes(int B, int H, int Tq) {
  return ampere::float_workspace_bytes(B, H, Tq);
}

void AmpereFloatBackward::launch(const Exec& exec) const {
  const auto& q = task.q;
  require_task(task, supports(q.extent_int(3)));
  TESSERA_REQUIRE(products == 1 || products == 3, "ampere attention backward: float takes 1 or 3 TF32 products",
                  products);
  if (q.extent(0) * q.extent(1) == 0) return;
  require_workspace(workspace, workspace_bytes(q.extent_int(0), q.extent_int(1), q.extent_int(2)));
  ampere::for_width<ampere::kMinBackward>(q.extent_int(3), [&]<int kWidth>() {
    if (products == 3) {
      ampere::launch_float_backward<3, kWidth>(exec, *this);
    } else {
      ampere::launch_float_backward<1, kWidth>(exec, *this);
    }
  });
}

template struct AmpereBackward<bfloat16>;
template struct AmpereBackward<float16>;

}  // namespace tessera::kernels
