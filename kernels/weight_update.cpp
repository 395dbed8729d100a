#include "kernels/weight_update.hpp"

#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/random.hpp"
#include "kernels/core/require.hpp"
#include "kernels/master_weights.hpp"
#include "kernels/core/team.hpp"
#include "kernels/optimizers.hpp"

namespace tessera::kernels {

template <class Rule, class Exec, class Scalar, class Grad, class Moment, bool kHasMaster>
void WeightUpdate<Rule, Exec, Scalar, Grad, Moment, kHasMaster>::launch(const Exec& exec) const {
  const std::size_t n = moments[0].extent(0);
  bool fit = packets_fit(1, 1, master.data(), param.data(), grad.data());
  for (const auto& moment : moments) {
    require_shape("update: moments must be [n]", moment, n);
    fit = fit && packets_fit(1, 1, moment.data());
  }
  const bool master_fits = !kHasMaster    ? param.data() && !master.data()
                           : param.data() ? master.extent(0) == n
                                          : std::is_same_v<Scalar, Real>;
  TESSERA_REQUIRE(master_fits,
                  "update: master must be [n] like the moments; only where it has param's type may param be empty",
                  master.extent(0), n);
  TESSERA_REQUIRE(scalars.data(), "update: scalars are missing");
  if (blocks.extent(0) == 0) return;
  in_packets<Exec, Real>(fit, [&](auto how) {
    using Policy = Kokkos::TeamPolicy<Exec, decltype(how)>;
    Kokkos::parallel_for(Rule::kLaunch, team_policy<Policy>(exec, blocks.extent_int(0)), *this);
  });
}

template <class Rule, class Exec, class Scalar, class Grad, class Moment, bool kHasMaster>
template <int kWidth>
KOKKOS_FUNCTION void WeightUpdate<Rule, Exec, Scalar, Grad, Moment, kHasMaster>::operator()(InPackets<kWidth>,
                                                                                            const Member& team) const {
  const UpdateScalars now = scalars();
  if (now.skip != 0) return;
  const UpdateBlock block = blocks(team.league_rank());
  const double decayed = block.decay ? 1.0 - now.learning_rate * static_cast<double>(keys.weight_decay) : 1.0;
  const Factors by{static_cast<Real>(decayed), static_cast<Real>(now.grad_scale), Rule::factors(now, keys),
                   mix(now.noise)};

  const bool fits = block.param % kWidth == 0 && block.grad % kWidth == 0 && block.state % kWidth == 0;
  const int packets = fits ? block.count / kWidth : 0;
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, packets),
                       [&](int p) { update<kWidth>(by, block, std::int64_t{p} * kWidth); });
  if constexpr (kWidth > 1) {
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, packets * kWidth, block.count),
                         [&](int i) { update<1>(by, block, i); });
  }
  if constexpr (kRoundsAfterwards) {  // a loop with four outputs does not vectorise; elements keep their threads
    if (!param.data()) return;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, block.count),
                         [&](int i) { param(block.param + i) = static_cast<Scalar>(master(block.state + i)); });
  }
}

/// Updates elements i .. i + kWidth - 1 of a block. Every fused multiply-add is explicit: the compiler's own
/// contractions differ between widths, and no bit of the result may depend on how a span was cut. With
/// kRoundsAfterwards the working copy is left to the caller.
template <class Rule, class Exec, class Scalar, class Grad, class Moment, bool kHasMaster>
template <int kWidth>
KOKKOS_FORCEINLINE_FUNCTION void WeightUpdate<Rule, Exec, Scalar, Grad, Moment, kHasMaster>::update(
    const Factors& by, const UpdateBlock& block, std::int64_t i) const {
  const std::int64_t at_param = block.param + i, at_state = block.state + i, at_master = master_of(block) + i;
  const auto grad_p = load<kWidth>(&grad(block.grad + i));
  Packet<Moment, kWidth> moments_p[kMoments];
  for (int k = 0; k < kMoments; ++k) moments_p[k] = load<kWidth>(&moments[k](at_state));
  Packet<MasterWord<Scalar>, kWidth> master_p;
  if constexpr (kHasMaster) master_p = load<kWidth>(&master(at_master));
  Packet<Scalar, kWidth> param_p;
  if constexpr (kHasHalves || !kHasMaster) param_p = load<kWidth>(&param(at_param));
  for (int j = 0; j < kWidth; ++j) {
    const Real g = by.grad_scale * grad_p[j];
    Real moment[kMoments];
    for (int k = 0; k < kMoments; ++k) moment[k] = moments_p[k][j];
    const Real update = Rule::update(by.rule, g, moment);
    std::uint64_t random = 0;  // 16 bits for each of weight and moments
    if constexpr (kHasNarrowMoments || !kHasMaster) {
      random = mix(by.noise ^ static_cast<std::uint64_t>(block.index + i + j));
    }
    for (int k = 0; k < kMoments; ++k) {
      if constexpr (kHasNarrowMoments) {
        set_stored(moments_p[k], j, round_stochastically(moment[k], random >> (16 * (k + 1))));
      } else {
        moments_p[k].set(j, moment[k]);
      }
    }
    if constexpr (!kHasMaster) {
      set_stored(param_p, j, round_stochastically(kernels::fma(by.keep, param_p[j], -update), random));
    } else if constexpr (kHasHalves) {
      const FloatHalves halves = cut(kernels::fma(by.keep, join(stored(param_p, j), stored(master_p, j)), -update));
      set_stored(param_p, j, halves.upper);
      set_stored(master_p, j, halves.lower);
    } else {
      const Real moved = kernels::fma(by.keep, master_p[j], -update);
      master_p.set(j, moved);
      param_p.set(j, moved);
    }
  }
  for (int k = 0; k < kMoments; ++k) store(&moments[k](at_state), moments_p[k]);
  if constexpr (kHasMaster) store(&master(at_master), master_p);
  if (!kRoundsAfterwards && param.data()) store(&param(at_param), param_p);
}

#define TESSERA_INSTANTIATE(kind, Rule)                                         \
  template struct WeightUpdate<Rule, Device, double>;                           \
  template struct WeightUpdate<Rule, Device, float>;                            \
  template struct WeightUpdate<Rule, Device, float16>;                          \
  template struct WeightUpdate<Rule, Device, bfloat16>;                         \
  template struct WeightUpdate<Rule, Device, bfloat16, bfloat16>;               \
  template struct WeightUpdate<Rule, Device, float, float, bfloat16>;           \
  template struct WeightUpdate<Rule, Device, float16, float, bfloat16>;         \
  template struct WeightUpdate<Rule, Device, bfloat16, float, bfloat16>;        \
  template struct WeightUpdate<Rule, Device, bfloat16, bfloat16, bfloat16>;     \
  template struct WeightUpdate<Rule, Device, bfloat16, float, float, false>;    \
  template struct WeightUpdate<Rule, Device, bfloat16, float, bfloat16, false>; \
  template struct WeightUpdate<Rule, Device, bfloat16, bfloat16, float, false>; \
  template struct WeightUpdate<Rule, Device, bfloat16, bfloat16, bfloat16, false>;
TESSERA_FOR_EACH_OPTIMIZER(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
