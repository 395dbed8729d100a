#include "kernels/embedding.hpp"  // the contract is there; here is how

#include <algorithm>

#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/team.hpp"
#include "kernels/cuda/chain.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void EmbeddingForward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = out.extent_int(0), C = out.extent_int(1);
  require_shape("embedding forward: tokens must be [N], one per row of out", tokens, N);
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
  let_successor_start();
  wait_for_predecessor();
  const int n = team.league_rank(), token = tokens(n);
  KOKKOS_ASSERT(0 <= token && token < weight.extent_int(0));
  const Scalar* from = &weight(token, 0);
  Scalar* to = &out(n, 0);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, out.extent_int(1) / kWidth),
                       [&](int p) { store(to + p * kWidth, load<kWidth>(from + p * kWidth)); });
}

template <class Exec, class Scalar, class Grad>
void EmbeddingBackward<Exec, Scalar, Grad>::launch(const Exec& exec) const {
  const int N = d_out.extent_int(0), C = d_out.extent_int(1), V = d_weight.extent_int(0);
  require_shape("embedding backward: tokens must be [N], one per row of d_out", tokens, N);
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
  const auto pads = [](int ints) { return Kokkos::PerTeam(Pad<int, Exec>::shmem_size(ints)); };
  for (work.shift = 0; work.shift == 0 || std::int64_t{V - 1} >> work.shift > 0; work.shift += kDigitBits) {
    if (chunks(N) > 1) {
      Kokkos::parallel_for("tessera::embedding::backward::count",
                           team_policy<Kokkos::TeamPolicy<Exec, Count>>(exec, chunks(N), kParts * kVectorLanes)
                               .set_scratch_size(0, pads(kDigits)),
                           work);
    }
    Kokkos::parallel_for("tessera::embedding::backward::place",
                         team_policy<Kokkos::TeamPolicy<Exec, Place>>(exec, chunks(N), kParts * kVectorLanes)
                             .set_scratch_size(0, pads((kParts + 1) * kDigits + kParts * kVectorLanes)),
                         work);
  }
  work.shift -= kDigitBits;  // positions(pass()) are the sorted ones

  // 2. add up
  const bool fits = packets_fit(kPacketWidth<Exec, Scalar>, C, d_out.data(), d_weight.data(), partial.data());
  in_packets<Exec, Scalar>(fits, [&](auto how) {
    constexpr int kWidth = decltype(how)::kElements;
    const int packets = C / kWidth, lanes = lanes_for(packets);
    const int tiles = kIsHost<Exec> ? 1 : ceil_div(packets, lanes);
    Kokkos::parallel_for("tessera::embedding::backward::sum",
                         team_policy<Kokkos::TeamPolicy<Exec, Sum<kWidth>>>(exec, windows(N) * tiles, lanes), work);
    Kokkos::parallel_for("tessera::embedding::backward::join",
                         team_policy<Kokkos::TeamPolicy<Exec, Join<kWidth>>>(exec, windows(N) * tiles, lanes), work);
  });
}

template <class Exec, class Scalar, class Grad>
KOKKOS_FUNCTION void EmbeddingBackward<Exec, Scalar, Grad>::operator()(Count, const Member& team) const {
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

template <class Exec, class Scalar, class Grad>
KOKKOS_FUNCTION void EmbeddingBackward<Exec, Scalar, Grad>::operator()(Place, const Member& team) const {
  const int chunk = team.league_rank(), first = chunk * kChunk, all_chunks = team.league_size();
  const int count = N() - first < kChunk ? N() - first : kChunk;
  const int part_size = ceil_div(count, kParts);
  Pad<int, Exec> next(team.team_scratch(0), kParts * kDigits);         // target of a part's next position, per digit
  Pad<int, Exec> all(team.team_scratch(0), kDigits + 0);               // positions with a digit, in all chunks
  Pad<int, Exec> digits(team.team_scratch(0), kParts * kVectorLanes);  // of a round, for each part
  const auto each_digit = [&](const auto& body) {
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, kDigits + 0), body);
  };
  // round(part, begin, size): up to `lanes` positions of this chunk at a time, those of a part in order
  const auto each_round = [&](int lanes, const auto& round) {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, kParts + 0), [&](int part) {
      const int end = (part + 1) * part_size < count ? (part + 1) * part_size : count;
      for (int begin = part * part_size; begin < end; begin += lanes) {
        round(part, begin, end - begin < lanes ? end - begin : lanes);
      }
    });
  };

  // 1. count the digits of every part
  each_digit([&](int d) {
    for (int part = 0; part < kParts; ++part) next(part * kDigits + d) = 0;
  });
  team.team_barrier();  // the pad is clear before any lane counts
  each_round(part_size, [&](int part, int begin, int size) {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, size), [&](int i) {
      const int token = tokens(position(first + begin + i));
      KOKKOS_ASSERT(0 <= token && token < d_weight.extent_int(0));
      Kokkos::atomic_add(&next(part * kDigits + digit(token)), 1);
    });
  });
  team.team_barrier();  // every lane has counted

  // 2. a part's share of a bucket begins behind the smaller digits, the earlier chunks and the earlier parts
  each_digit([&](int d) {
    int before = 0, in_chunks = 0;
    for (int c = 0; all_chunks > 1 && c < all_chunks; ++c) {
      const int here = counts()[c * kDigits + d];
      in_chunks += here;
      before += c < chunk ? here : 0;
    }
    int to = before;
    for (int part = 0; part < kParts; ++part) {
      const int here = next(part * kDigits + d);
      next(part * kDigits + d) = to;
      to += here;
    }
    all(d) = all_chunks > 1 ? in_chunks : to;
  });
  team.team_barrier();  // all buckets are counted
  if (team.team_rank() == 0) {
    Kokkos::parallel_scan(Kokkos::ThreadVectorRange(team, kDigits + 0), [&](int d, int& smaller, bool is_final) {
      const int here = all(d);
      if (is_final) all(d) = smaller;
      smaller += here;
    });
  }
  team.team_barrier();  // `all` holds the sums over smaller digits
  each_digit([&](int d) {
    for (int part = 0; part < kParts; ++part) next(part * kDigits + d) += all(d);
  });
  team.team_barrier();  // `next` is complete

  // 3. a part's positions in order, one round at a time: each counts the positions before it with the same digit. The
  //    lanes of a thread proceed from loop to loop in lockstep.
  constexpr int kRound = kIsHost<Exec> ? 1 : kVectorLanes;
  each_round(kRound, [&](int part, int begin, int size) {
    int* round_digits = &digits(part * kVectorLanes);
    int* part_next = &next(part * kDigits);
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, size),
                         [&](int i) { round_digits[i] = digit(tokens(position(first + begin + i))); });
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, size), [&](int i) {
      const int mine = round_digits[i], n = position(first + begin + i);
      int to = part_next[mine];
      for (int j = 0; j < i; ++j) to += round_digits[j] == mine ? 1 : 0;
      positions(pass())[to] = n;
      sorted_tokens()[to] = tokens(n);
    });
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, size),
                         [&](int i) { Kokkos::atomic_add(&part_next[round_digits[i]], 1); });
  });
}

/// Destination of the sum of the run [first, last) of sorted positions in a window: null if the run is complete, whose
/// sum is added to its row of d_weight; otherwise one of the window's rows of `partial`, in which the sum is stored.
template <class Exec, class Scalar, class Grad>
KOKKOS_FORCEINLINE_FUNCTION typename EmbeddingBackward<Exec, Scalar, Grad>::Real*
EmbeddingBackward<Exec, Scalar, Grad>::partial_of_run(int window, int first, int last) const {
  const int* token = sorted_tokens();
  if (first > 0 && token[first - 1] == token[first]) return &partial(2 * window, 0);
  if (last < N() && token[last] == token[first]) return &partial(2 * window + 1, 0);
  return nullptr;
}

template <class Exec, class Scalar, class Grad>
template <int kWidth>
KOKKOS_FUNCTION void EmbeddingBackward<Exec, Scalar, Grad>::operator()(Sum<kWidth>, const Member& team) const {
  const int N = this->N(), C = d_out.extent_int(1), packets = C / kWidth;
  const int w = team.league_rank() % windows(N), tile = team.league_rank() / windows(N);
  const int begin = w * window(N), end = begin + window(N) < N ? begin + window(N) : N;
  const int *n = positions(pass()), *token = sorted_tokens();

  if constexpr (kIsHost<Exec>) {  // sums are accumulated in memory: a row is too long for a host's registers
    for (int first = begin, last = begin; first < end; first = last) {
      while (last < end && token[last] == token[first]) ++last;
      // A complete run is accumulated in its row of d_weight or, if Grad is narrower than Real, in the row of `partial`
      // of the window's last run, which is written later.
      Real* crossing = partial_of_run(w, first, last);
      Real* to = crossing ? crossing : grows_in_place() ? in_place(token[first]) : &partial(2 * w + 1, 0);
      if (crossing || !grows_in_place()) {
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C), [&](int c) { to[c] = Real(0); });
      }
      for (int i = first; i < last; ++i) {
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C),
                             [&](int c) { to[c] += static_cast<Real>(d_out(n[i], c)); });
      }
      if (!crossing && !grows_in_place()) {
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C), [&](int c) {
          Grad& sum = d_weight(token[first], c);
          sum = static_cast<Grad>(static_cast<Real>(sum) + to[c]);
        });
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
        if (Real* crossing = partial_of_run(w, first, last)) {
          store(crossing + p * kWidth, sum);
        } else {
          add_to_row(token[first], p * kWidth, sum);
        }
        sum = {};
        first = last;
      }
    }
  }
}

template <class Exec, class Scalar, class Grad>
template <int kWidth>
KOKKOS_FUNCTION void EmbeddingBackward<Exec, Scalar, Grad>::operator()(Join<kWidth>, const Member& team) const {
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
    add_to_row(token[end - 1], p * kWidth, sum);
  });
}

TESSERA_INSTANTIATE_KERNEL(EmbeddingForward);
TESSERA_INSTANTIATE_KERNEL(EmbeddingBackward);
template struct EmbeddingBackward<Device, bfloat16, bfloat16>;

}  // namespace tessera::kernels
