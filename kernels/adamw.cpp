#include "kernels/adamw.hpp"

#include <algorithm>
#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {

std::vector<AdamwBlock> make_adamw_blocks(const std::vector<AdamwSpan>& spans) {
  std::vector<AdamwSpan> sorted = spans;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<AdamwBlock> blocks;
  std::int64_t end = 0;
  for (const auto& [first, count, decay] : sorted) {
    TESSERA_REQUIRE(first >= 0 && count >= 0, "adamw: a span must not be negative", first, count);
    TESSERA_REQUIRE(count == 0 || first >= end, "adamw: spans must not overlap", first, end);
    for (std::int64_t done = 0; done < count; done += kAdamwBlock) {
      const auto block = static_cast<std::int32_t>(std::min<std::int64_t>(kAdamwBlock, count - done));
      blocks.push_back({first + done, block, decay});
    }
    end = std::max(end, first + count);
  }
  return blocks;
}

template <class Exec, class Scalar>
void AdamwUpdate<Exec, Scalar>::launch(const Exec& exec) const {
  const std::size_t n = master.extent(0);
  TESSERA_REQUIRE(grad.extent(0) == n, "adamw: grad must be [n] like master", grad.extent(0), n);
  TESSERA_REQUIRE(m.extent(0) == n && v.extent(0) == n, "adamw: m and v must be [n] like master", m.extent(0),
                  v.extent(0), n);
  const bool param_fits = param.data() ? param.extent(0) == n : std::is_same_v<Scalar, Real>;
  TESSERA_REQUIRE(param_fits, "adamw: param must be [n] like master; only where they have one type may it be empty",
                  param.extent(0), n);
  TESSERA_REQUIRE(scalars.data(), "adamw: scalars are missing");
  if (blocks.extent(0) == 0) return;
  Kokkos::parallel_for("tessera::adamw::update", Policy(exec, blocks.extent_int(0), Kokkos::AUTO), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void AdamwUpdate<Exec, Scalar>::operator()(const Member& team) const {
  const AdamwScalars now = scalars();
  if (now.skip != 0) return;
  const AdamwBlock block = blocks(team.league_rank());
  const std::int64_t first = block.first;
  const double decayed = block.decay ? 1.0 - now.learning_rate * static_cast<double>(weight_decay) : 1.0;
  const Real keep = static_cast<Real>(decayed);
  const Real step = static_cast<Real>(now.learning_rate / now.bias1);
  const Real root_scale = static_cast<Real>(1.0 / kernels::sqrt(now.bias2));
  const Real grad_scale = static_cast<Real>(now.grad_scale);

  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, block.count), [&](int i) {
    const Real g = grad_scale * grad(first + i);
    const Real new_m = beta1 * m(first + i) + (Real(1) - beta1) * g;
    const Real new_v = beta2 * v(first + i) + (Real(1) - beta2) * g * g;
    m(first + i) = new_m;
    v(first + i) = new_v;
    master(first + i) = keep * master(first + i) - step * new_m / (kernels::sqrt(new_v) * root_scale + eps);
  });
  if (param.data()) {  // an element keeps its thread, so there is no barrier
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, block.count),
                         [&](int i) { param(first + i) = static_cast<Scalar>(master(first + i)); });
  }
}

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct AdamwUpdate<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
