#include "kernels/attention/check.hpp"
#include "kernels/attention/standard/head_product.hpp"
#include "kernels/attention/standard/standard.hpp"  // the contract is there; here is how
#include "kernels/core/instantiate.hpp"
#include "kernels/core/team.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void StandardBackward<Exec, Scalar>::launch(const Exec& exec) const {
  const auto& [q, k, v, out, lse, d_out, d_q, d_k, d_v, scale, causal] = task;
  detail::require_same_heads("standard backward: v must have k's shape", k, v);
  detail::require_same_heads("standard backward: d_out must have q's shape", q, d_out);
  detail::require_same_heads("standard backward: d_q must have q's shape", q, d_q);
  detail::require_same_heads("standard backward: d_k must have k's shape", k, d_k);
  detail::require_same_heads("standard backward: d_v must have k's shape", k, d_v);
  using Product = HeadProduct<Exec, Scalar>;
  Product{"tessera::attention::standard::d_v", transposed(probabilities), d_out, d_v, Accum<Scalar>(1)}.launch(exec);
  Product{"tessera::attention::standard::d_probabilities", d_out, transposed(v), d_scores, Accum<Scalar>(1)}.launch(
      exec);
  SoftmaxRowsBackward<Exec, Scalar>{probabilities, d_scores}.launch(exec);
  Product{"tessera::attention::standard::d_q", d_scores, k, d_q, scale}.launch(exec);
  Product{"tessera::attention::standard::d_k", transposed(HeadTensor<const Scalar, Exec>(d_scores)), q, d_k, scale}
      .launch(exec);
}

template <class Exec, class Scalar>
void SoftmaxRowsBackward<Exec, Scalar>::launch(const Exec& exec) const {
  detail::require_same_heads("softmax rows backward: d_scores must have the probabilities' shape", probabilities,
                             d_scores);
  const int rows = league_of(std::int64_t{d_scores.extent_int(0)} * d_scores.extent_int(1) * d_scores.extent_int(2));
  if (rows == 0) return;
  Kokkos::parallel_for("tessera::attention::standard::softmax_backward", Policy(exec, rows, Kokkos::AUTO), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void SoftmaxRowsBackward<Exec, Scalar>::operator()(const Member& team) const {
  const int H = d_scores.extent_int(1), Tq = d_scores.extent_int(2), Tk = d_scores.extent_int(3);
  const int i = team.league_rank() % Tq, h = team.league_rank() / Tq % H, b = team.league_rank() / Tq / H;
  Real delta = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, Tk),
      [&](int j, Real& sum) {
        sum += static_cast<Real>(probabilities(b, h, i, j)) * static_cast<Real>(d_scores(b, h, i, j));
      },
      delta);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, Tk), [&](int j) {
    const Real p = static_cast<Real>(probabilities(b, h, i, j));
    d_scores(b, h, i, j) = static_cast<Scalar>(p * (static_cast<Real>(d_scores(b, h, i, j)) - delta));
  });
}

#define TESSERA_INSTANTIATE(Exec, Scalar)         \
  template struct StandardBackward<Exec, Scalar>; \
  template struct SoftmaxRowsBackward<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
