#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/attention/attention.hpp"
#include "kernels/gemm/head_product.hpp"
#include "reference/attention.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/gradient_check.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::AttentionChoice, kernels::AttentionKind, kernels::GemmMath;

struct Shape {
  int B, H, Tq, Tk, D;
  bool causal;

  std::size_t queries() const { return std::size_t(B) * H * Tq * D; }
  std::size_t keys() const { return std::size_t(B) * H * Tk * D; }
  std::size_t pairs() const { return std::size_t(B) * H * Tq * Tk; }
  double scale() const { return 1 / std::sqrt(D); }
  reference::AttentionShape plain() const { return {B * H, Tq, Tk, D, causal, scale()}; }
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "B " << s.B << " H " << s.H << " Tq " << s.Tq << " Tk " << s.Tk << " D " << s.D
             << (s.causal ? " causal" : " all keys");
}

/// Both masks, with: one token; a tile (64) less one, one tile, plus one; primes; D from 1 over odd ones and 80 to 256;
/// one new query on many keys (decoding); more queries than keys (the first see nothing when causal); no keys at all.
std::vector<Shape> shapes() {
  std::vector<Shape> list;
  for (const bool causal : {false, true}) {
    list.insert(list.end(), {{1, 1, 1, 1, 8, causal},
                             {1, 1, 5, 5, 1, causal},
                             {2, 3, 63, 63, 16, causal},
                             {1, 2, 64, 64, 80, causal},
                             {2, 1, 65, 65, 8, causal},
                             {1, 1, 131, 131, 64, causal},
                             {1, 2, 17, 17, 13, causal},
                             {1, 1, 20, 20, 256, causal},
                             {1, 2, 1, 97, 32, causal},
                             {1, 1, 7, 130, 32, causal},
                             {1, 2, 130, 7, 32, causal},
                             {1, 1, 70, 66, 24, causal},
                             {1, 2, 3, 0, 8, causal}});
  }
  return list;
}

struct Inputs {
  std::vector<double> q, k, v, d_out;
};
template <class Scalar>
Inputs inputs(const Shape& s) {
  return {uniform_as<Scalar>(s.queries(), 1, -2, 2), uniform_as<Scalar>(s.keys(), 2, -2, 2),
          uniform_as<Scalar>(s.keys(), 3), uniform_as<Scalar>(s.queries(), 4)};
}

/// The largest scale |q_i| |k_j|, at most.
double largest_score(const Shape& s, const Inputs& in) {
  const auto longest = [&](const std::vector<double>& rows) {
    double most = 0;
    for (std::size_t row = 0; row < rows.size(); row += s.D) {
      most = std::max(most, std::inner_product(&rows[row], &rows[row] + s.D, &rows[row], 0.0));
    }
    return std::sqrt(most);
  };
  return s.scale() * longest(in.q) * longest(in.k);
}

/// For forward and then for backward.
template <class Scalar>
Buffer<float> workspace_for(const AttentionChoice& choice, const Shape& s) {
  return Buffer<float>::unwritten(
      std::max(kernels::attention_forward_workspace_bytes(choice, kDtype<Scalar>, s.B, s.H, s.Tq, s.D),
               kernels::attention_workspace_bytes(choice, kDtype<Scalar>, s.B, s.H, s.Tq, s.D)) /
      4);
}
kernels::Vector<std::byte, Device> bytes_of(const Buffer<float>& workspace) {
  return kernels::Vector<std::byte, Device>(reinterpret_cast<std::byte*>(workspace.data()),
                                            workspace.size() * sizeof(float));
}

/// Forward and backward of one implementation, each tensor contiguous.
template <class Scalar>
struct Outcome {
  using Real = Accum<Scalar>;
  Buffer<Scalar> out, d_q, d_k, d_v;
  Buffer<Real> lse;

  Outcome(const AttentionChoice& choice, const Shape& s, const Inputs& in, GemmMath math = GemmMath::full)
      : out(Buffer<Scalar>::unwritten(s.queries())),
        d_q(Buffer<Scalar>::unwritten(s.queries())),
        d_k(Buffer<Scalar>::unwritten(s.keys())),
        d_v(Buffer<Scalar>::unwritten(s.keys())),
        lse(Buffer<Real>::unwritten(std::size_t(s.B) * s.H * s.Tq)) {
    const Buffer<Scalar> q(in.q), k(in.k), v(in.v), d_out(in.d_out);
    const auto probabilities = Buffer<Scalar>::unwritten(s.pairs()), d_scores = Buffer<Scalar>::unwritten(s.pairs());
    const auto query = [&](const auto& buffer) { return buffer.heads(s.B, s.H, s.Tq, s.D); };
    const auto key = [&](const auto& buffer) { return buffer.heads(s.B, s.H, s.Tk, s.D); };
    const auto pair = [&](const auto& buffer) { return buffer.heads(s.B, s.H, s.Tq, s.Tk); };
    const Buffer<float> workspace = workspace_for<Scalar>(choice, s);
    const kernels::Attention<Device, Scalar> attention{.choice = choice,
                                                       .q = query(q),
                                                       .k = key(k),
                                                       .v = key(v),
                                                       .out = query(out),
                                                       .lse = lse.head_rows(s.B, s.H, s.Tq),
                                                       .probabilities = pair(probabilities),
                                                       .scale = Real(s.scale()),
                                                       .causal = s.causal,
                                                       .math = math,
                                                       .workspace = bytes_of(workspace)};
    attention.forward(instance());
    attention.backward(instance(), {.d_out = query(d_out),
                                    .d_q = query(d_q),
                                    .d_k = key(d_k),
                                    .d_v = key(d_v),
                                    .d_scores = pair(d_scores),
                                    .workspace = bytes_of(workspace)});
  }
};

AttentionChoice choice_of(AttentionKind kind, int steps, int query_tile = 0, int key_tile = 0) {
  AttentionChoice choice = kind;
  if (steps != kernels::kNoLadder) choice.steps = steps;
  choice.query_tile = query_tile;
  choice.key_tile = key_tile;
  return choice;
}

template <class ScalarType, AttentionKind kKind, int kSteps = kernels::kNoLadder>
struct Case {
  using Scalar = ScalarType;
  [[maybe_unused]] static constexpr AttentionKind kind = kKind;
  static AttentionChoice choice() { return choice_of(kKind, kSteps); }
  static std::string name() {
    const std::string steps = kSteps == kernels::kNoLadder ? "_" : "_" + std::to_string(kSteps) + "_steps_";
    return std::string(name_of(kKind)) + steps + std::string(kScalarName<Scalar>);
  }
};
template <class S>
using Standard = Case<S, AttentionKind::standard>;
template <class S>
using StandardTeams = Case<S, AttentionKind::standard, 0>;  // products by team kernels
template <class S>
using Tiled = Case<S, AttentionKind::tiled>;
template <class S>
using Flash1 = Case<S, AttentionKind::flash1>;
template <class S>
using Flash2 = Case<S, AttentionKind::flash2>;
template <class S>
using Flash2Ladder = Case<S, AttentionKind::flash2, 3>;
using AllCases =
    ::testing::Types<Standard<double>, Standard<float>, Standard<bfloat16>, Standard<float16>, StandardTeams<double>,
                     StandardTeams<float>, StandardTeams<bfloat16>, StandardTeams<float16>, Flash2<double>,
                     Flash2<float>, Flash2<bfloat16>, Flash2<float16>, Flash1<double>, Flash1<float>, Flash1<bfloat16>,
                     Case<bfloat16, AttentionKind::flash1, 4>, Flash2Ladder<double>, Flash2Ladder<float>,
                     Flash2Ladder<bfloat16>, Flash2Ladder<float16>, Tiled<float>, Tiled<bfloat16>>;
struct CaseNames {
  template <class C>
  static std::string GetName(int) {
    return C::name();
  }
};

template <class C>
struct Attention : ::testing::Test {
  using Scalar = typename C::Scalar;
  using Real = Accum<Scalar>;

  /// Half an epsilon for rounding a result to Scalar; standard also rounds scores and probabilities, errors that
  /// average out over the keys. Exponents and sums add a few epsilons of Real, without growth in Tk, since
  /// probabilities sum to one. Scores up to about 5, as of inputs(), need no more; larger ones have errors of their own
  /// size.
  static Closeness closeness(double score = 0) {
    const bool is_standard = C::kind == AttentionKind::standard;
    const double bound = is_standard ? (2 + score) * kEpsilon<Scalar> + 8 * kEpsilon<Real>
                                     : kEpsilon<Scalar> + (8 + score) * kEpsilon<Real>;
    return {.of_max = bound, .absolute = bound};
  }
};
TYPED_TEST_SUITE(Attention, AllCases, CaseNames);

/// Whether a team has scratch for the tiles. 48 KiB do not hold flash1's smallest ones at the largest D.
template <class Scalar>
bool has_room(const AttentionChoice& choice, int D) {
  return kernels::attention_pad_bytes(choice, kDtype<Scalar>, D) <= scratch_limit(kernels::kHere);
}

template <class Scalar>
void matches_reference(const AttentionChoice& choice, const Shape& s, const Inputs& in, Closeness close,
                       GemmMath math = GemmMath::full) {
  SCOPED_TRACE(::testing::Message() << s);
  if (!has_room<Scalar>(choice, s.D)) {
    EXPECT_THROW(Outcome<Scalar>(choice, s, in, math), std::invalid_argument);
    return;
  }
  const Outcome<Scalar> got(choice, s, in, math);
  const auto expected = reference::attention_forward(s.plain(), in.q, in.k, in.v);
  const auto gradients = reference::attention_backward(s.plain(), expected, in.q, in.k, in.v, in.d_out);
  const auto shape = [&](int T) {
    return std::vector<std::size_t>{std::size_t(s.B), std::size_t(s.H), std::size_t(T), std::size_t(s.D)};
  };
  EXPECT_TRUE(all_close<Scalar>(got.out.values(), expected.out, close, shape(s.Tq)));
  EXPECT_TRUE(all_close<Accum<Scalar>>(got.lse.values(), expected.lse, close));
  EXPECT_TRUE(all_close<Scalar>(got.d_q.values(), gradients.d_q, close, shape(s.Tq)));
  EXPECT_TRUE(all_close<Scalar>(got.d_k.values(), gradients.d_k, close, shape(s.Tk)));
  EXPECT_TRUE(all_close<Scalar>(got.d_v.values(), gradients.d_v, close, shape(s.Tk)));
}

template <class Scalar>
void matches_reference(const AttentionChoice& choice, const Shape& s, Closeness close, GemmMath math = GemmMath::full) {
  matches_reference<Scalar>(choice, s, inputs<Scalar>(s), close, math);
}

TYPED_TEST(Attention, matches_reference_for_ragged_shapes_and_both_masks) {
  for (const Shape& s : shapes()) {
    matches_reference<typename TypeParam::Scalar>(TypeParam::choice(), s, this->closeness());
  }
}

TYPED_TEST(Attention, keeps_its_error_bound_with_large_scores) {
  using Scalar = typename TypeParam::Scalar;
  const Shape s{1, 2, 70, 70, 64, true};
  for (const double factor : {4, 16}) {  // powers of two: no rounding
    Inputs in = inputs<Scalar>(s);
    for (double& entry : in.q) entry *= factor;
    matches_reference<Scalar>(TypeParam::choice(), s, in, this->closeness(largest_score(s, in)));
  }
}

TYPED_TEST(Attention, keeps_its_error_bound_over_many_queries) {
  using Scalar = typename TypeParam::Scalar;
  const Shape s{1, 1, 65536, 16, 16, false};
  Inputs in = inputs<Scalar>(s);
  in.d_out.assign(in.d_out.size(), 1);  // terms of one sign
  Closeness close = this->closeness();
  if (std::is_same_v<Scalar, double>) close.of_max += 2 * std::sqrt(s.Tq) * kEpsilon<double>;  // the reference's own
  matches_reference<Scalar>(TypeParam::choice(), s, in, close);
}

TYPED_TEST(Attention, a_query_that_sees_no_key_gives_zero_and_minus_infinity) {
  using Scalar = typename TypeParam::Scalar;
  const Shape s{1, 2, 130, 7, 32, true};  // queries 0..122 see nothing
  const Outcome<Scalar> got(TypeParam::choice(), s, inputs<Scalar>(s));
  const auto out = got.out.values(), lse = got.lse.values(), d_q = got.d_q.values();
  for (int h = 0; h < s.H; ++h) {
    for (int i = 0; i < s.Tq - s.Tk; ++i) {
      ASSERT_EQ(lse[h * s.Tq + i], -std::numeric_limits<double>::infinity());
      for (int d = 0; d < s.D; ++d) {
        ASSERT_EQ(out[(h * s.Tq + i) * s.D + d], 0);
        ASSERT_EQ(d_q[(h * s.Tq + i) * s.D + d], 0);
      }
    }
  }
}

TYPED_TEST(Attention, ignores_keys_after_t) {
  using Scalar = typename TypeParam::Scalar;
  const Shape s{1, 1, 100, 100, 16, true};
  constexpr int t = 70;
  Inputs in = inputs<Scalar>(s);
  const auto before = Outcome<Scalar>(TypeParam::choice(), s, in).out.elements();
  for (std::size_t i = (t + 1) * s.D; i < in.k.size(); ++i) in.k[i] = 1000, in.v[i] = -1000;
  const auto after = Outcome<Scalar>(TypeParam::choice(), s, in).out.elements();
  const auto until_t = [&](const auto& all) { return std::vector<Scalar>(all.begin(), all.begin() + (t + 1) * s.D); };
  EXPECT_TRUE(same_bits(until_t(before), until_t(after)));
  EXPECT_FALSE(same_bits(before, after));
}

TYPED_TEST(Attention, large_scores_neither_overflow_nor_become_nan) {
  using Scalar = typename TypeParam::Scalar;
  const Shape s{1, 1, 66, 66, 8, false};
  Inputs in = inputs<Scalar>(s);
  for (double& q : in.q) q *= 16;
  for (double& k : in.k) k *= 16;  // scores up to 2900, far beyond exp's range; their rounding shows as 2900 eps
  const Outcome<Scalar> got(TypeParam::choice(), s, in);
  for (const auto* result : {&got.out, &got.d_q, &got.d_k, &got.d_v}) {
    for (double value : result->values()) ASSERT_TRUE(std::isfinite(value));
  }
  if (kEpsilon<Scalar> <= kEpsilon<float> && TypeParam::kind != AttentionKind::standard) {
    const auto expected = reference::attention_forward(s.plain(), in.q, in.k, in.v);
    EXPECT_TRUE(all_close<Scalar>(got.out.values(), expected.out, {.absolute = 3000 * kEpsilon<Scalar>}));
  }
}

TYPED_TEST(Attention, a_nan_in_a_query_shows_in_its_output_and_in_no_other) {
  using Scalar = typename TypeParam::Scalar;
  const Shape s{1, 1, 70, 70, 8, true};
  Inputs in = inputs<Scalar>(s);
  constexpr int bad = 66;
  in.q[bad * s.D + 3] = std::nan("");
  const auto out = Outcome<Scalar>(TypeParam::choice(), s, in).out.values();
  for (int i = 0; i < s.Tq; ++i) ASSERT_EQ(std::isnan(out[i * s.D]), i == bad) << i;
}

/// As the transformer lays them out. The head width decides whether heads begin at multiples of 16 bytes there.
template <class TypeParam>
void reads_q_k_v_inside_the_fused_buffer(int head_width) {
  using Scalar = typename TypeParam::Scalar;
  using Real = Accum<Scalar>;
  const Shape s{2, 3, 77, 77, head_width, true};
  SCOPED_TRACE(::testing::Message() << s);
  const Inputs in = inputs<Scalar>(s);
  const Outcome<Scalar> expected(TypeParam::choice(), s, in);

  const int B = s.B, H = s.H, T = s.Tq, D = s.D, C = H * D;
  std::vector<double> qkv(std::size_t(B) * T * 3 * C), d_out(s.queries());
  const auto at_row = [&](int b, int h, int t, int d) { return (std::size_t(b) * T + t) * C + h * D + d; };
  const auto at_qkv = [&](int part, int b, int h, int t, int d) {
    return (std::size_t(b) * T + t) * 3 * C + part * C + h * D + d;
  };
  const auto each = [&](auto visit) {
    std::size_t flat = 0;
    for (int b = 0; b < B; ++b)
      for (int h = 0; h < H; ++h)
        for (int t = 0; t < T; ++t)
          for (int d = 0; d < D; ++d) visit(flat++, b, h, t, d);
  };
  each([&](std::size_t i, int b, int h, int t, int d) {
    qkv[at_qkv(0, b, h, t, d)] = in.q[i], qkv[at_qkv(1, b, h, t, d)] = in.k[i], qkv[at_qkv(2, b, h, t, d)] = in.v[i];
    d_out[at_row(b, h, t, d)] = in.d_out[i];
  });
  const Buffer<Scalar> qkv_in(qkv), d_out_in(d_out);
  const auto out = Buffer<Scalar>::unwritten(s.queries()), d_qkv = Buffer<Scalar>::unwritten(qkv.size());
  const auto probabilities = Buffer<Scalar>::unwritten(s.pairs()), d_scores = Buffer<Scalar>::unwritten(s.pairs());
  const auto lse = Buffer<Real>::unwritten(std::size_t(B) * H * T);
  const auto part = [&](const auto& buffer, int p) {
    return kernels::heads_of_qkv<Device>(buffer.data(), p, B, H, T, D);
  };
  const auto rows = [&](const auto& buffer) { return kernels::heads_of_rows<Device>(buffer.data(), B, H, T, D); };
  const Buffer<float> workspace = workspace_for<Scalar>(TypeParam::choice(), s);
  const kernels::Attention<Device, Scalar> attention{.choice = TypeParam::choice(),
                                                     .q = part(qkv_in, 0),
                                                     .k = part(qkv_in, 1),
                                                     .v = part(qkv_in, 2),
                                                     .out = rows(out),
                                                     .lse = lse.head_rows(B, H, T),
                                                     .probabilities = probabilities.heads(B, H, T, T),
                                                     .scale = Real(s.scale()),
                                                     .causal = true,
                                                     .workspace = bytes_of(workspace)};
  attention.forward(instance());
  attention.backward(instance(), {.d_out = rows(d_out_in),
                                  .d_q = part(d_qkv, 0),
                                  .d_k = part(d_qkv, 1),
                                  .d_v = part(d_qkv, 2),
                                  .d_scores = d_scores.heads(B, H, T, T),
                                  .workspace = bytes_of(workspace)});

  const auto all_rows = out.values(), all_gradients = d_qkv.values();
  std::vector<double> got_out(s.queries()), d_q(s.queries()), d_k(s.keys()), d_v(s.keys());
  each([&](std::size_t i, int b, int h, int t, int d) {
    got_out[i] = all_rows[at_row(b, h, t, d)];
    d_q[i] = all_gradients[at_qkv(0, b, h, t, d)];
    d_k[i] = all_gradients[at_qkv(1, b, h, t, d)];
    d_v[i] = all_gradients[at_qkv(2, b, h, t, d)];
  });
  // The same bits; a library may choose another algorithm for other strides.
  const bool is_library = TypeParam::kind == AttentionKind::standard && TypeParam::choice().steps == kernels::kNoLadder;
  const Closeness close = is_library ? Attention<TypeParam>::closeness() : Closeness{};
  EXPECT_TRUE(all_close<Real>(lse.values(), expected.lse.values(), close));
  EXPECT_TRUE(all_close<Scalar>(got_out, expected.out.values(), close));
  EXPECT_TRUE(all_close<Scalar>(d_q, expected.d_q.values(), close));
  EXPECT_TRUE(all_close<Scalar>(d_k, expected.d_k.values(), close));
  EXPECT_TRUE(all_close<Scalar>(d_v, expected.d_v.values(), close));
}

TYPED_TEST(Attention, reads_q_k_v_inside_the_fused_buffer_and_writes_rows) {
  for (const int D : {16, 13}) reads_q_k_v_inside_the_fused_buffer<TypeParam>(D);
}

TYPED_TEST(Attention, repeats_bit_for_bit) {
  using Scalar = typename TypeParam::Scalar;
  const Shape s{1, 2, 150, 150, 24, true};
  const Inputs in = inputs<Scalar>(s);
  const Outcome<Scalar> one(TypeParam::choice(), s, in), two(TypeParam::choice(), s, in);
  EXPECT_TRUE(same_bits(one.out.elements(), two.out.elements()));
  EXPECT_TRUE(same_bits(one.lse.elements(), two.lse.elements()));
  EXPECT_TRUE(same_bits(one.d_q.elements(), two.d_q.elements()));
  EXPECT_TRUE(same_bits(one.d_k.elements(), two.d_k.elements()));
  EXPECT_TRUE(same_bits(one.d_v.elements(), two.d_v.elements()));
}

TYPED_TEST(Attention, launches_under_its_name_on_the_callers_instance) {
  using Scalar = typename TypeParam::Scalar;
  const Shape s{1, 1, 5, 5, 8, true};
  const Inputs in = inputs<Scalar>(s);
  const OtherInstance other;
  const LaunchRecorder recorder;
  const Outcome<Scalar> outcome(TypeParam::choice(), s, in);
  EXPECT_TRUE(launched_under(recorder, "tessera::attention::", instance()));
}

TYPED_TEST(Attention, refuses_shapes_that_disagree) {
  using Scalar = typename TypeParam::Scalar;
  using Kernel = kernels::Attention<Device, Scalar>;
  const auto data = Buffer<Scalar>::zeros(4096);
  const auto real = Buffer<Accum<Scalar>>::zeros(256);
  const Buffer<float> workspace = Buffer<float>::unwritten(1 << 16);
  const Kernel good{.choice = TypeParam::choice(),
                    .q = data.heads(1, 2, 5, 8),
                    .k = data.heads(1, 2, 7, 8),
                    .v = data.heads(1, 2, 7, 8),
                    .out = data.heads(1, 2, 5, 8),
                    .lse = real.head_rows(1, 2, 5),
                    .probabilities = data.heads(1, 2, 5, 7),
                    .scale = 1,
                    .causal = false,
                    .workspace = bytes_of(workspace)};
  EXPECT_NO_THROW(good.forward(instance()));
  const auto forward_refuses = [&](auto change) {
    Kernel bad = good;
    change(bad);
    EXPECT_THROW(bad.forward(instance()), std::invalid_argument);
  };
  forward_refuses([&](Kernel& k) { k.k = data.heads(1, 3, 7, 8); });
  forward_refuses([&](Kernel& k) { k.k = data.heads(1, 2, 7, 9); });
  forward_refuses([&](Kernel& k) { k.v = data.heads(1, 2, 6, 8); });
  forward_refuses([&](Kernel& k) { k.out = data.heads(1, 2, 4, 8); });
  forward_refuses([&](Kernel& k) { k.lse = real.head_rows(1, 2, 4); });
  if (kernels::attention_forward_workspace_bytes(good.choice, kDtype<Scalar>, 1, 2, 5, 8) > 0) {
    forward_refuses([&](Kernel& k) { k.workspace = {}; });
    forward_refuses([&](Kernel& k) {
      k.workspace = kernels::Vector<std::byte, Device>(k.workspace.data() + 4, k.workspace.extent(0) - 4);
    });
  }
  if (TypeParam::kind == AttentionKind::standard) {
    forward_refuses([&](Kernel& k) { k.probabilities = data.heads(1, 2, 7, 5); });
  }

  using Gradients = typename Kernel::Gradients;
  const Gradients fine{.d_out = data.heads(1, 2, 5, 8),
                       .d_q = data.heads(1, 2, 5, 8),
                       .d_k = data.heads(1, 2, 7, 8),
                       .d_v = data.heads(1, 2, 7, 8),
                       .d_scores = data.heads(1, 2, 5, 7),
                       .workspace = bytes_of(workspace)};
  EXPECT_NO_THROW(good.backward(instance(), fine));
  const auto backward_refuses = [&](auto change) {
    Gradients bad = fine;
    change(bad);
    EXPECT_THROW(good.backward(instance(), bad), std::invalid_argument);
  };
  backward_refuses([&](Gradients& g) { g.d_out = data.heads(1, 2, 6, 8); });
  backward_refuses([&](Gradients& g) { g.d_q = data.heads(1, 2, 7, 8); });
  backward_refuses([&](Gradients& g) { g.d_k = data.heads(1, 2, 5, 8); });
  backward_refuses([&](Gradients& g) { g.d_v = data.heads(1, 2, 7, 7); });
  if (TypeParam::kind == AttentionKind::standard) {
    Kernel columns = good;
    columns.probabilities = kernels::transposed(data.heads(1, 2, 7, 5));
    EXPECT_THROW(columns.backward(instance(), fine), std::invalid_argument) << "rows of scores that are not contiguous";
  }
  if (kernels::attention_workspace_bytes(good.choice, kDtype<Scalar>, 1, 2, 5, 8) > 0) {
    backward_refuses([&](Gradients& g) { g.workspace = {}; });
  }
}

/// Rows of scores of every length that the softmax treats differently: of a thread's registers, of a team's, longer.
template <class Scalar>
struct StandardAttention : ::testing::Test {};
TYPED_TEST_SUITE(StandardAttention, AllScalars, ScalarNames);

TYPED_TEST(StandardAttention, matches_reference_for_rows_of_any_length) {
  const Closeness close = Attention<Standard<TypeParam>>::closeness();
  for (const bool causal : {false, true}) {
    for (const int keys : {600, 1024, 1032, 1501, 4096, 17000}) {
      matches_reference<TypeParam>(AttentionKind::standard, {1, 2, 3, keys, 8, causal}, close);
    }
  }
}

TYPED_TEST(StandardAttention, tf32_is_for_float_on_gpus_and_within_its_error) {
  const Shape s{2, 2, 150, 150, 64, true};
  const Inputs in = inputs<TypeParam>(s);
  if (!kernels::kHere.has_vendor_parts() || !std::is_same_v<TypeParam, float>) {
    EXPECT_THROW(Outcome<TypeParam>(AttentionKind::standard, s, in, GemmMath::tf32), std::invalid_argument);
    return;
  }
  const double bound = 2 * 0x1p-9 + 8 * kEpsilon<float>;
  matches_reference<TypeParam>(AttentionKind::standard, s, {.of_max = bound, .absolute = bound}, GemmMath::tf32);
  const auto exact = Outcome<TypeParam>(AttentionKind::standard, s, in).out.values();
  const auto got = Outcome<TypeParam>(AttentionKind::standard, s, in, GemmMath::tf32).out.values();
  EXPECT_FALSE(all_close<TypeParam>(got, exact, {.absolute = 16 * kEpsilon<float>}));  // so tf32 was used
}

template <class C>
struct AttentionGradient : ::testing::Test {};
using DoubleCases =
    ::testing::Types<Standard<double>, StandardTeams<double>, Flash2<double>, Flash1<double>, Tiled<double>>;
TYPED_TEST_SUITE(AttentionGradient, DoubleCases, CaseNames);

TYPED_TEST(AttentionGradient, is_that_of_the_forward_kernel) {
  for (const bool causal : {false, true}) {
    const Shape s{1, 2, 4, 6, 3, causal};
    const Inputs in = inputs<double>(s);
    const Outcome<double> got(TypeParam::choice(), s, in);
    const auto check = [&](auto member, const Buffer<double>& gradient) {
      const auto loss = [&](const auto& moved) {
        Inputs changed = in;
        changed.*member = moved;
        return dot(Outcome<double>(TypeParam::choice(), s, changed).out.values(), in.d_out);
      };
      return is_gradient_of(loss, in.*member, gradient.values());
    };
    EXPECT_TRUE(check(&Inputs::q, got.d_q)) << s;
    EXPECT_TRUE(check(&Inputs::k, got.d_k)) << s;
    EXPECT_TRUE(check(&Inputs::v, got.d_v)) << s;
  }
}

/// Every step of both ladders and a choice of tiles, forward; backward is the same for all.
template <class Scalar>
struct AttentionLadder : ::testing::Test {
  using Real = Accum<Scalar>;
  static constexpr double kBound = kEpsilon<Scalar> + 8 * kEpsilon<Real>;

  static void matches_reference(const AttentionChoice& choice, const Shape& s) {
    matches_reference(choice, s, inputs<Scalar>(s));
  }
  static void matches_reference(const AttentionChoice& choice, const Shape& s, const Inputs& in) {
    SCOPED_TRACE(::testing::Message() << name_of(choice.kind) << ", " << choice.steps << " steps, tiles "
                                      << choice.query_tile << " x " << choice.key_tile << ", " << s);
    if (!has_room<Scalar>(choice, s.D)) {
      EXPECT_THROW(Outcome<Scalar>(choice, s, in), std::invalid_argument);
      return;
    }
    const auto expected = reference::attention_forward(s.plain(), in.q, in.k, in.v);
    const Outcome<Scalar> got(choice, s, in);
    EXPECT_TRUE(all_close<Scalar>(got.out.values(), expected.out, {.of_max = kBound, .absolute = kBound}));
    EXPECT_TRUE(all_close<Real>(got.lse.values(), expected.lse, {.of_max = kBound, .absolute = kBound}));
  }
};
TYPED_TEST_SUITE(AttentionLadder, AllScalars, ScalarNames);

TYPED_TEST(AttentionLadder, matches_reference_on_every_step) {
  for (const auto& [kind, most] : {std::pair{AttentionKind::flash1, 5}, {AttentionKind::flash2, 5}}) {
    for (int steps = 0; steps <= most; ++steps) {
      const AttentionChoice choice = choice_of(kind, steps);
      if (!kernels::has_steps(choice, kDtype<TypeParam>)) continue;
      for (const Shape& s : shapes()) this->matches_reference(choice, s);
    }
  }
}

TYPED_TEST(AttentionLadder, matches_reference_with_chosen_tiles) {
  constexpr std::pair<int, int> kTiles[] = {{16, 16}, {32, 0}, {0, 16}, {16, 128}, {128, 32}};
  for (const auto& [query_tile, key_tile] : kTiles) {
    for (const auto& [kind, steps] : {std::pair{AttentionKind::flash1, 0},
                                      {AttentionKind::flash1, 4},
                                      {AttentionKind::flash1, 5},
                                      {AttentionKind::flash2, 2},
                                      {AttentionKind::flash2, kernels::kNoLadder},
                                      {AttentionKind::tiled, kernels::kNoLadder}}) {
      const AttentionChoice choice = choice_of(kind, steps, query_tile, key_tile);
      if (!kernels::has_steps(choice, kDtype<TypeParam>)) continue;
      for (const Shape& s : {Shape{1, 2, 131, 131, 40, true}, {2, 1, 70, 150, 13, true}, {1, 1, 140, 60, 64, false}}) {
        this->matches_reference(choice, s);
      }
    }
  }
}

TYPED_TEST(AttentionLadder, keeps_its_error_bound_over_many_tiles_of_keys) {
  for (const auto kind : {AttentionKind::flash1, AttentionKind::flash2, AttentionKind::tiled}) {
    this->matches_reference(choice_of(kind, kernels::kNoLadder, 16, 16), {1, 1, 20, 2000, 16, false});
    if (std::is_same_v<TypeParam, double>) continue;  // the reference, too, adds doubles, one by one
    const Shape s{1, 1, 16, 65536, 16, false};
    Inputs in = inputs<TypeParam>(s);
    in.v.assign(in.v.size(), 1);  // terms of one sign
    this->matches_reference(choice_of(kind, kernels::kNoLadder), s, in);
  }
}

TYPED_TEST(AttentionLadder, refuses_what_it_does_not_have) {
  const Shape s{1, 1, 5, 5, 8, true};
  const Inputs in = inputs<TypeParam>(s);
  const auto refuses = [&](const AttentionChoice& choice) {
    EXPECT_THROW(Outcome<TypeParam>(choice, s, in), std::invalid_argument);
  };
  refuses(choice_of(AttentionKind::standard, 1));
  refuses(choice_of(AttentionKind::flash1, 6));
  refuses(choice_of(AttentionKind::flash2, 6));
  refuses(choice_of(AttentionKind::flash2, 4, 16));  // there tiles are constants
  refuses(choice_of(AttentionKind::flash1, 0, 8));
  refuses(choice_of(AttentionKind::flash1, 4, 0, 40));
  refuses(choice_of(AttentionKind::flash2, 1, 17));
  refuses(choice_of(AttentionKind::flash2, kernels::kNoLadder, 0, 8));
  refuses(choice_of(AttentionKind::flash2, kernels::kNoLadder, 65536, 65536));
  refuses(choice_of(AttentionKind::tiled, kernels::kNoLadder, 20, 16));
  refuses(choice_of(AttentionKind::tiled, kernels::kNoLadder, 16, -16));
  const AttentionChoice tensor_cores = choice_of(AttentionKind::flash1, 5);
  if (!kernels::has_steps(tensor_cores, kDtype<TypeParam>)) refuses(tensor_cores);
}

TYPED_TEST(AttentionLadder, refuses_pads_beyond_the_scratch_of_a_team) {
  const AttentionChoice choice = choice_of(AttentionKind::flash1, 1, 128, 128);
  if (has_room<TypeParam>(choice, 256)) GTEST_SKIP() << "a host has as much as there is memory";
  const Shape s{1, 1, 5, 5, 256, true};
  EXPECT_THROW(Outcome<TypeParam>(choice, s, inputs<TypeParam>(s)), std::invalid_argument);
}

}  // namespace
}  // namespace tessera::test
