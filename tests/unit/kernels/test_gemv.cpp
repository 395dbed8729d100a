#include "kernels/gemm/gemv.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::Gemv;

struct Shape {
  int M, N, K;
};
// one; ragged; a team's tile (4, 16 or 64) and one more; lengths that are no multiple of a packet, and of a team's
// lanes; from 3 rows on, with 16 bits, the same for tensor cores: each number of rows, one turn of a team and several
const std::vector<Shape> kShapes = {{1, 1, 1},     {1, 4, 8},    {2, 5, 24},    {3, 64, 40},   {4, 65, 13},
                                    {5, 3, 129},   {8, 7, 64},   {7, 130, 17},  {1, 66, 1024}, {2, 9, 1100},
                                    {8, 33, 2056}, {1, 9, 4104}, {2, 7, 3000},  {3, 17, 64},   {4, 31, 520},
                                    {5, 16, 1096}, {6, 50, 72},  {7, 33, 4104}, {8, 15, 8},    {8, 65, 2064}};

struct What {
  bool is_normed, adds, is_gated;
};
const std::vector<What> kKinds = {
    {false, false, false}, {false, false, true}, {true, false, false}, {true, true, false}, {true, true, true}};
constexpr double kEps = 1e-5;

template <class Scalar>
struct Operands {
  std::vector<double> x, delta, gain, w;
  Operands(const Shape& s, const What& what)
      : x(uniform_as<Scalar>(s.M * s.K, 1)),
        delta(uniform_as<Scalar>(s.M * s.K, 2)),
        gain(uniform_as<Scalar>(s.K, 3, 0.5, 1)),
        w(uniform_as<Scalar>((what.is_gated ? 2 : 1) * s.N * s.K, 4)) {}
};

struct Expected {
  std::vector<double> y, residual;
};
template <class Scalar>
Expected reference_gemv(const Shape& s, const What& what, const Operands<Scalar>& in) {
  Expected result{std::vector<double>(s.M * s.N), std::vector<double>(s.M * s.K)};
  for (int m = 0; m < s.M; ++m) {
    double squares = 0;
    std::vector<double> h(s.K);
    for (int i = 0; i < s.K; ++i) {
      h[i] = in.x[m * s.K + i];
      if (what.adds)
        h[i] = static_cast<double>(
            static_cast<Scalar>(static_cast<Accum<Scalar>>(h[i]) + static_cast<Accum<Scalar>>(in.delta[m * s.K + i])));
      result.residual[m * s.K + i] = h[i];
      squares += h[i] * h[i];
    }
    for (int i = 0; i < s.K && what.is_normed; ++i) h[i] *= in.gain[i] / std::sqrt(squares / s.K + kEps);
    const auto product = [&](int n) {
      double sum = 0;
      for (int i = 0; i < s.K; ++i) sum += h[i] * in.w[std::size_t(n) * s.K + i];
      return sum;
    };
    for (int n = 0; n < s.N; ++n) {
      const double g = product(n);
      result.y[m * s.N + n] = what.is_gated ? g / (1 + std::exp(-g)) * product(s.N + n) : g;
    }
  }
  return result;
}

template <class Scalar>
struct Outcome {
  std::vector<Scalar> y, residual;
};
template <class Scalar>
Outcome<Scalar> run(const Shape& s, const What& what, const Operands<Scalar>& in) {
  const Buffer<Scalar> x(in.x), delta(in.delta), gain(in.gain), w(in.w), y(Buffer<Scalar>::unwritten(s.M * s.N)),
      residual(Buffer<Scalar>::unwritten(s.M * s.K));
  Gemv<Device, Scalar> gemv{.x = x.matrix(s.M, s.K),
                            .w = w.matrix(what.is_gated ? 2 * s.N : s.N, s.K),
                            .y = y.matrix(s.M, s.N),
                            .is_gated = what.is_gated};
  gemv.eps = static_cast<Accum<Scalar>>(kEps);
  if (what.is_normed) gemv.gain = gain.vector();
  if (what.adds) {
    gemv.delta = delta.matrix(s.M, s.K);
    gemv.residual = residual.matrix(s.M, s.K);
  }
  gemv.launch(instance());
  return {y.elements(), residual.elements()};
}

template <class Scalar>
struct GemvTest : ::testing::Test {};
TYPED_TEST_SUITE(GemvTest, AllScalars, ScalarNames);

TYPED_TEST(GemvTest, matches_reference_for_ragged_shapes) {
  for (const Shape& s : kShapes) {
    for (const What& what : kKinds) {
      SCOPED_TRACE(::testing::Message() << "M " << s.M << " N " << s.N << " K " << s.K << " normed " << what.is_normed
                                        << " adds " << what.adds << " gated " << what.is_gated);
      const Operands<TypeParam> in(s, what);
      const auto expected = reference_gemv(s, what, in);
      const auto found = run(s, what, in);
      // operands of the sums reach 2; the gated product of two results grows their errors by their size
      const double root = 1 + std::sqrt(s.K), size = what.is_gated ? 4 * root : 2;
      EXPECT_TRUE(
          all_close<TypeParam>(Buffer<TypeParam>(found.y).values(), expected.y,
                               {.relative = tolerance<TypeParam>(),
                                .absolute = tolerance<Accum<TypeParam>>(s.K) * root * size + kSmallest<TypeParam>},
                               {std::size_t(s.M), std::size_t(s.N)}));
      if (what.adds) {
        EXPECT_EQ(Buffer<TypeParam>(found.residual).values(), expected.residual);
      }
    }
  }
}

TYPED_TEST(GemvTest, repeats_bit_for_bit_and_a_row_does_not_depend_on_the_others) {
  // up to 2 rows, and from 3 on: with 16 bits on a GPU their sums have different orders
  for (const auto& [s, fewer] :
       {std::pair{Shape{2, 66, 264}, Shape{1, 66, 264}}, std::pair{Shape{8, 66, 1264}, Shape{3, 66, 1264}}}) {
    for (const What& what : kKinds) {
      Operands<TypeParam> in(s, what);
      const auto once = run(s, what, in);
      EXPECT_TRUE(same_bits(once.y, run(s, what, in).y));
      in.x.resize(fewer.M * fewer.K);
      in.delta.resize(fewer.M * fewer.K);
      const auto alone = run(fewer, what, in).y;
      EXPECT_TRUE(same_bits(std::vector<TypeParam>(once.y.begin(), once.y.begin() + fewer.M * fewer.N), alone));
    }
  }
}

TYPED_TEST(GemvTest, runs_on_the_callers_instance_in_one_launch) {
  const Operands<TypeParam> in(kShapes[8], kKinds[4]);
  const LaunchRecorder recorder;
  run(kShapes[8], kKinds[4], in);
  EXPECT_TRUE(launched_under(recorder, "tessera::gemm::gemv", instance()));
  EXPECT_EQ(recorder.launches().size(), 1u);
}

TYPED_TEST(GemvTest, refuses_what_does_not_fit) {
  const Buffer<TypeParam> a(std::vector<double>(256)), b(std::vector<double>(256)), c(std::vector<double>(256));
  const Gemv<Device, TypeParam> good{.x = a.matrix(2, 8),
                                     .w = b.matrix(6, 8),
                                     .y = c.matrix(2, 6),
                                     .gain = a.first(8),
                                     .delta = b.matrix(2, 8),
                                     .residual = c.matrix(2, 8),
                                     .eps = 1};
  const auto expect_refusal = [&](auto change) {
    auto bad = good;
    change(bad);
    EXPECT_THROW(bad.launch(instance()), std::invalid_argument);
  };
  EXPECT_NO_THROW(good.launch(instance()));
  expect_refusal([&](auto& g) { g.w = b.matrix(6, 7); });
  expect_refusal([&](auto& g) { g.y = c.matrix(3, 6); });
  expect_refusal([&](auto& g) { g.is_gated = true; });
  expect_refusal([&](auto& g) { g.gain = a.first(7); });
  expect_refusal([&](auto& g) { g.gain = {}; });
  expect_refusal([&](auto& g) { g.delta = {}; });
  expect_refusal([&](auto& g) { g.delta = b.matrix(1, 8); });
  expect_refusal([&](auto& g) { g.residual = c.matrix(2, 7); });
  expect_refusal([&](auto& g) { g.residual = a.matrix(2, 8); });
  expect_refusal([&](auto& g) { g.residual = b.matrix(2, 8); });
  expect_refusal([&](auto& g) {
    g.x = a.matrix(9, 8);
    g.y = c.matrix(9, 6);
    g.delta = g.residual = {};
  });
}

}  // namespace
}  // namespace tessera::test
