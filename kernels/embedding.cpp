#include "kernels/embedding.hpp"

#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void EmbeddingForward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = out.extent_int(0), C = out.extent_int(1);
  TESSERA_REQUIRE(tokens.extent_int(0) == N, "embedding forward: tokens must be [N], one per row of out",
                  tokens.extent(0), N);
  TESSERA_REQUIRE(weight.extent_int(1) == C, "embedding forward: weight must be [V,C], as wide as out",
                  weight.extent(1), C);
  if (N == 0) return;
  Kokkos::parallel_for("tessera::embedding::forward", Policy(exec, N, Kokkos::AUTO), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void EmbeddingForward<Exec, Scalar>::operator()(const Member& team) const {
  const int n = team.league_rank(), token = tokens(n);
  KOKKOS_ASSERT(0 <= token && token < weight.extent_int(0));
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, out.extent_int(1)), [&](int c) { out(n, c) = weight(token, c); });
}

template <class Exec, class Scalar>
void EmbeddingBackward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = d_out.extent_int(0), C = d_out.extent_int(1);
  TESSERA_REQUIRE(tokens.extent_int(0) == N, "embedding backward: tokens must be [N], one per row of d_out",
                  tokens.extent(0), N);
  TESSERA_REQUIRE(d_weight.extent_int(1) == C, "embedding backward: d_weight must be [V,C], as wide as d_out",
                  d_weight.extent(1), C);
  if (N == 0 || C == 0) return;
  Kokkos::parallel_for("tessera::embedding::backward", Policy(exec, (C + kColumns - 1) / kColumns, Kokkos::AUTO),
                       *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void EmbeddingBackward<Exec, Scalar>::operator()(const Member& team) const {
  const int first = team.league_rank() * kColumns, N = d_out.extent_int(0), C = d_out.extent_int(1);
  const int columns = C - first < kColumns ? C - first : kColumns;
  for (int n = 0; n < N; ++n) {
    const int token = tokens(n);
    KOKKOS_ASSERT(0 <= token && token < d_weight.extent_int(0));
    // No barrier between rows: a column stays with one thread, whatever the token.
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns),
                         [&](int c) { d_weight(token, first + c) += static_cast<Real>(d_out(n, first + c)); });
  }
}

#define TESSERA_INSTANTIATE(Exec, Scalar)         \
  template struct EmbeddingForward<Exec, Scalar>; \
  template struct EmbeddingBackward<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
