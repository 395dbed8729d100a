#include "kernels/attention/check.hpp"
#include "kernels/attention/standard/head_product.hpp"
#include "kernels/attention/standard/standard.hpp"  // the contract is there; here is how
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/team.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void StandardForward<Exec, Scalar>::launch(const Exec& exec) const {
  const auto& [q, k, v, out, lse, scale, causal] = task;
  detail::require_same_heads("standard forward: v must have k's shape", k, v);
  detail::require_same_heads("standard forward: out must have q's shape", q, out);
  detail::require_head_rows("standard forward: lse must be [B,H,Tq]", q, lse);
  HeadProduct<Exec, Scalar>{"tessera::attention::standard::scores", q, transposed(k), probabilities, scale}.launch(
      exec);
  SoftmaxRows<Exec, Scalar>{probabilities, lse, causal}.launch(exec);
  HeadProduct<Exec, Scalar>{"tessera::attention::standard::out", probabilities, v, out, Accum<Scalar>(1)}.launch(exec);
}

template <class Exec, class Scalar>
void SoftmaxRows<Exec, Scalar>::launch(const Exec& exec) const {
  detail::require_head_rows("softmax rows: lse must be [B,H,Tq]", scores, lse);
  const int rows = league_of(std::int64_t{scores.extent_int(0)} * scores.extent_int(1) * scores.extent_int(2));
  if (rows == 0) return;
  Kokkos::parallel_for("tessera::attention::standard::softmax", Policy(exec, rows, Kokkos::AUTO), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void SoftmaxRows<Exec, Scalar>::operator()(const Member& team) const {
  const int H = scores.extent_int(1), Tq = scores.extent_int(2), Tk = scores.extent_int(3);
  const int i = team.league_rank() % Tq, h = team.league_rank() / Tq % H, b = team.league_rank() / Tq / H;
  const int limit = i + 1 + Tk - Tq;  // causal: keys before it are seen
  const int seen = !causal || limit > Tk ? Tk : (limit < 0 ? 0 : limit);

  Real top = -HUGE_VAL;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, seen),
      [&](int j, Real& most) {
        const Real score = static_cast<Real>(scores(b, h, i, j));
        most = score > most ? score : most;
      },
      Kokkos::Max<Real>(top));
  Real sum = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, seen),
      [&](int j, Real& total) { total += fast_exp(static_cast<Real>(scores(b, h, i, j)) - top); }, sum);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, Tk), [&](int j) {
    scores(b, h, i, j) =
        static_cast<Scalar>(j < seen ? fast_exp(static_cast<Real>(scores(b, h, i, j)) - top) / sum : Real(0));
  });
  Kokkos::single(Kokkos::PerTeam(team), [&] { lse(b, h, i) = seen > 0 ? top + log(sum) : Real(-HUGE_VAL); });
}

#define TESSERA_INSTANTIATE(Exec, Scalar)        \
  template struct StandardForward<Exec, Scalar>; \
  template struct SoftmaxRows<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
