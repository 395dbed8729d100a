// flash2 in registers, which GPUs run: here teams of one thread under Kokkos, and larger ones of the host's threads.
#include <gtest/gtest.h>

#include <barrier>
#include <map>
#include <thread>
#include <utility>

#include "kernels/attention/flash2/register_backward_team.hpp"
#include "kernels/attention/flash2/register_forward_team.hpp"
#include "reference/attention.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/instance.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::RegisterSet, kernels::RegisterTiles;

// --- the map of ownership ------------------------------------------------------------------------------------------

/// How often the threads of a team own each pair of numbers that own(tiles) names.
template <class Tiles, class Own>
std::map<std::pair<int, int>, int> owners(const Own& own) {
  std::map<std::pair<int, int>, int> count;
  for (int rank = 0; rank < Tiles::kThreads; ++rank) own(Tiles(rank), [&](int a, int b) { ++count[{a, b}]; });
  return count;
}

::testing::AssertionResult covers_once(const std::map<std::pair<int, int>, int>& count, int rows, int columns) {
  if (static_cast<int>(count.size()) != rows * columns)
    return ::testing::AssertionFailure() << count.size() << " of " << rows * columns << " elements are owned";
  for (const auto& [at, times] : count) {
    if (times != 1 || at.first < 0 || at.first >= rows || at.second < 0 || at.second >= columns)
      return ::testing::AssertionFailure()
             << "(" << at.first << ", " << at.second << ") is owned " << times << " times";
  }
  return ::testing::AssertionSuccess();
}

template <class Real, int kDown, int kAcross>
void owns_every_element_once() {
  SCOPED_TRACE(::testing::Message() << kDown << " x " << kAcross << " threads");
  constexpr int kRows = kernels::kPackOf<Real> * (kDown % 2 + 1), kColumns = 3, kPackets = 2;
  using Tiles = kernels::ThreadTiles<Real, kDown, kAcross, kRows>;
  const auto scores = owners<Tiles>([](const Tiles& own, auto visit) {
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kColumns; ++j) visit(own.row(i), own.column(j));
  });
  EXPECT_TRUE(covers_once(scores, kDown * kRows, kAcross * kColumns));
  const auto output = owners<Tiles>([](const Tiles& own, auto visit) {
    for (int i = 0; i < kRows; ++i)
      for (int g = 0; g < kPackets; ++g)
        for (int e = 0; e < Tiles::kPack; ++e) visit(own.row(i), own.channel(g) + e);
  });
  EXPECT_TRUE(covers_once(output, kDown * kRows, kAcross * kPackets * Tiles::kPack));
  const auto transposed = owners<Tiles>([](const Tiles& own, auto visit) {
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kColumns; ++j) visit(own.column(j), own.position(i));
  });
  EXPECT_TRUE(covers_once(transposed, kAcross * kColumns, kDown * kRows));
}

template <class Real, int... kCells>
void owns_every_element_once(std::integer_sequence<int, kCells...>) {
  (owns_every_element_once<Real, kCells / 16 + 1, kCells % 16 + 1>(), ...);
}

TEST(ThreadTiles, own_every_element_of_a_tile_once_in_teams_of_1_to_256) {
  owns_every_element_once<float>(std::make_integer_sequence<int, 256>());
}

TEST(ThreadTiles, own_every_element_of_a_tile_once_in_doubles) {
  owns_every_element_once<double, 1, 1>();
  owns_every_element_once<double, 3, 5>();
  owns_every_element_once<double, 8, 4>();
  owns_every_element_once<double, 16, 16>();
}

// --- the kernels ---------------------------------------------------------------------------------------------------

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
/// OpenMP: of as many as it has), else by threads of the host.
template <class Scalar, RegisterSet kSet>
void matches_reference(const Shape& s, bool fits_packets) {
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
  const double bound = kEpsilon<Scalar> + 8 * kEpsilon<Real>;
  const Closeness close{.of_max = bound, .absolute = bound};
  EXPECT_TRUE(all_close<Scalar>(out.values(), expected.out, close));
  EXPECT_TRUE(all_close<Real>(lse.values(), expected.lse, close));
  EXPECT_TRUE(all_close<Scalar>(d_q.values(), gradients.d_q, close));
  EXPECT_TRUE(all_close<Scalar>(d_k.values(), gradients.d_k, close));
  EXPECT_TRUE(all_close<Scalar>(d_v.values(), gradients.d_v, close));
}

template <class Scalar>
struct RegisterAttention : ::testing::Test {};
TYPED_TEST_SUITE(RegisterAttention, AllScalars, ScalarNames);

constexpr RegisterSet kOneThread{{32, 1, 1, 8, 8}, {32, 1, 1, 8, 8}};
constexpr RegisterSet kOneThreadOverlaid{{64, 1, 1, 8, 4, 1, true}, {64, 1, 1, 4, 16, 1, true, 1}};

/// Ragged lengths, both masks, queries that see no key, keys that no query sees, rows that no packet fits.
TYPED_TEST(RegisterAttention, of_one_thread_matches_reference) {
  for (const bool causal : {false, true}) {
    for (const Shape& s : {Shape{1, 1, 1, 1, 8, causal}, Shape{2, 3, 9, 9, 16, causal}, Shape{1, 2, 3, 0, 8, causal},
                           Shape{1, 2, 1, 35, 32, causal}, Shape{1, 2, 40, 7, 24, causal}}) {
      for (const bool fits : {false, true}) matches_reference<TypeParam, kOneThread>(s, fits);
    }
    for (const int D : {1, 5, 13}) matches_reference<TypeParam, kOneThread>({1, 1, 17, 21, D, causal}, false);
    matches_reference<TypeParam, kOneThreadOverlaid>({1, 2, 19, 33, 48, causal}, true);
    matches_reference<TypeParam, kOneThreadOverlaid>({1, 2, 33, 19, 61, causal}, false);
  }
}

constexpr RegisterSet kTwoThreads{{32, 2, 1, 8, 8, 1, false, 1}, {32, 1, 2, 8, 4, 1, false, 1}};
constexpr RegisterSet kFourThreads{{32, 2, 2, 4, 6, 1, false, 2}, {32, 4, 1, 4, 8, 1, true}};

TYPED_TEST(RegisterAttention, of_few_threads_matches_reference) {
  for (const bool causal : {false, true}) {
    matches_reference<TypeParam, kTwoThreads>({1, 2, 37, 37, 32, causal}, true);
    matches_reference<TypeParam, kFourThreads>({1, 2, 37, 37, 32, causal}, true);
    matches_reference<TypeParam, kFourThreads>({1, 1, 30, 41, 21, causal}, false);
  }
}

template <class Scalar, bool kIsLarge, int kWidth>
void tiles_of_gpus_match_reference() {
  constexpr kernels::Target kGpu = kIsLarge ? kernels::gpu_target("90a") : kernels::Target{.is_host = false};
  constexpr RegisterSet kSet = kernels::register_tiles(kGpu, sizeof(Accum<Scalar>), kWidth);
  matches_reference<Scalar, kSet>({1, 1, 67, 67, kWidth, true}, true);
  matches_reference<Scalar, kSet>({1, 1, 21, 50, kWidth - 16, false}, true);
  if (kWidth != 64) return;
  matches_reference<Scalar, RegisterSet{kSet.forward.on_step(4), kSet.backward}>({1, 1, 67, 67, kWidth, true}, true);
}

TEST(RegisterTiles, of_gpus_match_reference_in_every_width) {
  tiles_of_gpus_match_reference<float, false, 32>();
  tiles_of_gpus_match_reference<float, false, 64>();
  tiles_of_gpus_match_reference<float, false, 96>();
  tiles_of_gpus_match_reference<float, false, 128>();
  tiles_of_gpus_match_reference<float, false, 192>();
  tiles_of_gpus_match_reference<float, false, 256>();
  tiles_of_gpus_match_reference<bfloat16, true, 64>();
  tiles_of_gpus_match_reference<double, true, 96>();
}

}  // namespace
}  // namespace tessera::test
