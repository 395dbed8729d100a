#include "kernels/cross_entropy.hpp"

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {
namespace detail {

// A float maximum does not vectorise while NaN keeps its meaning. The bits of a float, read as an integer with the
// magnitude of negative numbers flipped, sort like the floats do, and an integer maximum does vectorise.
template <class Real>
using OrderKey = std::conditional_t<sizeof(Real) == 4, std::int32_t, std::int64_t>;

template <class Real>
KOKKOS_INLINE_FUNCTION OrderKey<Real> flip_negative(OrderKey<Real> bits) {
  constexpr int sign = 8 * sizeof(Real) - 1;
  return bits ^ ((bits >> sign) & ~(OrderKey<Real>(1) << sign));
}
template <class Real>
KOKKOS_INLINE_FUNCTION OrderKey<Real> order_key(Real value) {
  return flip_negative<Real>(std::bit_cast<OrderKey<Real>>(value));
}
template <class Real>
KOKKOS_INLINE_FUNCTION Real value_of_key(OrderKey<Real> key) {
  return std::bit_cast<Real>(flip_negative<Real>(key));
}

}  // namespace detail

template <class Exec, class Scalar>
void CrossEntropy<Exec, Scalar>::launch(const Exec& exec) const {
  const int n = logits.extent_int(0);
  TESSERA_REQUIRE(targets.extent_int(0) == n, "cross entropy: targets must be [n], one per row of logits",
                  targets.extent(0), n);
  TESSERA_REQUIRE(row_loss.extent_int(0) == n, "cross entropy: row_loss must be [n], one per row of logits",
                  row_loss.extent(0), n);
  TESSERA_REQUIRE(!write_gradient || grad_scale.data(), "cross entropy: a gradient needs grad_scale");
  if (n == 0) return;
  TESSERA_REQUIRE(logits.extent_int(1) > 0, "cross entropy: the vocabulary is empty", logits.extent(1));
  Kokkos::parallel_for(
      write_gradient ? "tessera::cross_entropy::loss_and_gradient" : "tessera::cross_entropy::loss",
      Policy(exec, n, Kokkos::AUTO).set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(kTile))), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void CrossEntropy<Exec, Scalar>::operator()(const Member& team) const {
  using Key = detail::OrderKey<Real>;
  const int i = team.league_rank(), V = logits.extent_int(1), target = targets(i);
  KOKKOS_ASSERT(-1 <= target && target < V);

  if (target < 0) {  // ignored
    if (write_gradient) {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, V), [&](int v) { logits(i, v) = Scalar(Real(0)); });
    }
    Kokkos::single(Kokkos::PerTeam(team), [&] { row_loss(i) = Real(0); });
    return;
  }
  const Real target_logit = static_cast<Real>(logits(i, target));

  // 1. running maximum and sum of exponentials, tile by tile; the most negative number stands for "nothing yet"
  //    because -infinity - (-infinity) would be NaN
  Pad<Real, Exec> tile(team.team_scratch(0), kTile);
  Real row_max = Kokkos::reduction_identity<Real>::max(), row_sum = 0;
  for (int first = 0; first < V; first += kTile) {
    const int columns = V - first < kTile ? V - first : kTile;
    Key max_key;
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, columns),
        [&](int v, Key& best) {
          tile(v) = static_cast<Real>(logits(i, first + v));
          const Key key = detail::order_key(tile(v));
          best = key > best ? key : best;
        },
        Kokkos::Max<Key>(max_key));
    const Real tile_max = detail::value_of_key<Real>(max_key), new_max = tile_max > row_max ? tile_max : row_max;
    Real tile_sum = 0;  // exponentials first, then their sum: only apart do both loops vectorise
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int v) { tile(v) = fast_exp(tile(v) - new_max); });
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, columns), [&](int v, Real& sum) { sum += tile(v); }, tile_sum);
    row_sum = row_sum * fast_exp(row_max - new_max) + tile_sum;
    row_max = new_max;
  }
  Kokkos::single(Kokkos::PerTeam(team), [&] { row_loss(i) = kernels::log(row_sum) - (target_logit - row_max); });
  if (!write_gradient) return;

  // 2. the gradient, in place; the barrier keeps it behind every lane's look at the target's logit
  team.team_barrier();
  const Real scale = grad_scale(), softmax_scale = scale / row_sum;
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, V), [&](int v) {
    const Real probability = softmax_scale * fast_exp(static_cast<Real>(logits(i, v)) - row_max);
    logits(i, v) = static_cast<Scalar>(probability - (v == target ? scale : Real(0)));
  });
}

template <class Exec, class Scalar>
void LossSum<Exec, Scalar>::launch(const Exec& exec) const {
  TESSERA_REQUIRE(total.data(), "loss sum: total is missing");
  if (row_loss.extent(0) == 0) return;
  Kokkos::parallel_for("tessera::cross_entropy::loss_sum", Policy(exec, 1, Kokkos::AUTO), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void LossSum<Exec, Scalar>::operator()(const Member& team) const {
  double chunk = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, row_loss.extent_int(0)),
      [&](int i, double& sum) { sum += static_cast<double>(row_loss(i)); }, chunk);
  Kokkos::single(Kokkos::PerTeam(team), [&] { total() += chunk; });
}

#define TESSERA_INSTANTIATE(Exec, Scalar)     \
  template struct CrossEntropy<Exec, Scalar>; \
  template struct LossSum<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
