// Checks the tensors of flash2 in registers and finds the kernels of the head width.
#include "kernels/attention/flash2/register_launch.hpp"

#include "kernels/attention/check.hpp"
#include "kernels/attention/flash2/register_backward.hpp"
#include "kernels/attention/flash2/register_forward.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/packet.hpp"

namespace tessera::kernels {
namespace {

/// Calls launch.operator()<kWidth>() with the width that holds D, one of kRegisterWidths.
template <int kIndex = 0, class Launch>
void with_width(int D, const Launch& launch) {
  if constexpr (kIndex < static_cast<int>(std::size(kRegisterWidths))) {
    constexpr int kWidth = kRegisterWidths[kIndex];
    if (D <= kWidth) return launch.template operator()<kWidth>();
    with_width<kIndex + 1>(D, launch);
  }
}

}  // namespace

template <class Exec, class Scalar>
void RegisterForward<Exec, Scalar>::launch(const Exec& exec) const {
  detail::require_forward_tensors("flash2 forward", task, kMaxHead);
  const bool fits = rows_fit_packets(task.q, task.k, task.v, task.out);
  with_width(task.q.extent_int(3),
             [&]<int kWidth>() { launch_register_forward<Exec, Scalar, kWidth>(exec, task, steps, fits); });
}

template <class Exec, class Scalar>
void RegisterBackward<Exec, Scalar>::launch(const Exec& exec) const {
  detail::require_backward_tensors("flash2 backward", task, kMaxHead);
  const int B = task.q.extent_int(0), H = task.q.extent_int(1), Tq = task.q.extent_int(2), D = task.q.extent_int(3);
  detail::require_workspace("flash2 backward: the workspace needs RegisterRows::bytes, on a multiple of 16", workspace,
                            RegisterRows<Accum<Scalar>>::bytes(sizeof(Scalar) == 2, B, H, Tq, D), 16);
  const bool fits = rows_fit_packets(task.q, task.k, task.v, task.out, task.d_out, task.d_q, task.d_k, task.d_v);
  with_width(D,
             [&]<int kWidth>() { launch_register_backward<Exec, Scalar, kWidth>(exec, task, workspace.data(), fits); });
}

TESSERA_INSTANTIATE_KERNEL(RegisterForward);
TESSERA_INSTANTIATE_KERNEL(RegisterBackward);

}  // namespace tessera::kernels
