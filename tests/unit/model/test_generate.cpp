#include "model/generate.hpp"

#include <gmock/gmock.h>
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

/// The same text without a cache: how far each token's logit lies below the largest one, in a full forward pass over
/// the tokens that the cache would hold, relative to the largest |logit| of the pass.
template <class Scalar>
std::vector<double> shortfalls(Pass<Scalar>& pass, const std::vector<int>& prompt, const std::vector<int>& generated) {
  const int T = static_cast<int>(pass.shape.T), V = static_cast<int>(pass.shape.V);
  std::vector<int> seen(prompt.end() - std::min<std::ptrdiff_t>(T, prompt.size()), prompt.end());
  std::vector<double> result;
  for (const int token : generated) {
    std::vector<int> row = seen;
    row.push_back(0);  // an unused target
    pass.set_tokens(row, 1, static_cast<int>(seen.size()));
    pass.run(false);
    const std::vector<double> all = pass.logits(), logits(all.end() - V, all.end());
    double size = 0;
    for (const double logit : logits) size = std::max(size, std::abs(logit));
    result.push_back((*std::max_element(logits.begin(), logits.end()) - logits[token]) / size);
    if (static_cast<int>(seen.size()) == T) seen.erase(seen.begin(), seen.end() - T / 2);  // full: keep the newer half
    seen.push_back(token);
  }
  return result;
}

/// Both ways round some ten tensors per block to Scalar, in two blocks, each within an eps or two.
template <class Scalar>
constexpr double kShortfall = 32 * kEpsilon<Scalar>;

template <class Scalar>
struct Generate : ::testing::Test {
  Golden golden;
  Pass<Scalar> pass{golden.shape, {.sequences = 1}};
  Generate() { pass.set_params(golden.flat("params")); }

  std::vector<int> generate(const std::vector<int>& prompt, const GenerateOptions& options,
                            AttentionKind attention = AttentionKind::flash2) {
    return model::generate<Scalar>(Device(), golden.shape, golden.table, pass.weights(),
                                   {attention, kernels::GemmMath::full}, prompt, options, nobody);
  }
  model::Hooks nobody;
};
TYPED_TEST_SUITE(Generate, AllScalars, ScalarNames);

TYPED_TEST(Generate, greedy_takes_the_token_that_a_full_forward_would) {
  // 61 tokens from a context of 24: the cache fills up four times
  for (const AttentionKind attention : {AttentionKind::flash2, AttentionKind::standard}) {
    Pass<TypeParam> slow(this->golden.shape, {.sequences = 1, .attention = attention});
    slow.set_params(this->golden.flat("params"));
    for (const int prompt_tokens : {1, 5, 23, 24, 40}) {
      SCOPED_TRACE(::testing::Message() << "prompt of " << prompt_tokens
                                        << (attention == AttentionKind::standard ? ", standard" : ", flash2"));
      const auto prompt = uniform_int(prompt_tokens, 70 + prompt_tokens, 0, 61);
      const auto tokens = this->generate(prompt, {.max_tokens = 61, .temperature = 0}, attention);
      ASSERT_EQ(tokens.size(), 61u);
      EXPECT_THAT(shortfalls(slow, prompt, tokens), ::testing::Each(::testing::Le(kShortfall<TypeParam>)));
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
  const auto tokens = model::generate<double>(Device(), shape, pass.table, pass.weights(),
                                              {AttentionKind::flash2, kernels::GemmMath::full}, {4},
                                              {.max_tokens = 9, .temperature = 0}, nobody);
  ASSERT_EQ(tokens.size(), 9u);
  EXPECT_THAT(shortfalls(pass, {4}, tokens), ::testing::Each(::testing::Le(kShortfall<double>)));
}

// --- several prompts ------------------------------------------------------------------------------------------------

template <class Scalar>
std::vector<std::vector<int>> generate_all(Generate<Scalar>& with, const std::vector<std::vector<int>>& prompts,
                                           const GenerateOptions& options, std::int64_t parts = 0) {
  return model::generate_together<Scalar>(
      Device(), with.golden.shape, with.golden.table, with.pass.weights(),
      {.attention = AttentionKind::flash2, .math = kernels::GemmMath::full, .decode_parts = parts}, prompts, options,
      with.nobody);
}

/// Of different lengths, up to and beyond a context of 24 tokens.
std::vector<std::vector<int>> prompts_of(int count) {
  std::vector<std::vector<int>> prompts;
  for (int b = 0; b < count; ++b) prompts.push_back(uniform_int(1 + 7 * b % 31, 90 + b, 0, 61));
  return prompts;
}

/// Sequences that take the few-row products, as one does, and so have its bits: on a GPU, 16-bit products of more than
/// two rows are those of tensor cores.
template <class Scalar>
constexpr int kAsOneAlone = sizeof(Scalar) == 2 && !kernels::kIsHost<Device> ? 2 : 5;

TYPED_TEST(Generate, of_several_prompts_continues_each_as_if_alone) {
  const auto prompts = prompts_of(kAsOneAlone<TypeParam>);
  const GenerateOptions greedy{.max_tokens = 61, .temperature = 0};
  const auto together = generate_all(*this, prompts, greedy);
  ASSERT_EQ(together.size(), prompts.size());
  for (std::size_t b = 0; b < prompts.size(); ++b) EXPECT_EQ(together[b], this->generate(prompts[b], greedy)) << b;
}

TEST(GenerateMany, sequences_take_other_kernels_and_give_the_same_tokens) {
  struct With : Generate<double> {
    void TestBody() override {}
  } with;
  const auto prompts = prompts_of(11);  // more than the few-row products take
  const GenerateOptions greedy{.max_tokens = 40, .temperature = 0};
  const auto together = generate_all(with, prompts, greedy);
  for (std::size_t b = 0; b < prompts.size(); ++b) EXPECT_EQ(together[b], with.generate(prompts[b], greedy)) << b;
}

TYPED_TEST(Generate, parts_of_the_keys_change_no_more_than_roundings) {
  if (sizeof(TypeParam) == 2) GTEST_SKIP() << "roundings to 16 bits may change the largest of 61 logits";
  const auto prompts = prompts_of(3);
  const GenerateOptions greedy{.max_tokens = 61, .temperature = 0};
  const auto whole = generate_all(*this, prompts, greedy, 1);
  for (const std::int64_t parts : {2, 3, 16}) EXPECT_EQ(generate_all(*this, prompts, greedy, parts), whole) << parts;
}

TYPED_TEST(Generate, sequences_with_one_prompt_differ_and_end_by_themselves) {
  const std::vector<std::vector<int>> prompts(3, {1, 2, 3});
  GenerateOptions options{.max_tokens = 40, .temperature = 1.5, .top_k = 0, .seed = 3};
  const std::vector few(std::min(3, kAsOneAlone<TypeParam>), prompts[0]);
  EXPECT_EQ(generate_all(*this, few, options)[0], this->generate(prompts[0], options))
      << "the first of several draws what one alone does";
  const auto all = generate_all(*this, prompts, options);
  EXPECT_NE(all[0], all[1]);
  EXPECT_NE(all[1], all[2]);
  options.end_of_text = all[1][7];
  const auto ended = generate_all(*this, prompts, options);
  for (int b = 0; b < 3; ++b) {
    auto last = std::find(all[b].begin(), all[b].end(), options.end_of_text);
    if (last != all[b].end()) ++last;
    EXPECT_EQ(ended[b], std::vector<int>(all[b].begin(), last)) << b;
  }
}

TYPED_TEST(Generate, makes_the_same_launches_in_every_step) {
  GenerateOptions options{.max_tokens = 30, .seed = 9};
  int steps = 0;
  options.run_step = [&](const std::function<void()>& enqueue, bool) {
    ++steps;
    enqueue();
  };
  GenerateOptions plain = options;
  plain.run_step = {};
  EXPECT_EQ(this->generate({7}, options), this->generate({7}, plain));
  EXPECT_EQ(steps, 30);
}

TYPED_TEST(Generate, top_1_is_greedy_whatever_the_temperature) {
  EXPECT_EQ(this->generate({1, 2, 3}, {.max_tokens = 50, .temperature = 5, .top_k = 1}),
            this->generate({1, 2, 3}, {.max_tokens = 50, .temperature = 0}));
}

}  // namespace
}  // namespace tessera::test
