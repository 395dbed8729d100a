#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/embedding.hpp"
#include "reference/embedding.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/gradient_check.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::EmbeddingBackward;
using kernels::EmbeddingForward;

struct Shape {
  int N, V, C;
};
// one of each, primes, fewer words than tokens, one word for all, one and two digits of words, more than one chunk
// of positions, rows made of packets and wider than a team
const std::vector<Shape> kShapes = {{1, 1, 1},       {5, 3, 31},      {7, 11, 32},     {64, 2, 33},
                                    {101, 257, 67},  {300, 1, 40},    {1000, 512, 16}, {5000, 151936, 4},
                                    {9001, 700, 24}, {700, 90, 2560}, {20000, 1, 8}};

template <class Scalar>
std::vector<Scalar> forward(Shape s, const std::vector<int>& tokens, const std::vector<double>& weight) {
  const Buffer<int> tokens_in(tokens);
  const Buffer<Scalar> weight_in(weight);
  const auto out = Buffer<Scalar>::unwritten(s.N * s.C);
  EmbeddingForward<Device, Scalar>{
      .tokens = tokens_in.vector(), .weight = weight_in.matrix(s.V, s.C), .out = out.matrix(s.N, s.C)}
      .launch(instance());
  return out.elements();
}

template <class Scalar, class Grad = Accum<Scalar>>
std::vector<Grad> backward(Shape s, const std::vector<int>& tokens, const std::vector<double>& d_out,
                           const std::vector<double>& before) {
  const Buffer<int> tokens_in(tokens);
  const Buffer<Scalar> d_out_in(d_out);
  const Buffer<Grad> d_weight(before);
  using Kernel = EmbeddingBackward<Device, Scalar, Grad>;
  const auto order = Buffer<int>::unwritten(Kernel::order_size(s.N));
  const auto partial = Buffer<Accum<Scalar>>::unwritten(Kernel::partial_rows(s.N) * s.C);
  Kernel{.tokens = tokens_in.vector(),
         .d_out = d_out_in.matrix(s.N, s.C),
         .d_weight = d_weight.matrix(s.V, s.C),
         .order = order.vector(),
         .partial = partial.matrix(Kernel::partial_rows(s.N), s.C)}
      .launch(instance());
  return d_weight.elements();
}

template <class Element>
std::vector<double> as_double(const std::vector<Element>& elements) {
  return Buffer<Element>(elements).values();
}

template <class Scalar>
struct Embedding : ::testing::Test {};
TYPED_TEST_SUITE(Embedding, AllScalars, ScalarNames);

TYPED_TEST(Embedding, forward_copies_the_rows_of_its_tokens) {
  for (const Shape s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " V " << s.V << " C " << s.C);
    const auto tokens = uniform_int(s.N, 1, 0, s.V);
    const auto weight = uniform_as<TypeParam>(s.V * s.C, 2);
    const auto expected = reference::embedding_forward(tokens, weight, s.C);
    EXPECT_TRUE(all_close<TypeParam>(as_double(forward<TypeParam>(s, tokens, weight)), expected, {}));
  }
}

TYPED_TEST(Embedding, backward_adds_to_what_is_there_and_sums_repeated_tokens) {
  using Real = Accum<TypeParam>;
  for (const Shape s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " V " << s.V << " C " << s.C);
    const auto tokens = uniform_int(s.N, 1, 0, s.V);
    const auto d_out = uniform_as<TypeParam>(s.N * s.C, 3), before = uniform_as<Real>(s.V * s.C, 4);
    const auto expected = reference::embedding_backward(tokens, d_out, s.C, before);
    EXPECT_TRUE(all_close<Real>(as_double(backward<TypeParam>(s, tokens, d_out, before)), expected,
                                {.of_max = tolerance<Real>(s.N)}));
  }
}

TEST(EmbeddingInNarrowGradients, sums_in_float_and_rounds_a_row_once) {
  for (const Shape s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " V " << s.V << " C " << s.C);
    const auto tokens = uniform_int(s.N, 1, 0, s.V);
    const auto d_out = uniform_as<bfloat16>(s.N * s.C, 3), before = uniform_as<bfloat16>(s.V * s.C, 4);
    const auto expected = reference::embedding_backward(tokens, d_out, s.C, before);
    const auto made = backward<bfloat16, bfloat16>(s, tokens, d_out, before);
    EXPECT_TRUE(all_close<bfloat16>(as_double(made), expected,
                                    {.relative = kEpsilon<bfloat16> / 2, .of_max = tolerance<float>(s.N)}));
    EXPECT_TRUE(same_bits(made, backward<bfloat16, bfloat16>(s, tokens, d_out, before)));
  }
}

TYPED_TEST(Embedding, repeats_bit_for_bit) {
  const Shape s{501, 7, 129};
  const auto tokens = uniform_int(s.N, 1, 0, s.V);
  const auto d_out = uniform_as<TypeParam>(s.N * s.C, 3);
  const std::vector<double> zero(s.V * s.C);
  EXPECT_TRUE(same_bits(backward<TypeParam>(s, tokens, d_out, zero), backward<TypeParam>(s, tokens, d_out, zero)));
}

TYPED_TEST(Embedding, launches_under_its_name_on_the_callers_instance) {
  const Shape s{3, 5, 40};
  const OtherInstance other;
  const LaunchRecorder recorder;
  forward<TypeParam>(s, {0, 1, 2}, std::vector<double>(s.V * s.C));
  backward<TypeParam>(s, {0, 1, 2}, std::vector<double>(s.N * s.C), std::vector<double>(s.V * s.C));
  EXPECT_TRUE(launched_under(recorder, "tessera::embedding::", instance()));
  EXPECT_EQ(recorder.launches().size(), 4u);  // forward; place, once for so few words; sum and join
}

TYPED_TEST(Embedding, refuses_shapes_that_disagree_and_launches_nothing_for_no_rows) {
  const auto tokens = Buffer<int>::zeros(16);
  const auto data = Buffer<TypeParam>::zeros(64);
  const auto real = Buffer<Accum<TypeParam>>::zeros(64);
  const auto go_forward = [&](auto n, auto weight, auto out) {
    EmbeddingForward<Device, TypeParam>{.tokens = n, .weight = weight, .out = out}.launch(instance());
  };
  EXPECT_NO_THROW(go_forward(tokens.first(3), data.matrix(5, 4), data.matrix(3, 4)));
  EXPECT_THROW(go_forward(tokens.first(2), data.matrix(5, 4), data.matrix(3, 4)), std::invalid_argument);
  EXPECT_THROW(go_forward(tokens.first(3), data.matrix(5, 3), data.matrix(3, 4)), std::invalid_argument);

  using Kernel = EmbeddingBackward<Device, TypeParam>;
  const auto order = Buffer<int>::zeros(Kernel::order_size(3));
  Kernel backward{};
  backward.order = order.vector(), backward.partial = real.matrix(Kernel::partial_rows(3), 4);
  const auto go_backward = [&](auto n, auto d_out, auto d_weight) {
    backward.tokens = n, backward.d_out = d_out, backward.d_weight = d_weight;
    backward.launch(instance());
  };
  EXPECT_NO_THROW(go_backward(tokens.first(3), data.matrix(3, 4), real.matrix(5, 4)));
  EXPECT_THROW(go_backward(tokens.first(4), data.matrix(3, 4), real.matrix(5, 4)), std::invalid_argument);
  EXPECT_THROW(go_backward(tokens.first(3), data.matrix(3, 4), real.matrix(5, 5)), std::invalid_argument);
  backward.partial = real.matrix(Kernel::partial_rows(3), 3);
  EXPECT_THROW(go_backward(tokens.first(3), data.matrix(3, 4), real.matrix(5, 4)), std::invalid_argument);
  backward.partial = real.matrix(Kernel::partial_rows(3), 4), backward.order = order.first(5);
  EXPECT_THROW(go_backward(tokens.first(3), data.matrix(3, 4), real.matrix(5, 4)), std::invalid_argument);
  backward.order = order.vector();

  const LaunchRecorder recorder;
  go_forward(tokens.first(0), data.matrix(5, 4), data.matrix(0, 4));
  go_backward(tokens.first(0), data.matrix(0, 4), real.matrix(5, 4));
  EXPECT_THAT(recorder.labels(), ::testing::IsEmpty());
}

TEST(EmbeddingGradient, is_that_of_the_forward_kernel) {
  const Shape s{6, 3, 4};
  const std::vector<int> tokens = {2, 0, 2, 2, 1, 0};
  const auto weight = uniform(s.V * s.C, 1), d_out = uniform(s.N * s.C, 2);
  const auto gradient = backward<double>(s, tokens, d_out, std::vector<double>(s.V * s.C));
  EXPECT_TRUE(is_gradient_of([&](const auto& moved) { return dot(forward<double>(s, tokens, moved), d_out); }, weight,
                             gradient));
}

}  // namespace
}  // namespace tessera::test
