#include "model/transformer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"
#include "unit/model/golden.hpp"
#include "unit/model/pass.hpp"

namespace tessera::test {
namespace {

using kernels::AttentionKind;

/// Error of the whole model, relative to the largest entry of a tensor. Between a weight and the loss lie about 12
/// roundings to Scalar per block, forward and again backward; they add up like a random walk. (bfloat16 and float16
/// reach half of it, float and double less than a tenth.)
template <class Scalar>
double model_tolerance(const model::Shape& shape) {
  return std::sqrt(24.0 * static_cast<double>(shape.L)) * tolerance<Scalar>(static_cast<double>(shape.C));
}

template <class Scalar>
struct Transformer : ::testing::Test {
  Golden golden;
};
TYPED_TEST_SUITE(Transformer, AllScalars, ScalarNames);

TYPED_TEST(Transformer, logits_loss_and_every_gradient_are_those_of_the_golden) {
  const Golden& golden = this->golden;
  const double bound = model_tolerance<TypeParam>(golden.shape);
  for (const AttentionKind attention : {AttentionKind::standard, AttentionKind::flash2}) {
    SCOPED_TRACE(attention == AttentionKind::standard ? "standard" : "flash2");
    Pass<TypeParam> pass(golden.shape, {.sequences = golden.B, .attention = attention});
    pass.set_params(golden.flat("params"));
    pass.set_tokens(golden.tokens, golden.B, golden.T);
    pass.run(false);
    EXPECT_TRUE(all_close<TypeParam>(pass.logits(), golden.values("logits"), {.of_max = bound},
                                     {std::size_t(golden.B), std::size_t(golden.T), std::size_t(golden.shape.V)}));
    EXPECT_NEAR(pass.loss, golden.values("loss")[0], bound);
    // 16 bits: the gradient of a mean over 72 tokens would leave float16's normal numbers; scaled as in training
    const double scale = kDtype<TypeParam> == Dtype::fp16 ? 1024 : 1;
    pass.run(true, nullptr, scale / (golden.B * golden.T));
    EXPECT_NEAR(pass.loss, golden.values("loss")[0], bound);
    for (const model::Param& param : golden.table.params()) {
      std::vector<double> grad = pass.grad(param);
      for (double& g : grad) g /= scale;
      EXPECT_TRUE(all_close<TypeParam>(grad, golden.values("grads/" + param.label), {.of_max = bound})) << param.label;
    }
  }
}

TYPED_TEST(Transformer, repeats_bit_for_bit) {
  const Golden& golden = this->golden;
  Pass<TypeParam> pass(golden.shape, {.sequences = golden.B}), again(golden.shape, {.sequences = golden.B});
  for (auto* p : {&pass, &again}) {
    p->set_params(golden.flat("params"));
    p->run(golden.tokens, golden.B, golden.T);
  }
  EXPECT_EQ(pass.loss, again.loss);
  EXPECT_TRUE(same_bits(pass.grads, again.grads));
  pass.run();  // a third time, on memory that has been used
  EXPECT_TRUE(same_bits(pass.grads, again.grads));
}

TYPED_TEST(Transformer, checkpointing_gives_the_same_bits) {
  const Golden& golden = this->golden;
  model::Shape deep = golden.shape;
  deep.L = 5;  // segments of 2 and 3 leave a shorter one; 5 and 7 are a single segment, live at once
  const auto tokens = uniform_int(3 * 25, 5, 0, 61);
  for (const AttentionKind attention : {AttentionKind::standard, AttentionKind::flash2}) {
    Pass<TypeParam> plain(deep, {.sequences = 3, .attention = attention});
    const auto params = uniform(plain.table.flat_count(), 6, -0.3, 0.3);
    plain.set_params(params);
    plain.run(tokens, 3, 24);
    ASSERT_TRUE(std::isfinite(plain.loss));
    for (const int every : {1, 2, 3, 5, 7}) {
      Pass<TypeParam> pass(deep, {.sequences = 3, .checkpoint_blocks = every, .attention = attention});
      pass.set_params(params);
      pass.run(tokens, 3, 24);
      EXPECT_EQ(pass.loss, plain.loss) << "every " << every;
      EXPECT_TRUE(same_bits(pass.grads, plain.grads)) << "every " << every;
      if (every < deep.L) {
        EXPECT_LT(pass.layout.peak_by_category()[3], plain.layout.peak_by_category()[3])
            << "every " << every << " saves nothing";
      }
    }
  }
}

TYPED_TEST(Transformer, a_smaller_batch_in_a_larger_plan_gives_the_same_bits) {
  const Golden& golden = this->golden;
  const int B = 2, T = 17;
  const auto tokens = uniform_int(B * (T + 1), 8, 0, 61);
  for (const AttentionKind attention : {AttentionKind::standard, AttentionKind::flash2}) {
    for (const int checkpoint : {0, 1}) {
      model::Shape exact_shape = golden.shape;
      exact_shape.T = T;
      Pass<TypeParam> exact(exact_shape, {.sequences = B, .checkpoint_blocks = checkpoint, .attention = attention});
      Pass<TypeParam> large(golden.shape, {.sequences = 5, .checkpoint_blocks = checkpoint, .attention = attention});
      for (auto* pass : {&exact, &large}) pass->set_params(golden.flat("params"));
      large.run(uniform_int(5 * 25, 9, 0, 61), 5, 24);  // leaves values in every tensor
      exact.run(tokens, B, T);
      large.run(tokens, B, T);
      EXPECT_EQ(exact.loss, large.loss);
      EXPECT_TRUE(same_bits(exact.grads, large.grads));
    }
  }
}

TYPED_TEST(Transformer, loss_does_not_depend_on_how_the_logits_are_cut_into_chunks) {
  const Golden& golden = this->golden;
  const double bound = model_tolerance<TypeParam>(golden.shape);
  Pass<TypeParam> whole(golden.shape, {.sequences = golden.B});
  whole.set_params(golden.flat("params"));
  whole.run(golden.tokens, golden.B, golden.T);
  for (const int rows : {1, 7, 71}) {
    Pass<TypeParam> pass(golden.shape, {.sequences = golden.B, .chunk_rows = rows});
    pass.set_params(golden.flat("params"));
    pass.run(golden.tokens, golden.B, golden.T);
    EXPECT_NEAR(pass.loss, whole.loss, bound * whole.loss) << rows << " rows";
    for (const model::Param& param : golden.table.params()) {
      EXPECT_TRUE(all_close<TypeParam>(pass.grad(param), whole.grad(param), {.of_max = bound}))
          << param.label << ", " << rows << " rows";
    }
  }
}

/// Everything up to a parameter's gradient is the same arithmetic; the gradient is then rounded once, even if chunks of
/// logits or repeated tokens add to it. A product with 16-bit results may sum in another order than one with 32.
TEST(TransformerWithNarrowGradients, has_those_of_the_golden_and_of_full_gradients_rounded_once) {
  const Golden golden;
  const double bound = model_tolerance<bfloat16>(golden.shape) + kEpsilon<bfloat16> / 2;
  for (const int rows : {0, 1, 7, 71}) {
    const PassOptions options{.sequences = golden.B, .chunk_rows = rows};
    Pass<bfloat16> full(golden.shape, options);
    Pass<bfloat16, bfloat16> narrow(golden.shape, options);
    EXPECT_EQ(narrow.tensors.head_d_weight == memory::kAbsent, rows == 0);
    const auto run = [&](auto& pass) {
      pass.set_params(golden.flat("params"));
      pass.run(golden.tokens, golden.B, golden.T);
    };
    run(full);
    run(narrow);
    EXPECT_EQ(narrow.loss, full.loss);
    for (const model::Param& param : golden.table.params()) {
      const std::vector<double> grad = narrow.grad(param);
      EXPECT_TRUE(all_close<bfloat16>(grad, golden.values("grads/" + param.label), {.of_max = bound}))
          << param.label << ", " << rows << " rows";
      EXPECT_TRUE(
          all_close<bfloat16>(grad, full.grad(param),
                              {.relative = kEpsilon<bfloat16> / 2, .of_max = tolerance<float>(golden.B * golden.T)}))
          << param.label << ", " << rows << " rows";
    }
    const std::vector<double> once = narrow.grads;
    narrow.run();
    EXPECT_TRUE(same_bits(narrow.grads, once)) << rows << " rows";
  }
}

TYPED_TEST(Transformer, launches_nothing_under_another_name) {
  Pass<TypeParam> pass(this->golden.shape, {.sequences = 1, .checkpoint_blocks = 1});
  pass.set_params(this->golden.flat("params"));
  pass.set_tokens(this->golden.tokens, 1, 24);
  const Device exec;
  model::Hooks silent;
  const LaunchRecorder recorder;
  pass.transformer.forward(exec, model::Pass::inference, silent);
  pass.transformer.backward(exec, silent);
  EXPECT_FALSE(recorder.launches().empty());
  for (const std::string& label : recorder.labels()) {
    EXPECT_TRUE(label.starts_with("tessera::") || label.starts_with("KokkosBlas::")) << label;
  }
}

// --- in double: the exact arithmetic -------------------------------------------------------------------------------

struct TransformerInDouble : ::testing::Test {
  Golden golden;
  std::vector<double> params = golden.flat("params");
};

TEST_F(TransformerInDouble, agrees_with_the_golden_to_ten_digits) {
  Pass<double> pass(golden.shape, {.sequences = golden.B, .checkpoint_blocks = 2});
  pass.set_params(params);
  pass.set_tokens(golden.tokens, golden.B, golden.T);
  pass.run(false);
  EXPECT_TRUE(all_close<double>(pass.logits(), golden.values("logits"), {.of_max = 1e-12}));
  pass.run();
  EXPECT_NEAR(pass.loss, golden.values("loss")[0], 1e-13);
  for (const model::Param& param : golden.table.params()) {
    EXPECT_TRUE(all_close<double>(pass.grad(param), golden.values("grads/" + param.label), {.of_max = 1e-12}))
        << param.label;
  }
}

TEST_F(TransformerInDouble, gradients_are_those_of_finite_differences) {
  Pass<double> pass(golden.shape, {.sequences = golden.B});
  pass.set_params(params);
  pass.run(golden.tokens, golden.B, golden.T);
  const std::vector<double> grads = pass.grads;
  constexpr double step = 1e-5;  // errors of about 1e-10 |loss'''| and 1e-11 |loss|
  for (const model::Param& param : golden.table.params()) {
    for (const std::int64_t i : {std::int64_t{0}, param.count / 3, param.count - 1}) {
      const std::int64_t at = param.first + i;
      double losses[2];
      for (const int side : {0, 1}) {
        std::vector<double> moved = params;
        moved[at] += side == 0 ? step : -step;
        pass.set_params(moved);
        pass.run(false);
        losses[side] = pass.loss;
      }
      EXPECT_NEAR(grads[at], (losses[0] - losses[1]) / (2 * step), 1e-8 * (1 + std::abs(grads[at])))
          << param.label << "[" << i << "]";
    }
  }
}

TEST_F(TransformerInDouble, gradients_and_losses_add_up_over_calls_and_follow_the_scale) {
  Pass<double> pass(golden.shape, {.sequences = 3});
  pass.set_params(params);
  pass.run(golden.tokens, 3, 24);
  const std::vector<double> whole = pass.grads;
  const double loss_sum = pass.loss_sum;

  for (int b = 0; b < 3; ++b) {
    pass.set_tokens({golden.tokens.begin() + b * 25, golden.tokens.begin() + (b + 1) * 25}, 1, 24);
    b == 0 ? pass.run(true, nullptr, 1.0 / 72) : pass.add(true, nullptr, 1.0 / 72);
  }
  EXPECT_NEAR(pass.loss_sum, loss_sum, 1e-12 * loss_sum);
  EXPECT_TRUE(all_close<double>(pass.grads, whole, {.of_max = 1e-12}));

  pass.set_tokens(golden.tokens, 3, 24);
  pass.run(true, nullptr, 8.0 / 72);
  std::vector<double> eighth = pass.grads;
  for (double& g : eighth) g /= 8;
  EXPECT_TRUE(same_bits(eighth, whole));  // a power of two changes no rounding
}

TEST_F(TransformerInDouble, a_later_token_changes_no_earlier_logits) {
  Pass<double> pass(golden.shape, {.sequences = 1});
  pass.set_params(params);
  std::vector<int> tokens(golden.tokens.begin(), golden.tokens.begin() + 25);
  pass.set_tokens(tokens, 1, 24);
  pass.run(false);
  const std::vector<double> before = pass.logits();
  tokens[10] = (tokens[10] + 1) % 61;
  pass.set_tokens(tokens, 1, 24);
  pass.run(false);
  const std::vector<double> after = pass.logits();
  const std::size_t row = 10 * 61;
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + row, after.begin()));
  for (int t = 10; t < 24; ++t) {
    EXPECT_FALSE(std::equal(before.begin() + t * 61, before.begin() + (t + 1) * 61, after.begin() + t * 61))
        << "row " << t;
  }
}

TEST_F(TransformerInDouble, an_ignored_target_gives_no_loss_and_no_gradient) {
  Pass<double> pass(golden.shape, {.sequences = 2});
  pass.set_params(params);
  pass.set_tokens(golden.tokens, 1, 24);
  pass.run(true, nullptr, 1.0 / 24);
  const std::vector<double> one = pass.grads;
  const double loss = pass.loss * 24;
  pass.set_tokens(golden.tokens, 2, 24);
  upload(pass.transformer.targets().data() + 24, std::vector<int>(24, -1));  // of the whole second sequence
  pass.run(true, nullptr, 1.0 / 24);
  EXPECT_NEAR(pass.loss * 48, loss, 1e-12);
  EXPECT_TRUE(all_close<double>(pass.grads, one, {.of_max = 1e-13}));
}

TEST_F(TransformerInDouble, refuses_more_than_was_planned) {
  Pass<double> pass(golden.shape, {.sequences = 2});
  EXPECT_NO_THROW(pass.transformer.set_batch(2, 24));
  EXPECT_THROW(pass.transformer.set_batch(3, 24), std::invalid_argument);
  EXPECT_THROW(pass.transformer.set_batch(2, 25), std::invalid_argument);
  EXPECT_THROW(pass.transformer.set_batch(2, 0), std::invalid_argument);
  EXPECT_THROW(pass.transformer.logits(Device(), 47, 2), std::invalid_argument);
  EXPECT_THROW(pass.transformer.logits(Device(), -1, 1), std::invalid_argument);
}

}  // namespace
}  // namespace tessera::test
