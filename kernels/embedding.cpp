#include "kernels/embedding.hpp"  // the contract is there; here is how

#include <algorithm>

#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/team.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void EmbeddingForward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = out.extent_int(0), C = out.extent_int(1);
  TESSERA_REQUIRE(tokens.extent_int(0) == N, "embedding forward: tokens must be [N], one per row of out",
                  tokens.extent(0), N);
  TESSERA_REQUIRE(weight.extent_int(1) == C, "embedding forward: weight must be [V,C], as wide as out",
                  weight.extent(1), C);
  if (N == 0) return;
  const bool fits = packets_fit(kPacketWidth<Exec, Scalar>, C, weight.data(), out.data());
  in_packets<Exec, Scalar>(fits, [&]<int kWidth>(InPackets<kWidth>) {
    using Policy = Kokkos::TeamPolicy<Exec, InPackets<kWidth>>;
    Kokkos::parallel_for("tessera::embedding::forward", team_policy<Policy>(exec, N, lanes_for(C / kWidth)), *this);
  });
}

template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void EmbeddingForward<Exec, Scalar>::operator()(InPackets<kWidth>, const Member& team) const {
  const int n = team.league_rank(), token = tokens(n);
  KOKKOS_ASSERT(0 <= token && token < weight.extent_int(0));
  const Scalar* from = &weight(token, 0);
  Scalar* to = &out(n, 0);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, out.extent_int(1) / kWidth),
                       [&](int p) { store(to + p * kWidth, load<kWidth>(from + p * kWidth)); });
}

template <class Exec, class Scalar>
void EmbeddingBackward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = d_out.extent_int(0), C = d_out.extent_int(1), V = d_weight.extent_int(0);
  TESSERA_REQUIRE(tokens.extent_int(0) == N, "embedding backward: tokens must be [N], one per row of d_out",
                  tokens.extent(0), N);
  TESSERA_REQUIRE(d_weight.extent_int(1) == C, "embedding backward: d_weight must be [V,C], as wide as d_out",
                  d_weight.extent(1), C);
  TESSERA_REQUIRE(static_cast<std::int64_t>(order.extent(0)) >= order_size(N),
                  "embedding backward: order must be [order_size(N)]", order.extent(0), order_size(N));
  TESSERA_REQUIRE(partial.extent_int(0) >= partial_rows(N) && partial.extent_int(1) == C,
                  "embedding backward: partial must be [partial_rows(N),C]", partial.extent(0), partial.extent(1),
                  partial_rows(N), C);
  if (N == 0 || C == 0) return;

  // 1. sort
  EmbeddingBackward work = *this;
  for (work.shift = 0; work.shift == 0 || (V - 1) >> work.shift > 0; work.shift += 9) {
    const auto pads = [](int ints) { return Kokkos::PerTeam(Pad<int, Exec>::shmem_size(ints)); };
    Kokkos::parallel_for(
        "tessera::embedding::backward::count",
        team_policy<Kokkos::TeamPolicy<Exec, Count>>(exec, chunks(N), 512).set_scratch_size(0, pads(kDigits)), work);
    Kokkos::parallel_for("tessera::embedding::backward::place",
                         team_policy<Kokkos::TeamPolicy<Exec, Place>>(exec, chunks(N), 512)
                             .set_scratch_size(0, pads(kChunk + 2 * kDigits)),
                         work);
  }
  work.shift -= 9;  // positions(pass()) are the sorted ones

  // 2. add up
  const bool fits = packets_fit(kPacketWidth<Exec, Scalar>, C, d_out.data(), d_weight.data(), partial.data());
  in_packets<Exec, Scalar>(fits, [&]<int kWidth>(InPackets<kWidth>) {
    const int packets = C / kWidth, lanes = lanes_for(packets);
    const int tiles = kIsHost<Exec> ? 1 : (packets + lanes - 1) / lanes;
    Kokkos::parallel_for("tessera::embedding::backward::sum",
                         team_policy<Kokkos::TeamPolicy<Exec, Sum<kWidth>>>(exec, windows(N) * tiles, lanes), work);
    Kokkos::parallel_for("tessera::embedding::backward::join",
                         team_policy<Kokkos::TeamPolicy<Exec, Join<kWidth>>>(exec, windows(N) * tiles, lanes), work);
  });
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void EmbeddingBackward<Exec, Scalar>::operator()(Count, const Member& team) const {
  const int chunk = team.league_rank(), first = chunk * kChunk;
  const int count = N() - first < kChunk ? N() - first : kChunk;
  Pad<int, Exec> sum(team.team_scratch(0), kDigits + 0);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, kDigits + 0), [&](int d) { sum(d) = 0; });
  team.team_barrier();  // the pad is clear before any lane counts
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, count), [&](int i) {
    const int token = tokens(position(first + i));
    KOKKOS_ASSERT(0 <= token && token < d_weight.extent_int(0));
    Kokkos::atomic_add(&sum(digit(token)), 1);
  });
  team.team_barrier();  // every lane has counted
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, kDigits + 0),
                       [&](int d) { counts()[chunk * kDigits + d] = sum(d); });
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void EmbeddingBackward<Exec, Scalar>::operator()(Place, const Member& team) const {
  const int chunk = team.league_rank(), first = chunk * kChunk, all_chunks = team.league_size();
  const int count = N() - first < kChunk ? N() - first : kChunk;
  Pad<int, Exec> token(team.team_scratch(0), kChunk + 0);
  Pad<int, Exec> next(team.team_scratch(0), kDigits + 0);  // where the next position with a digit goes
  Pad<int, Exec> all(team.team_scratch(0), kDigits + 0);   // positions with a digit, in all chunks

  // 1. this chunk's share of every bucket begins behind the smaller digits and the earlier chunks
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, kDigits + 0), [&](int d) {
    int before = 0, sum = 0;
    for (int c = 0; c < all_chunks; ++c) {
      const int here = counts()[c * kDigits + d];
      sum += here;
      before += c < chunk ? here : 0;
    }
    next(d) = before;
    all(d) = sum;
  });
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, count), [&](int i) { token(i) = tokens(position(first + i)); });
  team.team_barrier();  // all buckets are counted
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, kDigits + 0), [&](int d) {
    int smaller = 0;
    for (int other = 0; other < d; ++other) smaller += all(other);
    next(d) += smaller;
  });
  team.team_barrier();  // `next` and the tokens are complete

  // 2. positions in order, kAtOnce at a time: among those, each looks how many before it share its digit
  constexpr int kAtOnce = kIsHost<Exec> ? 1 : 128;
  for (int step = 0; step < count; step += kAtOnce) {
    const int positions_now = count - step < kAtOnce ? count - step : kAtOnce;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, positions_now), [&](int i) {
      const int mine = digit(token(step + i));
      int to = next(mine);
      for (int j = 0; j < i; ++j) to += digit(token(step + j)) == mine ? 1 : 0;
      positions(pass())[to] = position(first + step + i);
      sorted_tokens()[to] = token(step + i);
    });
    team.team_barrier();  // every lane has read `next`
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, positions_now),
                         [&](int i) { Kokkos::atomic_add(&next(digit(token(step + i))), 1); });
    team.team_barrier();  // `next` is up to date
  }
}

/// Where the sum of the run [first, last) of sorted positions in a window goes: to its row of d_weight (then it is
/// added) when the run ends at both sides, else to one of the window's rows of `partial` (then it is stored).
template <class Exec, class Scalar>
KOKKOS_FORCEINLINE_FUNCTION typename EmbeddingBackward<Exec, Scalar>::Real*
EmbeddingBackward<Exec, Scalar>::target_of_run(int window, int first, int last) const {
  const int* token = sorted_tokens();
  if (first > 0 && token[first - 1] == token[first]) return &partial(2 * window, 0);
  if (last < N() && token[last] == token[first]) return &partial(2 * window + 1, 0);
  return &d_weight(token[first], 0);
}

template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void EmbeddingBackward<Exec, Scalar>::operator()(Sum<kWidth>, const Member& team) const {
  const int N = this->N(), C = d_out.extent_int(1), packets = C / kWidth;
  const int w = team.league_rank() % windows(N), tile = team.league_rank() / windows(N);
  const int begin = w * window(N), end = begin + window(N) < N ? begin + window(N) : N;
  const int *n = positions(pass()), *token = sorted_tokens();

  if constexpr (kIsHost<Exec>) {  // the sum grows where it belongs: a row is too long for a host's registers
    for (int first = begin, last = begin; first < end; first = last) {
      while (last < end && token[last] == token[first]) ++last;
      Real* to = target_of_run(w, first, last);
      if (to != &d_weight(token[first], 0)) {
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C), [&](int c) { to[c] = Real(0); });
      }
      for (int i = first; i < last; ++i) {
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C),
                             [&](int c) { to[c] += static_cast<Real>(d_out(n[i], c)); });
      }
    }
  } else {
    constexpr int kAtOnce = 8;  // rows under way
    const int p = tile * team.team_size() * kVectorLanes + lane_of(team);
    if (p >= packets) return;
    Packet<Real, kWidth> sum = {};
    int first = begin;  // of the run
    for (int i = begin; i < end; i += kAtOnce) {
      Packet<Scalar, kWidth> row[kAtOnce];
      TESSERA_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j < end) row[j] = load<kWidth>(&d_out(n[i + j], p * kWidth));
      }
      TESSERA_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j >= end) continue;
        for (int k = 0; k < kWidth; ++k) sum.element[k] += row[j][k];
        const int last = i + j + 1;
        if (last < end && token[last] == token[first]) continue;
        Real* row_to = target_of_run(w, first, last);
        Real* to = row_to + p * kWidth;
        if (row_to == &d_weight(token[first], 0)) {
          const auto before = load<kWidth>(to);
          for (int k = 0; k < kWidth; ++k) sum.element[k] += before[k];
        }
        store(to, sum);
        sum = {};
        first = last;
      }
    }
  }
}

template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void EmbeddingBackward<Exec, Scalar>::operator()(Join<kWidth>, const Member& team) const {
  const int N = this->N(), packets = d_out.extent_int(1) / kWidth;
  const int w = team.league_rank() % windows(N), tile = team.league_rank() / windows(N);
  const int begin = w * window(N), end = begin + window(N) < N ? begin + window(N) : N;
  const int* token = sorted_tokens();
  if (end == N || token[end] != token[end - 1]) return;         // no run crosses this window's end
  if (begin > 0 && token[begin - 1] == token[end - 1]) return;  // it began before
  constexpr int kAtOnce = kIsHost<Exec> ? 1 : 8;                // pieces under way
  const int tile_packets = kIsHost<Exec> ? packets : team.team_size() * kVectorLanes;
  const int last_packet = (tile + 1) * tile_packets < packets ? (tile + 1) * tile_packets : packets;
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, tile * tile_packets, last_packet), [&](int p) {
    Packet<Real, kWidth> sum = load<kWidth>(&partial(2 * w + 1, p * kWidth));
    bool goes_on = true;
    for (int u = w + 1; goes_on && u < windows(N); u += kAtOnce) {
      Packet<Real, kWidth> piece[kAtOnce];
      bool belongs[kAtOnce];
      TESSERA_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        belongs[j] = u + j < windows(N) && token[(u + j) * window(N)] == token[end - 1];
        if (belongs[j]) piece[j] = load<kWidth>(&partial(2 * (u + j), p * kWidth));
      }
      TESSERA_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        goes_on = belongs[j];
        for (int k = 0; goes_on && k < kWidth; ++k) sum.element[k] += piece[j][k];
      }
    }
    Real* to = &d_weight(token[end - 1], p * kWidth);
    const auto before = load<kWidth>(to);
    for (int k = 0; k < kWidth; ++k) sum.element[k] += before[k];
    store(to, sum);
  });
}

#define TESSERA_INSTANTIATE(Exec, Scalar)         \
  template struct EmbeddingForward<Exec, Scalar>; \
  template struct EmbeddingBackward<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
