#include "model/generate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "errors.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"
#include "unit/model/golden.hpp"
#include "unit/model/pass.hpp"

namespace tessera::test {
namespace {

using kernels::AttentionKind;
using model::GenerateOptions;
using model::sample_token;

/// Generation without a cache: every token from a full forward pass over the tokens that the cache would hold.
template <class Scalar>
std::vector<int> generate_slowly(Pass<Scalar>& pass, const std::vector<int>& prompt, std::int64_t max_tokens) {
  const int T = static_cast<int>(pass.shape.T), V = static_cast<int>(pass.shape.V);
  std::vector<int> seen(prompt.end() - std::min<std::ptrdiff_t>(T, prompt.size()), prompt.end()), generated;
  while (static_cast<std::int64_t>(generated.size()) < max_tokens) {
    std::vector<int> row = seen;
    row.push_back(0);  // an unused target
    pass.set_tokens(row, 1, static_cast<int>(seen.size()));
    pass.run(false);
    const std::vector<double> logits = pass.logits();
    generated.push_back(static_cast<int>(std::max_element(logits.end() - V, logits.end()) - (logits.end() - V)));
    if (static_cast<int>(seen.size()) == T) seen.erase(seen.begin(), seen.end() - T / 2);  // full: keep the newer half
    seen.push_back(generated.back());
  }
  return generated;
}

template <class Scalar>
struct Generate : ::testing::Test {
  Golden golden;
  Pass<Scalar> pass{golden.shape, {.sequences = 1}};
  Generate() { pass.set_params(golden.flat("params")); }

  std::vector<int> generate(const std::vector<int>& prompt, const GenerateOptions& options,
                            AttentionKind attention = AttentionKind::flash2) {
    return model::generate<Device, Scalar>(Device(), golden.shape, golden.table, pass.weights(),
                                           {attention, kernels::GemmMath::full}, prompt, options, nobody);
  }
  model::Hooks nobody;
};
TYPED_TEST_SUITE(Generate, AllScalars, ScalarNames);

TYPED_TEST(Generate, with_the_cache_equals_a_full_forward_for_every_token) {
  // 61 tokens from a context of 24: the cache fills up four times
  for (const AttentionKind attention : {AttentionKind::flash2, AttentionKind::standard}) {
    Pass<TypeParam> slow(this->golden.shape, {.sequences = 1, .attention = attention});
    slow.set_params(this->golden.flat("params"));
    for (const int prompt_tokens : {1, 5, 23, 24, 40}) {
      const auto prompt = uniform_int(prompt_tokens, 70 + prompt_tokens, 0, 61);
      EXPECT_EQ(this->generate(prompt, {.max_tokens = 61, .temperature = 0}, attention),
                generate_slowly(slow, prompt, 61))
          << "prompt of " << prompt_tokens << (attention == AttentionKind::standard ? ", standard" : ", flash2");
    }
  }
}

TYPED_TEST(Generate, repeats_for_a_seed_and_differs_for_another) {
  const GenerateOptions options{.max_tokens = 100, .temperature = 1.5, .top_k = 0, .seed = 3};
  GenerateOptions other = options;
  other.seed = 4;
  const std::vector<int> tokens = this->generate({1, 2, 3}, options);
  EXPECT_EQ(tokens.size(), 100u);
  EXPECT_EQ(this->generate({1, 2, 3}, options), tokens);
  EXPECT_NE(this->generate({1, 2, 3}, other), tokens);
  EXPECT_GT(std::set<int>(tokens.begin(), tokens.end()).size(), 5u);
  for (const int token : tokens) EXPECT_TRUE(token >= 0 && token < 61) << token;
}

TYPED_TEST(Generate, a_longer_run_begins_with_the_shorter_one) {
  GenerateOptions options{.max_tokens = 60, .seed = 9};
  const std::vector<int> longer = this->generate({7}, options);
  options.max_tokens = 13;
  const std::vector<int> shorter = this->generate({7}, options);
  ASSERT_EQ(shorter.size(), 13u);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin()));
}

TYPED_TEST(Generate, stops_after_end_of_text_and_not_before) {
  GenerateOptions options{.max_tokens = 80, .temperature = 1, .top_k = 0, .seed = 2};
  const std::vector<int> all = this->generate({5}, options);
  options.end_of_text = all[40];
  const std::vector<int> cut = this->generate({5}, options);
  const auto first = std::find(all.begin(), all.end(), all[40]);
  EXPECT_EQ(cut, std::vector<int>(all.begin(), first + 1));
  options.max_tokens = 0;
  EXPECT_TRUE(this->generate({5}, options).empty());
}

TYPED_TEST(Generate, is_cut_where_the_caller_says) {
  GenerateOptions options{.max_tokens = 60, .seed = 9};
  const std::vector<int> whole = this->generate({7}, options);
  for (const int length : {0, 1, 30, 59}) {
    int asked = 0;
    options.is_cut = [&] { return asked++ == length; };
    EXPECT_EQ(this->generate({7}, options), std::vector<int>(whole.begin(), whole.begin() + length));
  }
  int asked = 0;
  options.is_cut = [&] { return ++asked > 60; };
  EXPECT_EQ(this->generate({7}, options), whole);
  EXPECT_EQ(asked, 60) << "once for each token";
}

TYPED_TEST(Generate, refuses_an_empty_prompt_and_tokens_that_the_model_does_not_have) {
  EXPECT_THROW(this->generate({}, {}), std::invalid_argument);
  EXPECT_THROW(this->generate({3, 61}, {}), Failure);
  EXPECT_THROW(this->generate({-1}, {}), Failure);
}

TEST(GenerateEdges, a_context_of_one_token_works) {
  const model::Shape shape{11, 1, 16, 1, 2, 16, 1e4, 1e-5};
  Pass<double> pass(shape, {.sequences = 1});
  pass.set_params(uniform(pass.table.flat_count(), 3));
  model::Hooks nobody;
  EXPECT_EQ((model::generate<Device, double>(Device(), shape, pass.table, pass.weights(),
                                             {AttentionKind::flash2, kernels::GemmMath::full}, {4},
                                             {.max_tokens = 9, .temperature = 0}, nobody)),
            generate_slowly(pass, {4}, 9));
}

// --- sampling -------------------------------------------------------------------------------------------------------

constexpr double kAlmostOne = 1 - 0x1p-53;
const std::vector<double> kLogits = {0.5, 2.0, -1.0, 2.0, 1.5};

TEST(SampleToken, temperature_zero_takes_the_largest_and_the_first_of_equals) {
  for (const double u : {0.0, 0.5, kAlmostOne}) {
    EXPECT_EQ(sample_token(kLogits, 0, 0, u), 1);
    EXPECT_EQ(sample_token(kLogits, 0, 3, u), 1);
    EXPECT_EQ(sample_token({-3.0}, 0, 0, u), 0);
  }
}

TEST(SampleToken, top_1_is_the_largest_whatever_the_temperature) {
  for (const double u : {0.0, 0.5, kAlmostOne}) EXPECT_EQ(sample_token(kLogits, 100, 1, u), 1);
}

TEST(SampleToken, draws_each_token_as_often_as_its_softmax_says) {
  for (const double temperature : {0.5, 1.0, 3.0}) {
    for (const std::int64_t top_k : {0, 2, 4, 5, 99}) {
      const std::vector<int> order = {1, 3, 4, 0, 2};  // by size, equals in order
      const std::size_t kept = top_k == 0 ? 5 : std::min<std::size_t>(5, top_k);
      double sum = 0;
      for (std::size_t i = 0; i < kept; ++i) sum += std::exp(kLogits[order[i]] / temperature);
      const int draws = 20000;
      std::vector<int> counts(5, 0);
      for (int i = 0; i < draws; ++i) ++counts[sample_token(kLogits, temperature, top_k, (i + 0.5) / draws)];
      for (std::size_t i = 0; i < 5; ++i) {
        const double expected = i < kept ? draws * std::exp(kLogits[order[i]] / temperature) / sum : 0;
        EXPECT_NEAR(counts[order[i]], expected, 1.01)
            << "token " << order[i] << ", T " << temperature << ", top " << top_k;
      }
    }
  }
}

TEST(SampleToken, the_edges_of_u_are_the_first_and_the_last_token) {
  EXPECT_EQ(sample_token(kLogits, 1, 0, 0), 1);
  EXPECT_EQ(sample_token(kLogits, 1, 0, kAlmostOne), 2);
  EXPECT_EQ(sample_token(kLogits, 1, 3, kAlmostOne), 4);
}

TEST(SampleToken, huge_logits_do_not_overflow) {
  EXPECT_EQ(sample_token({1e6, 1e6 - 1e3, -1e6}, 0.1, 0, kAlmostOne), 0);
  EXPECT_EQ(sample_token({-1e300, -1e300}, 1, 0, 0.7), 1);
}

TEST(SampleToken, never_draws_a_token_without_probability) {
  // a remainder of u from rounding must not select it
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    std::vector<double> logits = uniform(7, seed, -5, 5);
    logits.push_back(-HUGE_VAL);
    logits.push_back(-1e5);
    EXPECT_LT(sample_token(logits, 1, 0, kAlmostOne), 7) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tessera::test
