#include "kernels/adamw.hpp"

#include <algorithm>
#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/random.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/stochastic_rounding.hpp"
#include "kernels/core/team.hpp"

namespace tessera::kernels {

namespace {

/// Sorts spans by their begin `first`, and rejects spans that overlap there.
void require_disjoint(std::vector<AdamwSpan>& spans, std::int64_t AdamwSpan::*first) {
  std::sort(spans.begin(), spans.end(), [&](const auto& a, const auto& b) { return a.*first < b.*first; });
  std::int64_t end = 0;
  for (const AdamwSpan& span : spans) {
    TESSERA_REQUIRE(span.*first >= 0 && span.count >= 0, "adamw: a span must not be negative", span.*first, span.count);
    TESSERA_REQUIRE(span.count == 0 || span.*first >= end, "adamw: spans must not overlap", span.*first, end);
    end = std::max(end, span.*first + span.count);
  }
}

}  // namespace

std::vector<AdamwBlock> make_adamw_blocks(const std::vector<AdamwSpan>& spans) {
  std::vector<AdamwSpan> sorted = spans;
  require_disjoint(sorted, &AdamwSpan::state);
  require_disjoint(sorted, &AdamwSpan::param);
  std::vector<AdamwBlock> blocks;
  for (const AdamwSpan& span : sorted) {
    for (std::int64_t block = 0; block < adamw_blocks(span.count); ++block) {
      const std::int64_t done = block * kAdamwBlock;
      const auto count = static_cast<std::int32_t>(std::min(kAdamwBlock, span.count - done));
      blocks.push_back({span.param + done, span.grad + done, span.state + done, count, span.decay, span.index + done});
    }
  }
  return blocks;
}

template <class Exec, class Scalar, class Grad, class Moment, bool kHasMaster>
void AdamwUpdate<Exec, Scalar, Grad, Moment, kHasMaster>::launch(const Exec& exec) const {
  const std::size_t n = m.extent(0);
  TESSERA_REQUIRE(v.extent(0) == n, "adamw: v must be [n] like m", v.extent(0), n);
  const bool master_fits = !kHasMaster    ? param.data() && !master.data()
                           : param.data() ? master.extent(0) == n
                                          : std::is_same_v<Scalar, Real>;
  TESSERA_REQUIRE(master_fits, "adamw: master must be [n] like m; only where it has param's type may param be empty",
                  master.extent(0), n);
  TESSERA_REQUIRE(scalars.data(), "adamw: scalars are missing");
  if (blocks.extent(0) == 0) return;
  const bool fit = packets_fit(1, 1, master.data(), param.data(), grad.data(), m.data(), v.data());
  in_packets<Exec, Real>(fit, [&](auto how) {
    using Policy = Kokkos::TeamPolicy<Exec, decltype(how)>;
    Kokkos::parallel_for("tessera::adamw::update", team_policy<Policy>(exec, blocks.extent_int(0)), *this);
  });
}

template <class Exec, class Scalar, class Grad, class Moment, bool kHasMaster>
template <int kWidth>
KOKKOS_FUNCTION void AdamwUpdate<Exec, Scalar, Grad, Moment, kHasMaster>::operator()(InPackets<kWidth>,
                                                                                     const Member& team) const {
  const AdamwScalars now = scalars();
  if (now.skip != 0) return;
  const AdamwBlock block = blocks(team.league_rank());
  const double decayed = block.decay ? 1.0 - now.learning_rate * static_cast<double>(weight_decay) : 1.0;
  const Factors by{static_cast<Real>(decayed),
                   static_cast<Real>(now.learning_rate / now.bias1),
                   static_cast<Real>(1.0 / kernels::sqrt(now.bias2)),
                   static_cast<Real>(now.grad_scale),
                   static_cast<Real>(beta1),
                   static_cast<Real>(1 - beta1),
                   static_cast<Real>(beta2),
                   static_cast<Real>(1 - beta2),
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
template <class Exec, class Scalar, class Grad, class Moment, bool kHasMaster>
template <int kWidth>
KOKKOS_FORCEINLINE_FUNCTION void AdamwUpdate<Exec, Scalar, Grad, Moment, kHasMaster>::update(const Factors& by,
                                                                                             const AdamwBlock& block,
                                                                                             std::int64_t i) const {
  const std::int64_t at_param = block.param + i, at_state = block.state + i, at_master = master_of(block) + i;
  const auto grad_p = load<kWidth>(&grad(block.grad + i));
  auto m_p = load<kWidth>(&m(at_state)), v_p = load<kWidth>(&v(at_state));
  Packet<MasterWord<Scalar>, kWidth> master_p;
  if constexpr (kHasMaster) master_p = load<kWidth>(&master(at_master));
  Packet<Scalar, kWidth> param_p;
  if constexpr (kHasHalves || !kHasMaster) param_p = load<kWidth>(&param(at_param));
  for (int j = 0; j < kWidth; ++j) {
    const Real g = by.grad_scale * grad_p[j];
    const Real new_m = kernels::fma(by.beta1, m_p[j], by.rest1 * g);
    const Real new_v = kernels::fma(by.beta2, v_p[j], by.rest2 * g * g);
    const Real update = by.step * new_m / kernels::fma(kernels::sqrt(new_v), by.root_scale, eps);
    std::uint64_t random = 0;  // 16 bits for each of weight and moments
    if constexpr (kHasNarrowMoments || !kHasMaster) {
      random = mix(by.noise ^ static_cast<std::uint64_t>(block.index + i + j));
    }
    if constexpr (kHasNarrowMoments) {
      set_stored(m_p, j, round_stochastically(new_m, random >> 16));
      set_stored(v_p, j, round_stochastically(new_v, random >> 32));
    } else {
      m_p.set(j, new_m);
      v_p.set(j, new_v);
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
  store(&m(at_state), m_p);
  store(&v(at_state), v_p);
  if constexpr (kHasMaster) store(&master(at_master), master_p);
  if (!kRoundsAfterwards && param.data()) store(&param(at_param), param_p);
}

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct AdamwUpdate<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE
template struct AdamwUpdate<Device, bfloat16, bfloat16>;
template struct AdamwUpdate<Device, float, float, bfloat16>;
template struct AdamwUpdate<Device, float16, float, bfloat16>;
template struct AdamwUpdate<Device, bfloat16, float, bfloat16>;
template struct AdamwUpdate<Device, bfloat16, bfloat16, bfloat16>;
template struct AdamwUpdate<Device, bfloat16, float, float, false>;
template struct AdamwUpdate<Device, bfloat16, float, bfloat16, false>;
template struct AdamwUpdate<Device, bfloat16, bfloat16, float, false>;
template struct AdamwUpdate<Device, bfloat16, bfloat16, bfloat16, false>;

}  // namespace tessera::kernels
