#include "kernels/attention/flash2/hopper/forward.hpp"  // the contract is there; here is how

#include "kernels/attention/check.hpp"
#include "kernels/attention/flash2/hopper/forward_order.hpp"
#include "kernels/attention/flash2/hopper/forward_team.hpp"
#include "kernels/attention/flash2/hopper/sizes.hpp"
#include "kernels/core/math.hpp"
#include "kernels/cuda/large_scratch.hpp"
#include "kernels/cuda/tma.hpp"

#include <algorithm>

namespace tessera::kernels {
namespace detail::hopper_forward {

template <class Kernel, int D, class Scalar>
void launch_kernel(const Kokkos::Cuda& exec, const HopperForward<Scalar>& problem, const TileOrder& order) {
  const auto& a = problem.task;
  const int Tq = a.q.extent_int(2), Tk = a.k.extent_int(2);
  constexpr int kUnbounded = 1 << 29;
  const Kernel kernel{.q_map = head_tensor_map<D>(a.q, Kernel::kQueryTile),
                      .k_map = head_tensor_map<D>(a.k, Kernel::kKeys),
                      .v_map = head_tensor_map<D>(a.v, Kernel::kKeys),
                      .out = a.out.data(),
                      .out_b = static_cast<long>(a.out.stride(0)),
                      .out_h = static_cast<long>(a.out.stride(1)),
                      .out_t = static_cast<long>(a.out.stride(2)),
                      .lse = a.lse.data(),
                      .tile_counter = problem.tile_counter.data(),
                      .order = order,
                      .H = a.q.extent_int(1),
                      .Tq = Tq,
                      .Tk = Tk,
                      .diagonal = a.causal ? Tk - Tq : kUnbounded,
                      .scale = a.scale,
                      .scale_log2 = a.scale * kLog2e<>};
  enable_large_scratch<Kernel, typename Kernel::Policy>();
  const int teams = std::min(exec.cuda_device_prop().multiProcessorCount, order.tiles());
  const auto bytes = aligned_scratch_bytes(Kernel::kPadBytes, Kernel::kPadAlignment);
  Kokkos::parallel_for("tessera::attention::flash2::hopper_forward",
                       typename Kernel::Policy(exec, teams, Kernel::kThreads / kWarpLanes, int{kWarpLanes})
                           .set_scratch_size(0, Kokkos::PerTeam(bytes)),
                       kernel);
}

/// The result without keys, which a tensor map cannot describe.
template <class Scalar>
void write_keyless(const Kokkos::Cuda& exec, const ForwardTask<Kokkos::Cuda, Scalar>& a) {
  const auto out = a.out;
  const auto lse = a.lse;
  Kokkos::parallel_for(
      "tessera::attention::flash2::hopper_forward[no keys]",
      Kokkos::MDRangePolicy<Kokkos::Cuda, Kokkos::Rank<3>>(exec, {0, 0, 0},
                                                           {out.extent_int(0), out.extent_int(1), out.extent_int(2)}),
      KOKKOS_LAMBDA(int b, int h, int t) {
        for (int d = 0; d < out.extent_int(3); ++d) out(b, h, t, d) = Scalar(0.0f);
        lse(b, h, t) = -INFINITY;
      });
}

}  // namespace detail::hopper_forward

template <class Scalar>
bool HopperForward<Scalar>::runs_on(const Kokkos::Cuda& exec) {
  return cuda::kBuiltForHopper && exec.cuda_device_prop().major == 9;
}

template <class Scalar>
bool HopperForward<Scalar>::supports(int D) {
  return detail::hopper_forward::supports(D);
}

template <class Scalar>
bool HopperForward<Scalar>::accepts() const {
  return cuda::is_copyable(task.q) && cuda::is_copyable(task.k) && cuda::is_copyable(task.v) &&
         cuda::is_copyable(task.out);
}

template <class Scalar>
void HopperForward<Scalar>::launch(const Kokkos::Cuda& exec) const {
  const auto& [q, k, v, out, lse, scale, causal] = task;
  detail::require_forward_tensors("hopper forward", task, 256);
  TESSERA_REQUIRE(runs_on(exec), "hopper forward: the device, or the architecture this was built for, is another",
                  exec.cuda_device_prop().major, cuda::kBuiltForHopper);
  TESSERA_REQUIRE(supports(q.extent_int(3)), "hopper forward: no kernel for this head width", q.extent(3));
  TESSERA_REQUIRE(scale > 0, "hopper forward: scale must be positive", scale);
  if (lse.size() == 0) return;
  if (k.extent(2) == 0) return detail::hopper_forward::write_keyless(exec, task);
  TESSERA_REQUIRE(accepts(), "hopper forward: addresses and strides must be multiples of 16 bytes", q.stride(2),
                  k.stride(2), v.stride(2), out.stride(2));
  TESSERA_REQUIRE(tile_counter.data() != nullptr, "hopper forward: tile_counter is missing");

  switch (q.extent_int(3)) {
#define TESSERA_LAUNCH(D, ...)                                                                                 \
  case D: {                                                                                                    \
    using Kernel = detail::hopper_forward::TileKernel<Scalar, D, __VA_ARGS__>;                                 \
    return detail::hopper_forward::launch_kernel<Kernel, D>(exec, *this,                                       \
                                                            detail::hopper_forward::tile_order<Kernel>(task)); \
  }
    TESSERA_FOR_EACH_HOPPER_FORWARD(TESSERA_LAUNCH)
#undef TESSERA_LAUNCH
  }
}

template struct HopperForward<bfloat16>;
template struct HopperForward<float16>;

}  // namespace tessera::kernels
