#include "kernels/sample.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/core/random.hpp"
#include "reference/sample.hpp"
#include "support/buffer.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::SampleTokens;

struct Draw {
  double temperature = 1;
  std::int64_t top_k = 0;
  std::uint64_t seed = 1;
};

/// `times` tokens for each row of `logits` [B,V], drawn one after the other: [times][B].
template <class Scalar>
std::vector<std::vector<int>> draw(const std::vector<double>& logits, int B, const Draw& how, int times = 1) {
  const Buffer<Scalar> in(logits);
  const auto drawn = Buffer<int>::zeros(B);
  std::vector<std::vector<int>> tokens;
  for (int i = 0; i < times; ++i) {
    const auto out = Buffer<int>::unwritten(B);
    SampleTokens<Device, Scalar>{.logits = in.matrix(B, static_cast<int>(logits.size()) / B),
                                 .drawn = drawn.vector(),
                                 .tokens = out.vector(),
                                 .temperature = how.temperature,
                                 .top_k = how.top_k,
                                 .seed = how.seed}
        .launch(instance());
    tokens.push_back(out.elements());
  }
  EXPECT_EQ(drawn.elements(), std::vector<int>(B, times));
  return tokens;
}

template <class Scalar>
struct Sample : ::testing::Test {
  static std::vector<double> logits(std::size_t n, std::uint64_t seed) { return uniform_as<Scalar>(n, seed, -6, 6); }
};
TYPED_TEST_SUITE(Sample, AllScalars, ScalarNames);

// one token; fewer than segments; around 32 segments, packets of them, and strips; primes; vocabularies of models
const std::vector<int> kVocabularies = {1, 2, 31, 32, 33, 61, 256, 257, 1024, 5003, 8192, 50257};

TYPED_TEST(Sample, draws_the_token_in_whose_share_of_the_sum_u_lies) {
  const int B = 2, times = 5;
  for (const int V : kVocabularies) {
    for (const double temperature : {0.3, 1.0, 4.0}) {
      for (const int top_k : {0, 1, 2, 40, V - 1, V, 2 * V}) {
        const auto in = this->logits(std::size_t(B) * V, V);
        const Draw how{.temperature = temperature, .top_k = top_k, .seed = 7};
        const auto tokens = draw<TypeParam>(in, B, how, times);
        for (int b = 0; b < B; ++b) {
          const auto p = reference::probabilities({in.begin() + b * V, in.begin() + (b + 1) * V}, temperature, top_k);
          for (int i = 0; i < times; ++i) {
            const int token = tokens[i][b];
            ASSERT_TRUE(token >= 0 && token < V) << token;
            const double u = tessera::uniform(mix(mix(how.seed, b), i));
            const double before = std::accumulate(p.begin(), p.begin() + token, 0.0);
            const double slack = (20 / temperature + 10) * kEpsilon<Accum<TypeParam>>;
            EXPECT_GT(p[token], 0) << "V " << V << " top " << top_k;
            EXPECT_GE(u, before - slack) << "V " << V << " top " << top_k;
            EXPECT_LE(u, before + p[token] + slack) << "V " << V << " top " << top_k;
          }
        }
      }
    }
  }
}

TYPED_TEST(Sample, temperature_zero_takes_the_largest_and_the_first_of_equals) {
  for (const int V : kVocabularies) {
    auto in = this->logits(V, V);
    const int at = V / 3, again = V - 1;
    in[at] = in[again] = 7;
    EXPECT_EQ(draw<TypeParam>(in, 1, {.temperature = 0})[0][0], at);
    EXPECT_EQ(draw<TypeParam>(in, 1, {.temperature = 0, .top_k = 5})[0][0], at);
    EXPECT_EQ(draw<TypeParam>(in, 1, {.temperature = 9, .top_k = 1})[0][0], at);
  }
  EXPECT_EQ(draw<TypeParam>({-2, -0.0, 0.0, -1}, 1, {.temperature = 0})[0][0], 1) << "0 and -0 are equal";
}

TYPED_TEST(Sample, of_equal_logits_top_k_keeps_the_first) {
  for (const int V : {64, 1500, 20000}) {
    std::vector<double> in(V, 1.5);  // one of them larger, some smaller
    for (int v = 0; v < V; v += 3) in[v] = -1;
    in[V - 2] = 2;
    std::vector<int> seen(V);
    for (const auto& tokens : draw<TypeParam>(in, 1, {.temperature = 1, .top_k = 4}, 200)) ++seen[tokens[0]];
    for (int v = 0; v < V; ++v) EXPECT_EQ(seen[v] > 0, v == 1 || v == 2 || v == 4 || v == V - 2) << v;
  }
}

TYPED_TEST(Sample, draws_each_token_as_often_as_its_softmax_says) {
  const std::vector<double> in = {0.5, 2.0, -1.0, 2.0, 1.5};
  const int times = 4000;
  for (const int top_k : {0, 3}) {
    const auto p = reference::probabilities(in, 1.5, top_k);
    std::vector<int> counts(in.size());
    for (const auto& tokens : draw<TypeParam>(in, 1, {.temperature = 1.5, .top_k = top_k}, times)) ++counts[tokens[0]];
    for (std::size_t v = 0; v < in.size(); ++v) {
      EXPECT_NEAR(counts[v], times * p[v], 4 * std::sqrt(times * p[v] * (1 - p[v]))) << "token " << v;  // 4 sigma
    }
  }
}

TYPED_TEST(Sample, repeats_for_a_seed_and_differs_between_seeds_sequences_and_draws) {
  const std::vector<double> same(2 * 1000, 0.0);
  const auto once = draw<TypeParam>(same, 2, {.seed = 3}, 20);
  EXPECT_EQ(draw<TypeParam>(same, 2, {.seed = 3}, 20), once);
  EXPECT_NE(draw<TypeParam>(same, 2, {.seed = 4}, 20), once);
  int equal_rows = 0, equal_draws = 0;
  for (int i = 0; i < 20; ++i) {
    equal_rows += once[i][0] == once[i][1];
    equal_draws += i > 0 && once[i][0] == once[i - 1][0];
  }
  EXPECT_LT(equal_rows, 3);
  EXPECT_LT(equal_draws, 3);
}

TYPED_TEST(Sample, infinities_and_nan_give_a_token_of_the_vocabulary) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const int top_k : {0, 2}) {
    for (int i = 0; i < 50; ++i) {
      const auto token = draw<TypeParam>({1, -infinity, 2, -infinity}, 1, {.top_k = top_k, .seed = std::uint64_t(i)});
      EXPECT_TRUE(token[0][0] == 0 || token[0][0] == 2) << "without probability: " << token[0][0];
    }
    EXPECT_EQ(draw<TypeParam>({1, infinity, 2}, 1, {.top_k = top_k})[0][0], 1);
    const double nan_of_gpus = std::bit_cast<double>(~std::uint64_t{0} >> 1);  // all bits but the sign
    for (const double some : {-infinity, std::nan(""), nan_of_gpus}) {
      for (const double other : {some, 1.0}) {
        const int token = draw<TypeParam>({some, other, other}, 1, {.top_k = top_k})[0][0];
        EXPECT_TRUE(token >= 0 && token < 3) << token;
      }
    }
  }
}

TYPED_TEST(Sample, refuses_what_does_not_fit) {
  const Buffer<TypeParam> in(std::vector<double>(6));
  const auto ints = Buffer<int>::zeros(3);
  const auto sample = [&](int B, int V, int drawn, int tokens, double temperature, int top_k) {
    SampleTokens<Device, TypeParam>{in.matrix(B, V), ints.first(drawn), ints.first(tokens), temperature, top_k, 1}
        .launch(instance());
  };
  EXPECT_THROW(sample(2, 3, 1, 2, 1, 0), std::invalid_argument);
  EXPECT_THROW(sample(2, 3, 2, 3, 1, 0), std::invalid_argument);
  EXPECT_THROW(sample(2, 0, 2, 2, 1, 0), std::invalid_argument);
  EXPECT_THROW(sample(2, 3, 2, 2, -1, 0), std::invalid_argument);
  EXPECT_THROW(sample(2, 3, 2, 2, 1, -1), std::invalid_argument);
  EXPECT_NO_THROW(sample(0, 3, 0, 0, 1, 0));
}

}  // namespace
}  // namespace tessera::test
