#include "kernels/attention/decode/append.hpp"  // the contract is there; here is how

#include "kernels/attention/check.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/team.hpp"
#include "kernels/cuda/chain.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void CacheAppend<Exec, Scalar>::launch(const Exec& exec) const {
  const int B = q.extent_int(0), H = q.extent_int(1), D = q.extent_int(3);
  TESSERA_REQUIRE(q.extent_int(2) == 1 && D % 2 == 0, "cache append: q must be [B,H,1,D] with an even D", q.extent(2),
                  D);
  detail::require_same_heads("cache append: q must have a contiguous head width", q, q);
  detail::require_same_heads("cache append: k must have q's shape and a contiguous head width", q, k);
  detail::require_same_heads("cache append: v must have q's shape and a contiguous head width", q, v);
  TESSERA_REQUIRE(keys.extent_int(0) == B && keys.extent_int(1) == H && keys.extent_int(3) == D,
                  "cache append: keys must be [B,H,capacity,D]", keys.extent(0), keys.extent(1), keys.extent(3), B, H,
                  D);
  detail::require_same_heads("cache append: keys must have a contiguous head width", keys, keys);
  detail::require_same_heads("cache append: values must have keys' shape and a contiguous head width", keys, values);
  TESSERA_REQUIRE(table.extent_int(1) == D / 2 && table.extent_int(2) == 2,
                  "cache append: table must be [positions,D/2,2]", table.extent(1), table.extent(2), D);
  TESSERA_REQUIRE(positions.extent_int(0) == B, "cache append: positions must be [B]", positions.extent(0), B);
  if (B == 0 || H == 0) return;
  Kokkos::parallel_for("tessera::attention::decode::append",
                       team_policy<Kokkos::TeamPolicy<Exec>>(exec, std::int64_t{B} * H, D / 2), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void CacheAppend<Exec, Scalar>::operator()(const Member& team) const {
  let_successor_start();
  wait_for_predecessor();
  const int b = team.league_rank() / q.extent_int(1), h = team.league_rank() % q.extent_int(1);
  const int position = positions(b);
  const Real* angles = &table(position, 0, 0);
  Scalar *query = &q(b, h, 0, 0), *key_to = &keys(b, h, position, 0), *value_to = &values(b, h, position, 0);
  const Scalar *key = &k(b, h, 0, 0), *value = &v(b, h, 0, 0);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, q.extent_int(3) / 2), [&](int i) {
    const Real cos = angles[2 * i], sin = angles[2 * i + 1];
    const auto rotate = [&](const Scalar* from, Scalar* to) {
      const Real even = static_cast<Real>(from[2 * i]), odd = static_cast<Real>(from[2 * i + 1]);
      to[2 * i] = static_cast<Scalar>(even * cos - odd * sin);
      to[2 * i + 1] = static_cast<Scalar>(even * sin + odd * cos);
    };
    rotate(query, query);
    rotate(key, key_to);
    value_to[2 * i] = value[2 * i];
    value_to[2 * i + 1] = value[2 * i + 1];
  });
}

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct CacheAppend<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
