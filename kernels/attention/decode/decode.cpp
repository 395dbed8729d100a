#include "kernels/attention/decode/decode.hpp"  // the contract is there; here is how

#include <algorithm>

#include "kernels/attention/check.hpp"
#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/team.hpp"
#include "kernels/cuda/chain.hpp"
#include "kernels/cuda/portable.hpp"

namespace tessera::kernels {
namespace {

constexpr const char* kLabel = "tessera::attention::decode";

}  // namespace

int decode_parts(const Target& target, std::int64_t heads, std::int64_t capacity) {
  if (target.is_host || heads == 0) return 1;
  // As many teams as run at once. Where that leaves many places empty, more waves of shorter parts, if each part has
  // enough keys that its beginning and end do not count.
  constexpr std::int64_t kAtOnce = 4 * kProcessors, kWaves = 4, kFewKeys = 64, kManyKeys = 512;
  const auto is_full = [&](std::int64_t parts) {  // nine places of ten, in the last wave too
    return 10 * parts * heads >= 9 * kAtOnce * ceil_div(parts * heads, kAtOnce);
  };
  const auto is_fuller = [&](std::int64_t parts, std::int64_t than) {
    return parts * ceil_div(than * heads, kAtOnce) > than * ceil_div(parts * heads, kAtOnce);
  };
  const std::int64_t one_wave = std::min(kAtOnce / heads, capacity / kFewKeys),
                     most = std::min({kWaves * kAtOnce / heads, capacity / kManyKeys, std::int64_t{kMaxDecodeParts}});
  std::int64_t parts = std::clamp<std::int64_t>(one_wave, 1, kMaxDecodeParts);
  for (std::int64_t more = parts + 1; more <= most && !is_full(parts); ++more) {
    if (is_fuller(more, parts)) parts = more;
  }
  return static_cast<int>(parts);
}

template <class Exec, class Scalar>
void DecodeAttention<Exec, Scalar>::launch(const Exec& exec) const {
  const int B = q.extent_int(0), H = q.extent_int(1), D = q.extent_int(3);
  TESSERA_REQUIRE(q.extent_int(2) == 1, "decode: q must be [B,H,1,D]", q.extent(2));
  detail::require_attention_shapes(q, k, kMaxHead);
  detail::require_same_heads("decode: q must have a contiguous head width", q, q);
  detail::require_same_heads("decode: k must have a contiguous head width", k, k);
  detail::require_same_heads("decode: v must have k's shape and a contiguous head width", k, v);
  detail::require_same_heads("decode: out must have q's shape and a contiguous head width", q, out);
  if (lse.data()) detail::require_head_rows("decode: lse must be [B,H,1], or empty", q, lse);
  require_shape("decode: keys must be [B]", keys, B);
  TESSERA_REQUIRE(parts >= 1 && parts <= kMaxDecodeParts, "decode: parts out of range", parts, kMaxDecodeParts);
  TESSERA_REQUIRE(std::int64_t(partial.extent(0)) >= decode_partials(std::int64_t{B} * H, D, parts),
                  "decode: partial must have decode_partials(B*H, D, parts) elements", partial.extent(0), B, H, D,
                  parts);
  TESSERA_REQUIRE(parts == 1 || arrived.extent_int(0) >= B * H, "decode: arrived must be [B*H]", arrived.extent(0), B,
                  H);
  if (B == 0 || H == 0) return;

  if constexpr (kIsHost<Exec>) {
    const std::size_t reals = D + parts;
    Kokkos::parallel_for(kLabel,
                         Kokkos::TeamPolicy<Exec, Plain>(exec, league_of(std::int64_t{B} * H * parts), host_team_size)
                             .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(reals))),
                         *this);
  } else {
    constexpr int kWidest = kPacketWidth<Exec, Scalar>;
    if (!rows_fit_packets(q, k, v)) return launch_groups<1, 32, kMaxHead / 32>(exec);
    const int packets = D / kWidest;
    if (packets <= 4) return launch_groups<kWidest, 4, 1>(exec);
    if (packets <= 8) return launch_groups<kWidest, 8, 1>(exec);
    if (packets <= 16) return launch_groups<kWidest, 16, 1>(exec);
    if (packets <= 32) return launch_groups<kWidest, 32, 1>(exec);
    constexpr int kMaxSlots = kMaxHead / kWidest / 32;  // 1 for 16 bits, 2 for float, 4 for double
    launch_groups<kWidest, 32, kMaxSlots>(exec);
  }
}

template <class Exec, class Scalar>
template <int kWidth, int kGroup, int kSlots>
void DecodeAttention<Exec, Scalar>::launch_groups(const Exec& exec) const {
  constexpr int kGroups = kLanes / kGroup;
  const int D = q.extent_int(3), teams = league_of(std::int64_t{q.extent_int(0)} * q.extent_int(1) * parts);
  const std::size_t reals = std::max(kGroups * (D + 2), parts);
  using Policy = Kokkos::TeamPolicy<Exec, Groups<kWidth, kGroup, kSlots>, Kokkos::LaunchBounds<kLanes, 1>>;
  Kokkos::parallel_for(
      kLabel,
      Policy(exec, teams, kGroups, kGroup).set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(reals))),
      *this);
}

/// The keys that a team reads: parts of equal size, but for the last ones.
template <class Exec, class Scalar>
KOKKOS_FUNCTION auto DecodeAttention<Exec, Scalar>::place_of(int rank) const -> Place {
  const int H = q.extent_int(1), part = rank % parts, h = rank / parts % H, b = rank / parts / H;
  const int length = keys(b);
  const int size = round_up(ceil_div(length, parts), kPartAlign);
  const int first = part * size < length ? part * size : length;
  const int last = first + size < length ? first + size : length;
  return {b, h, part, first, last};
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION auto DecodeAttention<Exec, Scalar>::part_out(int head, int part) const -> Real* {
  return partial.data() + (std::int64_t{head} * parts + part) * q.extent_int(3);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION auto DecodeAttention<Exec, Scalar>::part_lse(int head, int part) const -> Real& {
  const std::int64_t outs = std::int64_t{q.extent_int(0)} * q.extent_int(1) * parts * q.extent_int(3);
  return partial(outs + std::int64_t{head} * parts + part);
}

/// Writes a part whose channel d is read(d), and joins the parts of the head if it is the last to arrive. `pad` has
/// `parts` elements, and may be what read() reads.
template <class Exec, class Scalar>
template <class Read>
KOKKOS_FUNCTION void DecodeAttention<Exec, Scalar>::finish(const Member& team, const Place& place, Real* pad,
                                                           Real my_lse, const Read& read) const {
  const int D = q.extent_int(3), head = place.b * q.extent_int(1) + place.h;
  const auto each_channel = [&](const auto& body) { Kokkos::parallel_for(Kokkos::TeamVectorRange(team, D), body); };
  if (parts == 1) {
    each_channel([&](int d) { out(place.b, place.h, 0, d) = static_cast<Scalar>(read(d)); });
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      if (lse.data()) lse(place.b, place.h, 0) = my_lse;
    });
    return;
  }

  Real* mine = part_out(head, place.part);
  each_channel([&](int d) { mine[d] = read(d); });
  Kokkos::single(Kokkos::PerTeam(team), [&] { part_lse(head, place.part) = my_lse; });
  team.team_barrier();  // the part is written, and the pad is free
  int before = 0;
  Kokkos::single(
      Kokkos::PerTeam(team),
      [&](int& arrivals) {
        Kokkos::memory_fence();  // other teams see the part before they see the arrival
        arrivals = Kokkos::atomic_fetch_add(&arrived(head), 1);
        Kokkos::memory_fence();  // and this one sees their parts
      },
      before);
  if (before != parts - 1) return;

  const Real* lse_of = &part_lse(head, 0);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, parts), [&](int p) { pad[p] = lse_of[p]; });
  team.team_barrier();  // the pad has every part's lse
  Real top = -HUGE_VAL, sum = 0;
  for (int p = 0; p < parts; ++p) top = larger(top, pad[p]);
  const Real safe_top = finite_top(top);
  for (int p = 0; p < parts; ++p) sum += fast_exp(pad[p] - safe_top);
  const Real inverse = sum == 0 ? Real(0) : 1 / sum;
  const Real* outs = part_out(head, 0);
  each_channel([&](int d) {
    constexpr int kTogether = 8;  // reads in flight
    Real joined = 0;
    for (int first = 0; first < parts; first += kTogether) {
      Real read_p[kTogether];
      for (int i = 0; i < kTogether; ++i) {
        const int p = first + i < parts ? first + i : parts - 1;
        read_p[i] = outs[std::int64_t{p} * D + d];
      }
      for (int i = 0; i < kTogether; ++i) {
        if (first + i < parts) joined += fast_exp(pad[first + i] - safe_top) * read_p[i];
      }
    }
    out(place.b, place.h, 0, d) = static_cast<Scalar>(joined * inverse);
  });
  Kokkos::single(Kokkos::PerTeam(team), [&] {
    if (lse.data()) lse(place.b, place.h, 0) = sum == 0 ? Real(-HUGE_VAL) : top + log(sum);
    arrived(head) = 0;
  });
}

/// Hosts: a team is one thread that takes the keys in blocks.
template <class Exec, class Scalar>
KOKKOS_FUNCTION void DecodeAttention<Exec, Scalar>::operator()(Plain, const Member& team) const {
  constexpr int kBlock = 64;  // keys
  const int D = q.extent_int(3);
  const Place place = place_of(team.league_rank());
  Real* pad = static_cast<Real*>(team.team_scratch(0).get_shmem(sizeof(Real) * (D + parts)));
  Real* acc = pad + parts;
  Real part_lse = -HUGE_VAL;
  Kokkos::single(
      Kokkos::PerTeam(team),
      [&](Real& result) {
        Real q_row[kMaxHead], score[kBlock], top = -HUGE_VAL, sum = 0;
        for (int d = 0; d < D; ++d) q_row[d] = scale * static_cast<Real>(q(place.b, place.h, 0, d));
        for (int d = 0; d < D; ++d) acc[d] = 0;
        for (int first = place.first; first < place.last; first += kBlock) {
          const int count = place.last - first < kBlock ? place.last - first : kBlock;
          Real new_top = top;
          for (int j = 0; j < count; ++j) {
            const Scalar* row = &k(place.b, place.h, first + j, 0);
            Real dot = 0;
            for (int d = 0; d < D; ++d) dot += q_row[d] * static_cast<Real>(row[d]);
            score[j] = dot;
            new_top = larger(new_top, dot);
          }
          const Real safe_top = finite_top(new_top), shrink = fast_exp(top - safe_top);
          top = new_top;
          sum *= shrink;
          for (int d = 0; d < D; ++d) acc[d] *= shrink;
          for (int j = 0; j < count; ++j) {
            const Scalar* row = &v(place.b, place.h, first + j, 0);
            const Real weight = fast_exp(score[j] - safe_top);
            sum += weight;
            for (int d = 0; d < D; ++d) acc[d] += weight * static_cast<Real>(row[d]);
          }
        }
        const Real inverse = sum == 0 ? Real(0) : 1 / sum;
        for (int d = 0; d < D; ++d) acc[d] *= inverse;
        result = sum == 0 ? Real(-HUGE_VAL) : top + log(sum);
      },
      part_lse);
  team.team_barrier();  // the part is complete
  finish(team, place, pad, part_lse, [&](int d) { return acc[d]; });
}

/// GPUs: a thread is a group of lanes with a key, and keeps a softmax of its own.
template <class Exec, class Scalar>
template <int kWidth, int kGroup, int kSlots>
KOKKOS_FUNCTION void DecodeAttention<Exec, Scalar>::operator()(Groups<kWidth, kGroup, kSlots>,
                                                               const Member& team) const {
  constexpr int kGroups = kLanes / kGroup;
  constexpr int kAtOnce = kSlots == 1 ? 4 : (kSlots == 2 ? 2 : 1);  // keys that a group has in flight
  let_successor_start();
  wait_for_predecessor();
  const int D = q.extent_int(3), group = team.team_rank();
  const Place place = place_of(team.league_rank());
  Real* pad = static_cast<Real*>(team.team_scratch(0).get_shmem(sizeof(Real) * std::size_t{kGroups} * (D + 2)));
  int lane = 0;
  Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, kGroup), [&](int i) { lane = i; });
  const RowShare<kWidth, kSlots> share(lane, kGroup, D);

  // 1. the query, scaled, in registers
  Real q_row[kSlots][kWidth] = {}, acc[kSlots][kWidth] = {};
  share.each([&](int slot, int column) {
    const auto q_p = load<kWidth>(&q(place.b, place.h, 0, column));
    for (int i = 0; i < kWidth; ++i) q_row[slot][i] = scale * q_p[i];
  });

  // 2. the keys, kGroups * kAtOnce at a time. All lanes of the team take the same turns: they exchange values. The next
  //    keys are on their way while the values of this turn are added, the next values while the next scores are
  //    computed
  constexpr int kTurn = kGroups * kAtOnce;
  const Scalar *k_rows = &k(place.b, place.h, 0, 0), *v_rows = &v(place.b, place.h, 0, 0);
  const std::int64_t k_stride = k.stride(2), v_stride = v.stride(2);
  Packet<Scalar, kWidth> k_p[kAtOnce][kSlots], v_p[kAtOnce][kSlots];
  const auto read = [&](int first, const Scalar* rows, std::int64_t stride, auto& to) {
    if (first >= place.last) return;
    TESSERA_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {  // beyond the last key, it again
      const int key = first + u * kGroups + group, row = key < place.last ? key : place.last - 1;
      share.load_row(rows + row * stride, to[u]);
    }
  };
  Real top = -HUGE_VAL, sum = 0;
  read(place.first, k_rows, k_stride, k_p);
  read(place.first, v_rows, v_stride, v_p);
  for (int first = place.first; first < place.last; first += kTurn) {
    Real score[kAtOnce], new_top = top;
    TESSERA_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      Real dot = 0;
      share.each([&](int slot, int) {
        for (int i = 0; i < kWidth; ++i) dot += q_row[slot][i] * k_p[u][slot][i];
      });
      dot = sum_over_group<kGroup>(team, dot);
      score[u] = first + u * kGroups + group < place.last ? dot : Real(-HUGE_VAL);
      new_top = larger(new_top, score[u]);
    }
    read(first + kTurn, k_rows, k_stride, k_p);
    const Real safe_top = finite_top(new_top), shrink = fast_exp(top - safe_top);
    top = new_top;
    sum *= shrink;
    TESSERA_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      for (int i = 0; i < kWidth; ++i) acc[slot][i] *= shrink;
    }
    TESSERA_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      const Real weight = fast_exp(score[u] - safe_top);
      sum += weight;
      share.each([&](int slot, int) {
        for (int i = 0; i < kWidth; ++i) acc[slot][i] += weight * v_p[u][slot][i];
      });
    }
    read(first + kTurn, v_rows, v_stride, v_p);
  }

  // 3. the groups meet in the pad
  Real *tops = pad + kGroups * D, *sums = tops + kGroups;
  share.each([&](int slot, int column) {
    for (int i = 0; i < kWidth; ++i) pad[group * D + column + i] = acc[slot][i];
  });
  Kokkos::single(Kokkos::PerThread(team), [&] {
    tops[group] = top;
    sums[group] = sum;
  });
  team.team_barrier();  // every group's state is in the pad
  Real team_top = -HUGE_VAL, team_sum = 0;
  for (int g = 0; g < kGroups; ++g) team_top = larger(team_top, tops[g]);
  const Real safe_top = finite_top(team_top);
  for (int g = 0; g < kGroups; ++g) team_sum += fast_exp(tops[g] - safe_top) * sums[g];
  const Real inverse = team_sum == 0 ? Real(0) : 1 / team_sum;
  const Real my_lse = team_sum == 0 ? Real(-HUGE_VAL) : team_top + log(team_sum);
  finish(team, place, pad, my_lse, [&](int d) {
    Real value = 0;
    for (int g = 0; g < kGroups; ++g) value += fast_exp(tops[g] - safe_top) * pad[g * D + d];
    return value * inverse;
  });
}

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
  require_shape("cache append: positions must be [B]", positions, B);
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

TESSERA_INSTANTIATE_KERNEL(CacheAppend);
TESSERA_INSTANTIATE_KERNEL(DecodeAttention);

}  // namespace tessera::kernels
