#include "kernels/cross_entropy.hpp"

#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {
namespace detail {

// A float maximum does not vectorise while NaN keeps its meaning. The bits of a float, read as an integer with the
// magnitude of negative numbers flipped, sort like the floats do, and an integer maximum does vectorise.
template <class A>
using OrderKey = std::conditional_t<sizeof(A) == 4, std::int32_t, std::int64_t>;

template <class A>
KOKKOS_INLINE_FUNCTION OrderKey<A> flip_negative(OrderKey<A> bits) {
  constexpr int sign = 8 * sizeof(A) - 1;
  return bits ^ ((bits >> sign) & ~(OrderKey<A>(1) << sign));
}
template <class A>
KOKKOS_INLINE_FUNCTION OrderKey<A> order_key(A value) {
  return flip_negative<A>(std::bit_cast<OrderKey<A>>(value));
}
template <class A>
KOKKOS_INLINE_FUNCTION A value_of_key(OrderKey<A> key) {
  return std::bit_cast<A>(flip_negative<A>(key));
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
      Policy(exec, n, Kokkos::AUTO).set_scratch_size(0, Kokkos::PerTeam(Pad<A, Exec>::shmem_size(kTile))), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void CrossEntropy<Exec, Scalar>::operator()(const Member& team) const {
  using Key = detail::OrderKey<A>;
  const int i = team.league_rank(), V = logits.extent_int(1), target = targets(i);
  KOKKOS_ASSERT(-1 <= target && target < V);

  if (target < 0) {  // ignored
    if (write_gradient) {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, V), [&](int v) { logits(i, v) = static_cast<Scalar>(A(0)); });
    }
    Kokkos::single(Kokkos::PerTeam(team), [&] { row_loss(i) = A(0); });
    return;
  }
  const A target_logit = static_cast<A>(logits(i, target));

  // 1. running maximum and sum of exponentials, tile by tile; the most negative number stands for "nothing yet"
  //    because -infinity - (-infinity) would be NaN
  Pad<A, Exec> tile(team.team_scratch(0), kTile);
  A row_max = Kokkos::reduction_identity<A>::max(), row_sum = 0;
  for (int first = 0; first < V; first += kTile) {
    const int columns = V - first < kTile ? V - first : kTile;
    Key max_key;
    Kokkos::parallel_reduce(Kokkos::TeamVectorRange(team, columns), [&](int v, Key& best) {
      tile(v) = static_cast<A>(logits(i, first + v));
      const Key key = detail::order_key(tile(v));
      best = key > best ? key : best;
    }, Kokkos::Max<Key>(max_key));
    const A tile_max = detail::value_of_key<A>(max_key), new_max = tile_max > row_max ? tile_max : row_max;
    A tile_sum = 0;
    Kokkos::parallel_reduce(Kokkos::TeamVectorRange(team, columns),
                            [&](int v, A& sum) { sum += fast_exp(tile(v) - new_max); }, tile_sum);
    row_sum = row_sum * fast_exp(row_max - new_max) + tile_sum;
    row_max = new_max;
  }
  Kokkos::single(Kokkos::PerTeam(team), [&] { row_loss(i) = kernels::log(row_sum) - (target_logit - row_max); });
  if (!write_gradient) return;

  // 2. the gradient, in place; the barrier keeps it behind every lane's look at the target's logit
  team.team_barrier();
  const A scale = grad_scale(), softmax_scale = scale / row_sum;
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, V), [&](int v) {
    const A probability = softmax_scale * fast_exp(static_cast<A>(logits(i, v)) - row_max);
    logits(i, v) = static_cast<Scalar>(probability - (v == target ? scale : A(0)));
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
  Kokkos::parallel_reduce(Kokkos::TeamVectorRange(team, row_loss.extent_int(0)),
                          [&](int i, double& sum) { sum += static_cast<double>(row_loss(i)); }, chunk);
  Kokkos::single(Kokkos::PerTeam(team), [&] { total() += chunk; });
}

#define TESSERA_INSTANTIATE(Exec, Scalar)     \
  template struct CrossEntropy<Exec, Scalar>; \
  template struct LossSum<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
