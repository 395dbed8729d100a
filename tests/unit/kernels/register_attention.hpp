/// flash2 in registers, which GPUs run, beside the reference: teams of one thread under Kokkos, and larger ones of the
/// host's threads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "kernels/attention/flash2/register_backward_team.hpp"
#include "kernels/attention/flash2/register_forward_team.hpp"
#include "reference/attention.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/instance.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {

using kernels::RegisterSet, kernels::RegisterTiles;

struct Shape {
  int B, H, Tq, Tk, D;
  bool causal;

  std::size_t queries() const { return std::size_t(B) * H * Tq * D; }
  std::size_t keys() const { return std::size_t(B) * H * Tk * D; }
  double scale() const { return 1 / std::sqrt(D); }
  reference::AttentionShape plain() const { return {B * H, Tq, Tk, D, causal, scale()}; }
};

/// A team of the host's threads: ranks and barriers, as Kokkos has them.
struct ThreadTeam {
  int rank, league;
  std::barrier<>* meet;

  int team_rank() const { return rank; }
  int league_rank() const { return league; }
  void team_barrier() const { meet->arrive_and_wait(); }
};

/// run(team, pad) for `teams` teams of `threads` threads, one after the other, each in a pad full of NaNs.
template <class Real, class Run>
void run_teams(int teams, int threads, int pad_bytes, const Run& run) {
  struct alignas(16) Packet {
    Real element[16 / sizeof(Real)];
  };
  std::vector<Packet> pad(pad_bytes / 16 + 1);
  std::barrier meet(threads);
  const auto work = [&](int rank) {
    for (int league = 0; league < teams; ++league) {
      if (rank == 0) {
        for (Packet& packet : pad)
          for (Real& element : packet.element) element = std::numeric_limits<Real>::quiet_NaN();
      }
      meet.arrive_and_wait();
      run(ThreadTeam{rank, league, &meet}, pad.front().element);
      meet.arrive_and_wait();
    }
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < threads; ++rank) others.emplace_back(work, rank);
  work(0);
  for (std::thread& other : others) other.join();
}

/// Forward and backward of one set of tiles: under Kokkos where its backend has such teams (Serial: of one thread,
/// OpenMP: of as many as it has), else by threads of the host. `of_reference`: what the reference's own sums err.
template <class Scalar, RegisterSet kSet>
void matches_reference(const Shape& s, bool fits_packets, double of_reference = 0) {
  using Real = Accum<Scalar>;
  SCOPED_TRACE(::testing::Message() << "width " << kSet.forward.width << ", " << kSet.forward.threads()
                                    << " threads, Tq " << s.Tq << " Tk " << s.Tk << " D " << s.D
                                    << (s.causal ? " causal" : " all keys")
                                    << (fits_packets ? " in packets" : " by elements"));
  const auto q_in = uniform_as<Scalar>(s.queries(), 1, -2, 2), k_in = uniform_as<Scalar>(s.keys(), 2, -2, 2),
             v_in = uniform_as<Scalar>(s.keys(), 3), d_out_in = uniform_as<Scalar>(s.queries(), 4);
  const Buffer<Scalar> q(q_in), k(k_in), v(v_in), d_out(d_out_in);
  const auto out = Buffer<Scalar>::unwritten(s.queries()), d_q = Buffer<Scalar>::unwritten(s.queries()),
             d_k = Buffer<Scalar>::unwritten(s.keys()), d_v = Buffer<Scalar>::unwritten(s.keys());
  const auto lse = Buffer<Real>::unwritten(std::size_t(s.B) * s.H * s.Tq);
  const auto query = [&](const auto& buffer) { return buffer.heads(s.B, s.H, s.Tq, s.D); };
  const auto key = [&](const auto& buffer) { return buffer.heads(s.B, s.H, s.Tk, s.D); };
  const kernels::RegisterForwardTeam<Device, Scalar, kSet.forward> forward{{.q = query(q),
                                                                            .k = key(k),
                                                                            .v = key(v),
                                                                            .out = query(out),
                                                                            .lse = lse.head_rows(s.B, s.H, s.Tq),
                                                                            .scale = Real(s.scale()),
                                                                            .causal = s.causal},
                                                                           fits_packets};
  using Rows = kernels::RegisterRows<Real>;
  constexpr bool kIs16Bit = sizeof(Scalar) == 2;
  const auto workspace = Buffer<Real>::unwritten(Rows::bytes(kIs16Bit, s.B, s.H, s.Tq, s.D) / sizeof(Real) + 1);
  const kernels::RegisterBackwardTeam<Device, Scalar, kSet.backward> backward{
      {.q = query(q),
       .k = key(k),
       .v = key(v),
       .out = query(out),
       .lse = lse.head_rows(s.B, s.H, s.Tq),
       .d_out = query(d_out),
       .d_q = query(d_q),
       .d_k = key(d_k),
       .d_v = key(d_v),
       .scale = Real(s.scale()),
       .causal = s.causal},
      Rows::in(reinterpret_cast<std::byte*>(workspace.data()), kIs16Bit, s.B, s.H, s.Tq, s.D),
      fits_packets};
  if (std::max(kSet.forward.threads(), kSet.backward.threads()) <= instance().concurrency()) {
    forward.launch(instance());
    backward.launch(instance());
    instance().fence();
  } else {
    const auto teams = [&](int rows, const RegisterTiles& tiles) {
      return s.B * s.H * kernels::ceil_div(rows, tiles.row_tile());
    };
    run_teams<Real>(teams(s.Tq, kSet.forward), kSet.forward.threads(), forward.kPadBytes,
                    [&](const ThreadTeam& team, Real* pad) { forward.run(team, pad); });
    backward.launch_rows(instance());
    instance().fence();
    run_teams<Real>(teams(s.Tk, kSet.backward), kSet.backward.threads(), backward.kPadBytes,
                    [&](const ThreadTeam& team, Real* pad) { backward.run(team, pad); });
  }
  const auto expected = reference::attention_forward(s.plain(), q_in, k_in, v_in);
  const auto gradients = reference::attention_backward(s.plain(), q_in, k_in, v_in, d_out_in);
  // half an epsilon for rounding a result to Scalar, a few of Real for exponents and sums, as for the other kernels
  const double bound = kEpsilon<Scalar> + 8 * kEpsilon<Real> + of_reference;
  const Closeness close{.of_max = bound, .absolute = bound};
  EXPECT_TRUE(all_close<Scalar>(out.values(), expected.out, close));
  EXPECT_TRUE(all_close<Real>(lse.values(), expected.lse, close));
  EXPECT_TRUE(all_close<Scalar>(d_q.values(), gradients.d_q, close));
  EXPECT_TRUE(all_close<Scalar>(d_k.values(), gradients.d_k, close));
  EXPECT_TRUE(all_close<Scalar>(d_v.values(), gradients.d_v, close));
}

}  // namespace tessera::test
