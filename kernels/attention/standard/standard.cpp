#include "kernels/attention/standard/standard.hpp"  // the contract is there; here is how

#include <limits>

#include "kernels/attention/check.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/team.hpp"
#include "kernels/cuda/portable.hpp"
#include "kernels/gemm/head_gemm.hpp"
#include "kernels/gemm/head_product.hpp"

namespace tessera::kernels {
namespace {

/// c = factor * a b for each head, by one or the other.
template <class Exec, class Scalar>
struct Products {
  const Exec& exec;
  ProductsBy by;
  GemmMath math;

  void operator()(const char* label, const HeadTensor<const Scalar, Exec>& a, const HeadTensor<const Scalar, Exec>& b,
                  const HeadTensor<Scalar, Exec>& c, Accum<Scalar> factor) const {
    if (by == ProductsBy::library) {
      HeadGemm<Exec, Scalar>{label, a, b, c, factor, math}.launch(exec);
    } else {
      HeadProduct<Exec, Scalar>{label, a, b, c, factor}.launch(exec);
    }
  }
};

/// A row of scores: of which query, and how many of its keys that query sees.
struct ScoreRow {
  int b, h, i, seen;

  template <class Scores>
  KOKKOS_FORCEINLINE_FUNCTION ScoreRow(const Scores& scores, bool causal, int row) {
    const int H = scores.extent_int(1), Tq = scores.extent_int(2), Tk = scores.extent_int(3);
    i = row % Tq;
    h = row / Tq % H;
    b = row / Tq / H;
    seen = keys_seen(causal, i + Tk - Tq, Tk);
  }
};

/// Launches `kernel`, with rows in registers where they fit there.
template <class Exec, class Scalar, class Kernel, class... Scores>
void launch_rows(const char* label, const Exec& exec, const Kernel& kernel, const Scores&... scores) {
  const auto rows_of = [](const auto& first, const auto&...) {
    return std::int64_t{first.extent_int(0)} * first.extent_int(1) * first.extent_int(2);
  };
  const auto keys_of = [](const auto& first, const auto&...) { return first.extent_int(3); };
  const std::int64_t rows = rows_of(scores...), keys = keys_of(scores...);
  TESSERA_REQUIRE(rows <= std::numeric_limits<int>::max(),
                  "attention: B*H*Tq must be less than 2^31: split the tensors into smaller batches", rows);
  if (rows == 0) return;
  if constexpr (!kIsHost<Exec>) {
    constexpr int kKept = Kernel::kKept, kMostLanes = 512;
    const auto launch = [&]<class How>(How, std::int64_t teams, std::int64_t lanes) {
      using Policy = Kokkos::TeamPolicy<Exec, How, Kokkos::LaunchBounds<kMostLanes>>;
      const auto pad_bytes = Pad<Accum<Scalar>, Exec>::shmem_size(2 * kJoinPad);
      Kokkos::parallel_for(
          label, team_policy<Policy>(exec, teams, lanes).set_scratch_size(0, Kokkos::PerTeam(pad_bytes)), kernel);
    };
    if (keys <= kMostLanes * kKept) {
      return in_packets<Exec, Scalar>(rows_fit_packets(scores...), [&](auto how) {
        constexpr int kWidth = decltype(how)::kElements, kThreads = 4;
        if (keys <= kVectorLanes * kKept) {
          launch(typename Kernel::template Kept<true, kWidth>{}, ceil_div(rows, kThreads), kThreads * kVectorLanes);
        } else {
          launch(typename Kernel::template Kept<false, kWidth>{}, rows, ceil_div(keys, kKept));
        }
      });
    }
  }
  using Policy = Kokkos::TeamPolicy<Exec, typename Kernel::Reread>;
  Kokkos::parallel_for(label, team_policy<Policy>(exec, rows), kernel);
}

/// The row of a thread or a team.
template <bool kPerThread, class Member>
KOKKOS_FORCEINLINE_FUNCTION int row_of(const Member& team) {
  return kPerThread ? team.league_rank() * team.team_size() + team.team_rank() : team.league_rank();
}
template <bool kPerThread, int kWidth, int kSlots, class Member>
KOKKOS_FORCEINLINE_FUNCTION RowShare<kWidth, kSlots> share_of(const Member& team, int columns) {
  if constexpr (kPerThread) return RowShare<kWidth, kSlots>(lane_of_thread(team), kVectorLanes, columns);
  if constexpr (!kPerThread) return RowShare<kWidth, kSlots>(team, columns);
}
/// Joins one value of each thread's lanes over the threads of a row; all its lanes get the result.
template <bool kPerThread, class Member, class Real, class Join>
KOKKOS_FORCEINLINE_FUNCTION Real join_threads(const Member& team, Real of_thread, [[maybe_unused]] Real* pad,
                                              const Join& join) {
  if constexpr (kPerThread) return of_thread;
  Kokkos::single(Kokkos::PerThread(team), [&] { pad[team.team_rank()] = of_thread; });
  team.team_barrier();  // all threads have written
  Real of_row = pad[0];
  for (int thread = 1; thread < team.team_size(); ++thread) of_row = join(of_row, pad[thread]);
  return of_row;
}
template <bool kPerThread, class Member, class Real>
KOKKOS_FORCEINLINE_FUNCTION Real max_of_row(const Member& team, Real mine, Real* pad) {
  return join_threads<kPerThread>(team, max_over_lanes(team, mine), pad, [](Real a, Real b) { return larger(a, b); });
}
template <bool kPerThread, class Member, class Real>
KOKKOS_FORCEINLINE_FUNCTION Real sum_of_row(const Member& team, Real mine, Real* pad) {
  return join_threads<kPerThread>(team, sum_over_lanes(team, mine), pad, [](Real a, Real b) { return a + b; });
}

}  // namespace

// --- forward -------------------------------------------------------------------------------------------------------

template <class Exec, class Scalar>
void StandardForward<Exec, Scalar>::launch(const Exec& exec) const {
  const auto& [q, k, v, out, lse, scale, causal] = task;
  detail::require_same_heads("standard forward: v must have k's shape", k, v);
  detail::require_same_heads("standard forward: out must have q's shape", q, out);
  detail::require_head_rows("standard forward: lse must be [B,H,Tq]", q, lse);
  const Products<Exec, Scalar> multiply{exec, by, math};
  multiply("tessera::attention::standard::scores", q, transposed(k), probabilities, scale);
  SoftmaxRows<Exec, Scalar>{{}, probabilities, lse, causal}.launch(exec);
  multiply("tessera::attention::standard::out", probabilities, v, out, 1);
}

template <class Exec, class Scalar>
void SoftmaxRows<Exec, Scalar>::launch(const Exec& exec) const {
  detail::require_head_rows("softmax rows: lse must be [B,H,Tq]", scores, lse);
  detail::require_same_heads("softmax rows: rows must be contiguous", scores, scores);
  launch_rows<Exec, Scalar>("tessera::attention::standard::softmax", exec, *this, scores);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void SoftmaxRows<Exec, Scalar>::operator()(Reread, const Member& team) const {
  const ScoreRow at(scores, causal, team.league_rank());
  const int seen = at.seen;
  Scalar* row = &scores(at.b, at.h, at.i, 0);

  Real top = -HUGE_VAL;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, seen),
      [&](int j, Real& most) {
        const Real score = static_cast<Real>(row[j]);
        most = score > most ? score : most;
      },
      Kokkos::Max<Real>(top));
  Real sum = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, seen),
      [&](int j, Real& total) { total += fast_exp(static_cast<Real>(row[j]) - top); }, sum);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, scores.extent_int(3)), [&](int j) {
    row[j] = static_cast<Scalar>(j < seen ? fast_exp(static_cast<Real>(row[j]) - top) / sum : Real(0));
  });
  Kokkos::single(Kokkos::PerTeam(team), [&] { lse(at.b, at.h, at.i) = seen > 0 ? top + log(sum) : Real(-HUGE_VAL); });
}

template <class Exec, class Scalar>
template <bool kPerThread, int kWidth>
KOKKOS_FUNCTION void SoftmaxRows<Exec, Scalar>::operator()(Kept<kPerThread, kWidth>, const Member& team) const {
  constexpr int kSlots = kKept / kWidth;
  const int number = row_of<kPerThread>(team), Tk = scores.extent_int(3);
  if (number >= lse.extent_int(0) * lse.extent_int(1) * lse.extent_int(2)) return;  // kPerThread; no barrier follows
  const ScoreRow row(scores, causal, number);
  const int seen = row.seen;
  Scalar* data = &scores(row.b, row.h, row.i, 0);
  Real* pad = Pad<Real, Exec>(team.team_scratch(0), 2 * kJoinPad).data();
  const auto seen_share = share_of<kPerThread, kWidth, kSlots>(team, round_up(seen, kWidth));

  // 1. read what is seen, and its maximum
  Packet<Scalar, kWidth> in[kSlots];
  seen_share.load_row(data, in);
  Real value[kSlots][kWidth] = {};  // 0 beyond the packets that are seen
  Real top = -HUGE_VAL;
  seen_share.each([&](int slot, int column) {
    for (int i = 0; i < kWidth; ++i) {
      value[slot][i] = column + i < seen ? in[slot][i] : Real(-HUGE_VAL);
      top = larger(top, value[slot][i]);
    }
  });
  top = max_of_row<kPerThread>(team, top, pad);

  // 2. exponentials and their sum
  Real sum = 0;
  const ShiftedExp<Scalar> exponential{top};
  seen_share.each([&](int slot, int) {
    for (int i = 0; i < kWidth; ++i) {
      value[slot][i] = exponential(value[slot][i]);
      sum += value[slot][i];
    }
  });
  sum = sum_of_row<kPerThread>(team, sum, pad + kJoinPad);

  // 3. write the whole row
  const Real factor = seen > 0 ? 1 / sum : Real(0);
  share_of<kPerThread, kWidth, kSlots>(team, Tk).each([&](int slot, int column) {
    Packet<Scalar, kWidth> p;
    for (int i = 0; i < kWidth; ++i) p.set(i, value[slot][i] * factor);
    store(data + column, p);
  });
  if (seen_share.lane == 0) lse(row.b, row.h, row.i) = seen > 0 ? top + log(sum) : Real(-HUGE_VAL);
}

// --- backward ------------------------------------------------------------------------------------------------------

template <class Exec, class Scalar>
void StandardBackward<Exec, Scalar>::launch(const Exec& exec) const {
  const auto& [q, k, v, out, lse, d_out, d_q, d_k, d_v, scale, causal] = task;
  detail::require_same_heads("standard backward: v must have k's shape", k, v);
  detail::require_same_heads("standard backward: d_out must have q's shape", q, d_out);
  detail::require_same_heads("standard backward: d_q must have q's shape", q, d_q);
  detail::require_same_heads("standard backward: d_k must have k's shape", k, d_k);
  detail::require_same_heads("standard backward: d_v must have k's shape", k, d_v);
  const HeadTensor<const Scalar, Exec> d_s = d_scores;
  const Products<Exec, Scalar> multiply{exec, by, math};
  multiply("tessera::attention::standard::d_v", transposed(probabilities), d_out, d_v, 1);
  multiply("tessera::attention::standard::d_probabilities", d_out, transposed(v), d_scores, 1);
  SoftmaxRowsBackward<Exec, Scalar>{{}, probabilities, d_scores, causal}.launch(exec);
  multiply("tessera::attention::standard::d_q", d_s, k, d_q, scale);
  multiply("tessera::attention::standard::d_k", transposed(d_s), q, d_k, scale);
}

template <class Exec, class Scalar>
void SoftmaxRowsBackward<Exec, Scalar>::launch(const Exec& exec) const {
  detail::require_same_heads("softmax rows backward: probabilities must have contiguous rows", probabilities,
                             probabilities);
  detail::require_same_heads("softmax rows backward: d_scores must have the probabilities' shape and contiguous rows",
                             probabilities, d_scores);
  launch_rows<Exec, Scalar>("tessera::attention::standard::softmax_backward", exec, *this, d_scores, probabilities);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void SoftmaxRowsBackward<Exec, Scalar>::operator()(Reread, const Member& team) const {
  const ScoreRow at(d_scores, causal, team.league_rank());
  const int seen = at.seen;
  const Scalar* p = &probabilities(at.b, at.h, at.i, 0);
  Scalar* d_s = &d_scores(at.b, at.h, at.i, 0);
  Real delta = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, seen),
      [&](int j, Real& sum) { sum += static_cast<Real>(p[j]) * static_cast<Real>(d_s[j]); }, delta);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, d_scores.extent_int(3)), [&](int j) {
    d_s[j] = static_cast<Scalar>(j < seen ? static_cast<Real>(p[j]) * (static_cast<Real>(d_s[j]) - delta) : Real(0));
  });
}

template <class Exec, class Scalar>
template <bool kPerThread, int kWidth>
KOKKOS_FUNCTION void SoftmaxRowsBackward<Exec, Scalar>::operator()(Kept<kPerThread, kWidth>, const Member& team) const {
  constexpr int kSlots = kKept / kWidth;
  const int number = row_of<kPerThread>(team), Tk = d_scores.extent_int(3);
  if (number >= d_scores.extent_int(0) * d_scores.extent_int(1) * d_scores.extent_int(2)) return;
  const ScoreRow row(d_scores, causal, number);
  const Scalar* p_row = &probabilities(row.b, row.h, row.i, 0);
  Scalar* d_row = &d_scores(row.b, row.h, row.i, 0);
  const auto seen_share = share_of<kPerThread, kWidth, kSlots>(team, round_up(row.seen, kWidth));

  // 1. read what is seen, and its sum
  Packet<Scalar, kWidth> p[kSlots], d[kSlots];
  seen_share.load_row(d_row, d);
  seen_share.load_row(p_row, p);
  Real delta = 0;
  seen_share.each([&](int slot, int column) {
    for (int i = 0; i < kWidth; ++i) delta += column + i < row.seen ? p[slot][i] * d[slot][i] : Real(0);
  });
  Real* pad = Pad<Real, Exec>(team.team_scratch(0), 2 * kJoinPad).data();
  delta = sum_of_row<kPerThread>(team, delta, pad);

  // 2. write the whole row
  share_of<kPerThread, kWidth, kSlots>(team, Tk).each([&](int slot, int column) {
    Packet<Scalar, kWidth> d_s;
    for (int i = 0; i < kWidth; ++i) {
      d_s.set(i, column + i < row.seen ? p[slot][i] * (d[slot][i] - delta) : Real(0));
    }
    store(d_row + column, d_s);
  });
}

TESSERA_INSTANTIATE_KERNEL(StandardForward);
TESSERA_INSTANTIATE_KERNEL(SoftmaxRows);
TESSERA_INSTANTIATE_KERNEL(StandardBackward);
TESSERA_INSTANTIATE_KERNEL(SoftmaxRowsBackward);

}  // namespace tessera::kernels
