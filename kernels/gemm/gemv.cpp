#include "kernels/gemm/gemv.hpp"  // the contract is there; here is how

#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/team.hpp"
#include "kernels/cuda/chain.hpp"
#include "kernels/cuda/portable.hpp"
#include "kernels/cuda/row_products.hpp"
#include "kernels/swiglu.hpp"

namespace tessera::kernels {
namespace {

constexpr const char* kLabel = "tessera::gemm::gemv";

}  // namespace

template <class Exec, class Scalar>
void Gemv<Exec, Scalar>::launch(const Exec& exec) const {
  const int M = x.extent_int(0), K = x.extent_int(1), N = y.extent_int(1), W = is_gated ? 2 * N : N;
  const auto is_like_x = [&](const auto& tensor) { return tensor.extent_int(0) == M && tensor.extent_int(1) == K; };
  TESSERA_REQUIRE(M <= kMaxRows, "gemv: more rows than it is for; Gemm takes any number", M, kMaxRows);
  TESSERA_REQUIRE(w.extent_int(0) == W && w.extent_int(1) == K && y.extent_int(0) == M,
                  "gemv: shapes must be x [M,K], w [N,K] (gated: [2N,K]), y [M,N]", M, K, w.extent(0), w.extent(1),
                  y.extent(0), N, is_gated);
  if (gain.data()) require_shape("gemv: gain must be [K], or empty", gain, K);
  TESSERA_REQUIRE(!delta.data() || (gain.data() && is_like_x(delta)),
                  "gemv: delta is for normed products and must be [M,K] like x", delta.extent(0), delta.extent(1), M,
                  K);
  TESSERA_REQUIRE(!residual.data() || (delta.data() && is_like_x(residual)),
                  "gemv: residual needs delta and must be [M,K] like x", residual.extent(0), residual.extent(1), M, K);
  TESSERA_REQUIRE(!residual.data() || (residual.data() != x.data() && residual.data() != delta.data()),
                  "gemv: residual may be neither x nor delta, which other teams still read", M, K);
  if (M == 0 || N == 0) return;

  if constexpr (kIsHost<Exec>) {
    Kokkos::parallel_for(kLabel,
                         Kokkos::TeamPolicy<Exec, Plain>(exec, ceil_div(N, kTile), host_team_size)
                             .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(K))),
                         *this);
  } else {
    constexpr int kWidest = kPacketWidth<Exec, Scalar>;
    if (!packets_fit(kWidest, K, x.data(), w.data(), gain.data(), delta.data(), residual.data())) {
      return launch_packets<1, kMaxRows>(exec);
    }
    if (M == 1) return launch_packets<kWidest, 1>(exec);
    if (M == 2) return launch_packets<kWidest, 2>(exec);
    if constexpr (kHasRowProducts<Exec, Scalar>) {
      if (gain.data()) return launch_tiles<true>(exec);
      return launch_tiles<false>(exec);
    }
    if (M <= 4) return launch_packets<kWidest, 4>(exec);
    launch_packets<kWidest, kMaxRows>(exec);
  }
}

template <class Exec, class Scalar>
template <int kWidth, int kRows>
void Gemv<Exec, Scalar>::launch_packets(const Exec& exec) const {
  if (gain.data()) return launch_teams<kWidth, kRows, true>(exec);
  launch_teams<kWidth, kRows, false>(exec);
}

template <class Exec, class Scalar>
template <int kWidth, int kRows, bool kIsNormed>
void Gemv<Exec, Scalar>::launch_teams(const Exec& exec) const {
  constexpr int kTeams =
      kRows > 1 ? 1 : (kIsNormed ? 6 : 8);  // at once on a multiprocessor, for which registers are few
  using Tag = Packets<kWidth, kRows, kIsNormed>;
  using Policy = Kokkos::TeamPolicy<Exec, Tag, Kokkos::LaunchBounds<kLanes, kTeams>>;
  const int outputs = is_gated ? kTile / 2 : kTile;  // of a team
  const std::size_t reals = std::size_t{kLanes / kVectorLanes} * kRows * (kTile + 1);
  Kokkos::parallel_for(kLabel,
                       team_policy<Policy>(exec, ceil_div(y.extent_int(1), outputs), kLanes)
                           .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(reals))),
                       *this);
}

template <class Exec, class Scalar>
template <bool kIsNormed>
void Gemv<Exec, Scalar>::launch_tiles(const Exec& exec) const {
  using Policy = Kokkos::TeamPolicy<Exec, Tiles<kIsNormed>, Kokkos::LaunchBounds<kTileThreads * kVectorLanes, 2>>;
  const int rows = tile_rows(kIsNormed), outputs = is_gated ? rows / 2 : rows;  // of a team
  const std::size_t reals = std::size_t{kTileThreads} * (rows + 1) * kMaxRows;
  Kokkos::parallel_for(kLabel,
                       team_policy<Policy>(exec, ceil_div(y.extent_int(1), outputs), kTileThreads * kVectorLanes)
                           .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(reals))),
                       *this);
}

/// Hosts: a team takes kTile columns of y, row by row.
template <class Exec, class Scalar>
KOKKOS_FUNCTION void Gemv<Exec, Scalar>::operator()(Plain, const Member& team) const {
  const int M = x.extent_int(0), K = x.extent_int(1), N = y.extent_int(1);
  const int first = team.league_rank() * kTile, columns = N - first < kTile ? N - first : kTile;
  Pad<Real, Exec> h(team.team_scratch(0), K);  // what W is multiplied with
  for (int m = 0; m < M; ++m) {
    // 1. stage the row, with the norm
    Real rrms = 1;
    team.team_barrier();  // the row before has been used
    if (!gain.data()) {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, K), [&](int i) { h(i) = static_cast<Real>(x(m, i)); });
    } else {
      const bool keeps = residual.data() && team.league_rank() == 0;
      Real squares = 0;
      Kokkos::parallel_reduce(
          Kokkos::TeamVectorRange(team, K),
          [&](int i, Real& sum) {
            Scalar stored = x(m, i);
            if (delta.data()) stored = static_cast<Scalar>(static_cast<Real>(stored) + static_cast<Real>(delta(m, i)));
            if (keeps) residual(m, i) = stored;
            const Real value = static_cast<Real>(stored);
            sum += value * value;
            h(i) = value * static_cast<Real>(gain(i));
          },
          squares);
      rrms = Real(1) / sqrt(squares / static_cast<Real>(K) + eps);
    }
    team.team_barrier();  // the row is staged

    // 2. a column of y per turn
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, columns), [&](int j) {
      const auto times = [&](int n) {
        const Scalar* row = &w(n, 0);
        Real sum = 0;
        Kokkos::parallel_reduce(
            Kokkos::ThreadVectorRange(team, K), [&](int i, Real& part) { part += h(i) * static_cast<Real>(row[i]); },
            sum);
        return sum * rrms;
      };
      const int n = first + j;
      Real result = times(n);
      if (is_gated) result = result * sigmoid(result) * times(N + n);
      Kokkos::single(Kokkos::PerThread(team), [&] { y(m, n) = static_cast<Scalar>(result); });
    });
  }
}

/// GPUs: the lanes of a team share the sum over k of kTile rows of W.
template <class Exec, class Scalar>
template <int kWidth, int kRows, bool kIsNormed>
KOKKOS_FUNCTION void Gemv<Exec, Scalar>::operator()(Packets<kWidth, kRows, kIsNormed>, const Member& team) const {
  constexpr int kResults = kTile + (kIsNormed ? 1 : 0);  // of a row of x: kTile products, and the sum of squares
  const int M = kRows == 1 ? 1 : x.extent_int(0), K = x.extent_int(1), N = y.extent_int(1);
  const int outputs = is_gated ? kTile / 2 : kTile, first = team.league_rank() * outputs;
  const int lane = lane_of(team), packets = K / kWidth;
  let_successor_start();
  Real* pad = static_cast<Real*>(
      team.team_scratch(0).get_shmem(sizeof(Real) * std::size_t{kLanes / kVectorLanes} * kRows * kResults));

  // Rows of W in the order of the results: gated, the gates before the ups. Beyond the last, it again.
  const auto row_of_w = [&](int t) {
    const int n = first + (is_gated ? t % (kTile / 2) : t), inside = n < N ? n : N - 1;
    return &w(is_gated && t >= kTile / 2 ? N + inside : inside, 0);
  };
  const Scalar* next[kTile];  // this lane's packets of the turn to come
  TESSERA_UNROLL
  for (int t = 0; t < kTile; ++t) next[t] = row_of_w(t) + lane * kWidth;

  // 1. before the wait: the first packets of W are on their way to registers, the next ones to the shared cache
  constexpr int kStages = 2, kTurn = kStages * kLanes;  // packets of each row that a lane, and a team, have in flight
  Packet<Scalar, kWidth> w_p[kStages][kTile];
  const auto read = [&](int turn, int stage) {
    if (turn + stage * kLanes >= packets) return;
    TESSERA_UNROLL
    for (int t = 0; t < kTile; ++t) w_p[stage][t] = load_once<kWidth>(next[t] + stage * kLanes * kWidth);
  };
  const auto advance = [&] {
    TESSERA_UNROLL
    for (int t = 0; t < kTile; ++t) next[t] += kTurn * kWidth;
  };
  TESSERA_UNROLL
  for (int stage = 0; stage < kStages; ++stage) read(lane, stage);
  advance();
  if constexpr (kWidth > 1) {
    const int rest = packets - kTurn, count = rest < kAhead ? rest : kAhead;
    if (lane < kTile && count > 0) {
      fetch_ahead(row_of_w(lane) + kTurn * kWidth, count * static_cast<int>(sizeof(Packet<Scalar, kWidth>)));
    }
  }
  wait_for_predecessor();  // it may write all but W

  // 2. this lane's share of the sums
  const bool keeps = residual.data() && team.league_rank() == 0;
  Real sums[kRows][kResults] = {};
  const auto add = [&](int column, const Packet<Scalar, kWidth>(&from)[kTile]) {
    TESSERA_UNROLL
    for (int m = 0; m < kRows; ++m) {
      if (m >= M) break;
      auto x_p = load<kWidth>(&x(m, column));
      Real h[kWidth];
      if constexpr (kIsNormed) {
        const auto gain_p = load<kWidth>(&gain(column));
        if (delta.data()) {
          const auto delta_p = load<kWidth>(&delta(m, column));
          for (int i = 0; i < kWidth; ++i) x_p.set(i, x_p[i] + delta_p[i]);
          if (keeps) store(&residual(m, column), x_p);
        }
        for (int i = 0; i < kWidth; ++i) {
          sums[m][kTile] += x_p[i] * x_p[i];
          h[i] = x_p[i] * gain_p[i];
        }
      } else {
        for (int i = 0; i < kWidth; ++i) h[i] = x_p[i];
      }
      TESSERA_UNROLL
      for (int t = 0; t < kTile; ++t) {
        for (int i = 0; i < kWidth; ++i) sums[m][t] += h[i] * from[t][i];
      }
    }
  };
  for (int turn = lane; turn < packets; turn += kTurn) {
    TESSERA_UNROLL
    for (int stage = 0; stage < kStages; ++stage) {
      const int p = turn + stage * kLanes;
      if (p < packets) add(p * kWidth, w_p[stage]);
      read(turn + kTurn, stage);
    }
    advance();
  }

  // 3. over the lanes of a thread, then over the threads
  TESSERA_UNROLL
  for (int m = 0; m < kRows; ++m) {
    TESSERA_UNROLL
    for (int t = 0; t < kResults; ++t) sums[m][t] = sum_over_lanes(team, sums[m][t]);
  }
  Kokkos::single(Kokkos::PerThread(team), [&] {
    for (int m = 0; m < kRows; ++m) {
      for (int t = 0; t < kResults; ++t) pad[(team.team_rank() * kRows + m) * kResults + t] = sums[m][t];
    }
  });
  team.team_barrier();  // every thread's sums are in the pad
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, M * outputs), [&](int i) {
    const int m = i / outputs, t = i % outputs;
    const auto total = [&](int result) {
      Real sum = 0;
      for (int thread = 0; thread < kLanes / kVectorLanes; ++thread) {
        sum += pad[(thread * kRows + m) * kResults + result];
      }
      return sum;
    };
    if (first + t >= N) return;
    Real rrms = 1;
    if constexpr (kIsNormed) rrms = Real(1) / sqrt(total(kTile) / static_cast<Real>(K) + eps);
    Real result = rrms * total(t);
    if (is_gated) result = result * sigmoid(result) * (rrms * total(kTile / 2 + t));
    y(m, first + t) = static_cast<Scalar>(result);
  });
}

/// GPUs, 16 bits: the threads of a team share the sum over k of tile_rows(kIsNormed) rows of W, on the tensor cores.
template <class Exec, class Scalar>
template <bool kIsNormed>
KOKKOS_FUNCTION void Gemv<Exec, Scalar>::operator()(Tiles<kIsNormed>, const Member& team) const {
  if constexpr (kHasRowProducts<Exec, Scalar>) {
    // A stage of a thread is kParts times 32 columns of every row of the tile, four packets for a lane; a turn is as
    // many neighbouring stages as are in flight. More rows share the work that a normed h takes.
    constexpr int kRows = tile_rows(kIsNormed), kBlocks = kRows / 16, kParts = 2 / kBlocks;
    constexpr int kWidth = 8, kQuad = 4, kStages = 2, kTurn = kStages * kParts * kQuad;  // packets of a row
    constexpr int kSums = kRows * kMaxRows, kResults = kSums + kMaxRows;
    using Part = Packet<Scalar, kWidth>;
    const int M = x.extent_int(0), K = x.extent_int(1), N = y.extent_int(1);
    const int outputs = is_gated ? kRows / 2 : kRows, first = team.league_rank() * outputs;
    const int lane = lane_of_thread(team), thread = team.team_rank(), row = lane / kQuad, quad = lane % kQuad;
    const int packets = K / kWidth;
    let_successor_start();
    Real* pad = static_cast<Real*>(team.team_scratch(0).get_shmem(sizeof(Real) * kTileThreads * kResults));

    // Row i of the tile: gated, the gates before the ups. Beyond the last row of W, it again.
    const auto row_of_w = [&](int i) {
      const int n = first + (is_gated ? i % (kRows / 2) : i), inside = n < N ? n : N - 1;
      return &w(is_gated && i >= kRows / 2 ? N + inside : inside, 0);
    };
    const Scalar* next[2 * kBlocks];  // this lane's packets of the turn to come
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kBlocks; ++i) next[i] = row_of_w(8 * i + row) + (thread * kTurn + quad) * kWidth;

    // 1. before the wait: as with few rows, see above
    Part w_p[kStages][kParts][2 * kBlocks];
    const auto read = [&](int turn, int stage) {
      TESSERA_UNROLL
      for (int part = 0; part < kParts; ++part) {
        const int offset = (stage * kParts + part) * kQuad;
        const bool is_inside = turn + offset < packets;
        TESSERA_UNROLL
        for (int i = 0; i < 2 * kBlocks; ++i) {
          w_p[stage][part][i] = is_inside ? load_once<kWidth>(next[i] + offset * kWidth) : Part{};
        }
      }
    };
    const auto advance = [&] {
      TESSERA_UNROLL
      for (int i = 0; i < 2 * kBlocks; ++i) next[i] += kTileThreads * kTurn * kWidth;
    };
    const int begin = thread * kTurn + quad;  // this lane's first packet
    TESSERA_UNROLL
    for (int stage = 0; stage < kStages; ++stage) read(begin, stage);
    advance();
    {
      constexpr int kBefore = kTileThreads * kTurn, kMost = kTile * kAhead * 2 / kRows;
      const int rest = packets - kBefore, count = rest < kMost ? rest : kMost;
      if (thread == 0 && lane < kRows && count > 0) {
        fetch_ahead(row_of_w(lane) + kBefore * kWidth, count * static_cast<int>(sizeof(Part)));
      }
    }
    wait_for_predecessor();  // it may write all but W

    // 2. this thread's share of the sums. A normed row keeps its precision as the sum of two Scalars; float16 has the
    //    second one among its normal numbers if it is scaled
    constexpr float kScale = std::is_same_v<Scalar, float16> ? 2048 : 1;
    const bool keeps = residual.data() && team.league_rank() == 0;
    float sums[kBlocks][4] = {}, rests[kBlocks][4] = {}, squares = 0;
    const auto add = [&](int p, const Part(&from)[2 * kBlocks]) {
      const bool is_inside = row < M && p < packets;
      const int column = p * kWidth;
      Part h{}, rest{};
      if constexpr (!kIsNormed) {
        if (is_inside) h = load<kWidth>(&x(row, column));
      } else if (is_inside) {
        const auto gain_p = load<kWidth>(&gain(column));
        auto x_p = load<kWidth>(&x(row, column));
        float values[kWidth], differences[kWidth];
        if (delta.data()) {
          const auto delta_p = load<kWidth>(&delta(row, column));
          for (int e = 0; e < kWidth; ++e) values[e] = x_p[e] + delta_p[e];
          x_p = rounded<Scalar>(values);
          if (keeps) store(&residual(row, column), x_p);
        }
        for (int e = 0; e < kWidth; ++e) {
          squares += x_p[e] * x_p[e];
          values[e] = x_p[e] * gain_p[e];
        }
        h = rounded<Scalar>(values);
        for (int e = 0; e < kWidth; ++e) differences[e] = (values[e] - h[e]) * kScale;
        rest = rounded<Scalar>(differences);
      }
      TESSERA_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        add_row_products<Scalar>(sums[block], from[2 * block], from[2 * block + 1], h);
        if constexpr (kIsNormed) add_row_products<Scalar>(rests[block], from[2 * block], from[2 * block + 1], rest);
      }
    };
    for (int turn = begin; turn - quad < packets; turn += kTileThreads * kTurn) {  // the same turns for all lanes
      TESSERA_UNROLL
      for (int stage = 0; stage < kStages; ++stage) {
        TESSERA_UNROLL
        for (int part = 0; part < kParts; ++part) add(turn + (stage * kParts + part) * kQuad, w_p[stage][part]);
        read(turn + kTileThreads * kTurn, stage);
      }
      advance();
    }

    // 3. over the threads
    Real* mine = pad + thread * kResults;
    TESSERA_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int of_tile = 16 * block + row + i / 2 * 8, of_x = 2 * quad + i % 2;
        mine[of_tile * kMaxRows + of_x] = sums[block][i] + rests[block][i] * (1 / kScale);
      }
    }
    if constexpr (kIsNormed) {
      squares = sum_over_quad(squares);
      if (quad == 0) mine[kSums + row] = squares;
    }
    team.team_barrier();  // every thread's sums are in the pad
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, M * outputs), [&](int i) {
      const int m = i / outputs, t = i % outputs;
      const auto total = [&](int result) {
        Real sum = 0;
        TESSERA_UNROLL
        for (int other = 0; other < kTileThreads; ++other) sum += pad[other * kResults + result];
        return sum;
      };
      if (first + t >= N) return;
      Real rrms = 1;
      if constexpr (kIsNormed) rrms = Real(1) / sqrt(total(kSums + m) / static_cast<Real>(K) + eps);
      Real result = rrms * total(t * kMaxRows + m);
      if (is_gated) result = result * sigmoid(result) * (rrms * total((kRows / 2 + t) * kMaxRows + m));
      y(m, first + t) = static_cast<Scalar>(result);
    });
  }
}

TESSERA_INSTANTIATE_KERNEL(Gemv);

}  // namespace tessera::kernels
