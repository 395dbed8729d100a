#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/tensor.hpp"
#include "reference/attention.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#ifdef TESSERA_VENDOR_CUDA
  #include "kernels/attention/flash2/ampere/backward.hpp"
  #include "kernels/attention/flash2/ampere/float_backward.hpp"
  #include "kernels/attention/flash2/ampere/float_forward.hpp"
  #include "kernels/attention/flash2/ampere/forward.hpp"
  #include "kernels/attention/flash2/hopper/backward.hpp"
  #include "kernels/attention/flash2/hopper/forward.hpp"
  #include "kernels/attention/flash2/register_backward.hpp"
  #include "kernels/attention/flash2/register_forward.hpp"
#endif

namespace tessera::test {
namespace {

using kernels::HeadRows;
using kernels::HeadTensor;

template <class Scalar>
struct Forward {
  HeadTensor<const Scalar, Device> q, k, v;
  HeadTensor<Scalar, Device> out;
  HeadRows<float, Device> lse;
  float scale;
  bool causal;
};
template <class Scalar>
struct Backward {
  HeadTensor<const Scalar, Device> d_out;
  HeadTensor<Scalar, Device> d_q, d_k, d_v;
};

// A tuned implementation is a struct with
//   Scalar, kName
//   widths()                    head widths to test
//   runs_here()                 whether this device can run it
//   forward(Forward)            and, where it has one,
//   backward(Forward, Backward)
//   product_error(D)            of float: error of q.k, relative to |q| |k|; 0 if absent
// and a row in AllPaths.

#ifdef TESSERA_VENDOR_CUDA
using kernels::DqOrder;

template <class S>
struct Hopper {
  using Scalar = S;
  static constexpr const char* kName = "hopper";
  static std::vector<int> widths() { return {16, 32, 64, 80, 96, 128, 160, 192, 256}; }
  static bool runs_here() { return kernels::HopperForward<S>::runs_on(instance()); }
  static void forward(const Forward<S>& f) {
    const auto counter = Buffer<std::int32_t>::zeros(1);
    kernels::HopperForward<S>{{f.q, f.k, f.v, f.out, f.lse, f.scale, f.causal}, counter.value()}.launch(instance());
    EXPECT_EQ(counter.elements()[0], 0) << "the counter of tiles must be left as it was found";
  }
};

/// With `more` fields after the workspace, which is `missing` bytes too short and begins `offset` bytes after an
/// aligned address.
template <class Kernel, class S, class... More>
void run_backward(const Forward<S>& f, const Backward<S>& b, DqOrder order, std::int64_t missing = 0,
                  std::int64_t offset = 0, More... more) {
  const int B = f.q.extent_int(0), H = f.q.extent_int(1), Tq = f.q.extent_int(2);
  std::int64_t bytes;
  if constexpr (std::is_same_v<S, float>) {
    bytes = Kernel::workspace_bytes(B, H, Tq);
  } else {
    bytes = Kernel::workspace_bytes(B, H, Tq, f.q.extent_int(3));
  }
  const auto workspace =
      Buffer<float>::unwritten((bytes + offset) / sizeof(float));  // NaN wherever the kernel forgets to clear
  Kernel{{f.q, f.k, f.v, f.out, f.lse, b.d_out, b.d_q, b.d_k, b.d_v, f.scale, f.causal},
         order,
         kernels::Vector<std::byte, Device>(reinterpret_cast<std::byte*>(workspace.data()) + offset, bytes - missing),
         more...}
      .launch(instance());
  instance().fence();  // the workspace is freed next
}

template <class S, DqOrder kOrder>
struct HopperBothWays : Hopper<S> {
  static constexpr const char* kName = kOrder == DqOrder::fixed ? "hopper_backward" : "hopper_backward_any_order";
  static constexpr bool kRepeats = kOrder == DqOrder::fixed;
  static std::vector<int> widths() { return {32, 64, 80, 96, 128, 256}; }
  static bool runs_here() { return kernels::HopperBackward<S>::runs_on(instance()); }
  static void backward(const Forward<S>& f, const Backward<S>& b) {
    run_backward<kernels::HopperBackward<S>>(f, b, kOrder);
  }
};

/// Every compiled width, the next above some of them, and the narrowest.
template <class S, DqOrder kOrder>
struct Ampere {
  using Scalar = S;
  static constexpr bool kRepeats = kOrder == DqOrder::fixed;
  static constexpr const char* kName = kRepeats ? "ampere" : "ampere_any_order";
  static std::vector<int> widths() {
    if (!kRepeats) return {16, 72, 80, 128, 192, 256};  // each way to cut a tile's sums, and padded widths
    return {8, 16, 24, 32, 40, 64, 72, 80, 88, 96, 104, 128, 136, 160, 168, 192, 200, 256};
  }
  static bool runs_here() { return true; }  // the build is for this device, and for sm_80 or later
  static void forward(const Forward<S>& f) {
    kernels::AmpereForward<S>{{f.q, f.k, f.v, f.out, f.lse, f.scale, f.causal}}.launch(instance());
  }
  static void backward(const Forward<S>& f, const Backward<S>& b) {
    run_backward<kernels::AmpereBackward<S>>(f, b, kOrder);
  }
};

/// float by TF32 products: one moves each factor by up to 1.28 * 2^-11; of three, rest*rest and the last bit of each
/// rest are lost, 3 * 2^-22. Tensor cores truncate the sum of every 8 products to a float.
template <int kProducts, DqOrder kOrder>
struct AmpereFloat : Ampere<bfloat16, kOrder> {
  using Scalar = float;
  static constexpr const char* kName = kProducts == 1             ? "ampere_one_tf32_product"
                                       : kOrder == DqOrder::fixed ? "ampere"
                                                                  : "ampere_any_order";
  static double product_error(int D) {
    return (kProducts == 1 ? 1.28 * std::pow(2.0, -10) : 6 * kEpsilon<float>)+(D / 8) * kEpsilon<float>;
  }
  static void forward(const Forward<float>& f) {
    kernels::AmpereFloatForward{{f.q, f.k, f.v, f.out, f.lse, f.scale, f.causal}, kProducts}.launch(instance());
  }
  static void backward(const Forward<float>& f, const Backward<float>& b) {
    run_backward<kernels::AmpereFloatBackward>(f, b, kOrder, 0, 0, kProducts);
  }
};

using AllPaths =
    ::testing::Types<AmpereFloat<3, DqOrder::fixed>, AmpereFloat<1, DqOrder::fixed>, AmpereFloat<3, DqOrder::any>,
                     Ampere<bfloat16, DqOrder::fixed>, Ampere<float16, DqOrder::fixed>, Ampere<bfloat16, DqOrder::any>,
                     Ampere<float16, DqOrder::any>, Hopper<bfloat16>, Hopper<float16>,
                     HopperBothWays<bfloat16, DqOrder::fixed>, HopperBothWays<float16, DqOrder::fixed>,
                     HopperBothWays<bfloat16, DqOrder::any>, HopperBothWays<float16, DqOrder::any>>;
#else
struct NoPath {
  using Scalar = bfloat16;
  static constexpr const char* kName = "none_without_cuda";
  static std::vector<int> widths() { return {}; }
  static bool runs_here() { return false; }
  static void forward(const Forward<bfloat16>&) {}
};
using AllPaths = ::testing::Types<NoPath>;
#endif

struct PathNames {
  template <class Path>
  static std::string GetName(int) {
    return std::string(Path::kName) + "_" + std::string(kScalarName<typename Path::Scalar>);
  }
};

struct Shape {
  int B, H, Tq, Tk;
  bool causal;

  reference::AttentionShape plain(int D) const { return {B * H, Tq, Tk, D, causal, 1 / std::sqrt(D)}; }
  std::size_t queries() const { return std::size_t(B) * H * Tq; }
  std::size_t keys() const { return std::size_t(B) * H * Tk; }
};
std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "B " << s.B << " H " << s.H << " Tq " << s.Tq << " Tk " << s.Tk << (s.causal ? " causal" : " all keys");
}

/// Both masks, with: one token; whole tiles; one more than a tile; ragged with several heads; fewer and more queries
/// than keys (with a causal mask the first queries then see nothing); one query; a few keys.
std::vector<Shape> shapes() {
  std::vector<Shape> list;
  for (const bool causal : {false, true}) {
    list.insert(list.end(), {{1, 1, 1, 1, causal},
                             {1, 1, 384, 384, causal},
                             {2, 1, 129, 129, causal},
                             {1, 3, 259, 259, causal},
                             {1, 1, 193, 401, causal},
                             {1, 1, 401, 193, causal},
                             {2, 2, 1, 300, causal},
                             {1, 1, 200, 3, causal}});
  }
  return list;
}

template <class Scalar>
struct Inputs {
  std::vector<double> q, k, v, d_out;
  Inputs(const Shape& s, int D)
      : q(uniform_as<Scalar>(s.queries() * D, 1, -2, 2)),
        k(uniform_as<Scalar>(s.keys() * D, 2, -2, 2)),
        v(uniform_as<Scalar>(s.keys() * D, 3)),
        d_out(uniform_as<Scalar>(s.queries() * D, 4)) {}
};

/// Runs a path on contiguous tensors.
template <class Path>
struct Outcome {
  using Scalar = typename Path::Scalar;
  static constexpr bool kHasBackward = requires(Forward<Scalar> f, Backward<Scalar> b) { Path::backward(f, b); };

  Buffer<Scalar> out, d_q, d_k, d_v;
  Buffer<float> lse;

  Outcome(const Shape& s, int D, const Inputs<Scalar>& in)
      : out(Buffer<Scalar>::unwritten(s.queries() * D)),
        d_q(Buffer<Scalar>::unwritten(s.queries() * D)),
        d_k(Buffer<Scalar>::unwritten(s.keys() * D)),
        d_v(Buffer<Scalar>::unwritten(s.keys() * D)),
        lse(Buffer<float>::unwritten(s.queries())) {
    const Buffer<Scalar> q(in.q), k(in.k), v(in.v), d_out(in.d_out);
    const auto query = [&](const auto& buffer) { return buffer.heads(s.B, s.H, s.Tq, D); };
    const auto key = [&](const auto& buffer) { return buffer.heads(s.B, s.H, s.Tk, D); };
    const Forward<Scalar> forward{.q = query(q),
                                  .k = key(k),
                                  .v = key(v),
                                  .out = query(out),
                                  .lse = lse.head_rows(s.B, s.H, s.Tq),
                                  .scale = 1 / std::sqrt(static_cast<float>(D)),
                                  .causal = s.causal};
    Path::forward(forward);
    if constexpr (kHasBackward) {
      Path::backward(forward, {.d_out = query(d_out), .d_q = query(d_q), .d_k = key(d_k), .d_v = key(d_v)});
    }
    Kokkos::fence();
  }
};

template <class Path>
struct AttentionTuned : ::testing::Test {
  using Scalar = typename Path::Scalar;

  void SetUp() override {
    if (!Path::runs_here()) GTEST_SKIP() << "this device or build cannot run the path " << Path::kName;
  }
  /// What products in TF32 add: an error of a score, bounded by the largest |q| |k|, is a relative one of its weight;
  /// that of the product with the weights comes to it.
  static double of_products(const Inputs<Scalar>& in, int D) {
    if constexpr (requires { Path::product_error(D); }) {
      return Path::product_error(D) * (1 + largest_row(in.q, D) * largest_row(in.k, D) / std::sqrt(D));
    }
    return 0;
  }
  static double largest_row(const std::vector<double>& rows, int D) {
    double largest = 0;
    for (auto row = rows.begin(); row != rows.end(); row += D) {
      largest = std::max(largest, std::inner_product(row, row + D, row, 0.0));
    }
    return std::sqrt(largest);
  }
  /// An output is an average of v, |v| <= 1: rounding the weights to Scalar changes it by at most half an epsilon, its
  /// own rounding by another half, sums in float by a few epsilons of float.
  static Closeness of_out(const Inputs<Scalar>& in, int D) {
    return {.absolute = kEpsilon<Scalar> + 8 * kEpsilon<float> + of_products(in, D)};
  }
  /// Sums of up to 256 products and of exponentials in float, of terms no larger than the largest lse.
  static Closeness of_lse(const Inputs<Scalar>& in, int D) {
    return {.of_max = 32 * kEpsilon<float>, .absolute = 32 * kEpsilon<float> + of_products(in, D)};
  }
  /// Weights and score gradients are rounded to Scalar before the last product; their errors average out over a row.
  static Closeness of_gradient(const Inputs<Scalar>& in, int D) {
    const double more = of_products(in, D);
    return {.of_max = 2 * kEpsilon<Scalar> + more, .absolute = kEpsilon<Scalar> + more};
  }
};
TYPED_TEST_SUITE(AttentionTuned, AllPaths, PathNames);

TYPED_TEST(AttentionTuned, matches_reference_for_every_width_ragged_shapes_and_both_masks) {
  using Scalar = typename TypeParam::Scalar;
  for (const int D : TypeParam::widths()) {
    for (const Shape& s : shapes()) {
      SCOPED_TRACE(::testing::Message() << s << " D " << D);
      const Inputs<Scalar> in(s, D);
      const Outcome<TypeParam> got(s, D, in);
      const auto shape = [&](int T) {
        return std::vector<std::size_t>{std::size_t(s.B), std::size_t(s.H), std::size_t(T), std::size_t(D)};
      };
      const auto expected = reference::attention_forward(s.plain(D), in.q, in.k, in.v);
      EXPECT_TRUE(all_close<Scalar>(got.out.values(), expected.out, this->of_out(in, D), shape(s.Tq)));
      EXPECT_TRUE(all_close<float>(got.lse.values(), expected.lse, this->of_lse(in, D)));
      if constexpr (Outcome<TypeParam>::kHasBackward) {
        const auto gradients = reference::attention_backward(s.plain(D), expected, in.q, in.k, in.v, in.d_out);
        EXPECT_TRUE(all_close<Scalar>(got.d_q.values(), gradients.d_q, this->of_gradient(in, D), shape(s.Tq)));
        EXPECT_TRUE(all_close<Scalar>(got.d_k.values(), gradients.d_k, this->of_gradient(in, D), shape(s.Tk)));
        EXPECT_TRUE(all_close<Scalar>(got.d_v.values(), gradients.d_v, this->of_gradient(in, D), shape(s.Tk)));
      }
    }
  }
}

TYPED_TEST(AttentionTuned, keeps_its_error_bound_over_many_keys_and_over_many_queries) {
  using Scalar = typename TypeParam::Scalar;
  for (const Shape& s : {Shape{1, 1, 16, 65536, false}, {1, 1, 65536, 16, false}}) {
    SCOPED_TRACE(::testing::Message() << s);
    constexpr int D = 64;
    Inputs<Scalar> in(s, D);
    in.v.assign(in.v.size(), 1);  // terms of one sign
    in.d_out.assign(in.d_out.size(), 1);
    const Outcome<TypeParam> got(s, D, in);
    const auto expected = reference::attention_forward(s.plain(D), in.q, in.k, in.v);
    EXPECT_TRUE(all_close<Scalar>(got.out.values(), expected.out, this->of_out(in, D)));
    EXPECT_TRUE(all_close<float>(got.lse.values(), expected.lse, this->of_lse(in, D)));
    if constexpr (Outcome<TypeParam>::kHasBackward) {
      const auto gradients = reference::attention_backward(s.plain(D), expected, in.q, in.k, in.v, in.d_out);
      EXPECT_TRUE(all_close<Scalar>(got.d_q.values(), gradients.d_q, this->of_gradient(in, D)));
      EXPECT_TRUE(all_close<Scalar>(got.d_k.values(), gradients.d_k, this->of_gradient(in, D)));
      EXPECT_TRUE(all_close<Scalar>(got.d_v.values(), gradients.d_v, this->of_gradient(in, D)));
    }
  }
}

TYPED_TEST(AttentionTuned, a_head_does_not_depend_on_how_many_there_are) {
  using Scalar = typename TypeParam::Scalar;
  std::vector<std::pair<int, Shape>> cases;
  for (const int D : TypeParam::widths()) {
    cases.push_back({D, {1, 1, 150, 150, true}});
    cases.push_back({D, {1, 1, 150, 215, false}});
  }
  for (const auto& [width, shape] : cases) {
    const int D = width;  // which a lambda can capture
    const Shape one = shape;
    const Shape many{3, 47, one.Tq, one.Tk, one.causal};  // several tiles per multiprocessor
    const Inputs<Scalar> in(one, D);
    Inputs<Scalar> repeated(one, D);
    for (auto numbers : {&Inputs<Scalar>::q, &Inputs<Scalar>::k, &Inputs<Scalar>::v, &Inputs<Scalar>::d_out}) {
      (repeated.*numbers).clear();
      for (int head = 0; head < many.B * many.H; ++head) {
        (repeated.*numbers).insert((repeated.*numbers).end(), (in.*numbers).begin(), (in.*numbers).end());
      }
    }
    const Outcome<TypeParam> expected(one, D, in), got(many, D, repeated);
    const auto every_head_is_close = [&](const Buffer<Scalar>& all, const Buffer<Scalar>& single, Closeness closeness) {
      const auto elements = all.elements(), expected = single.elements();
      for (int head = 0; head < many.B * many.H; ++head) {
        const auto first = elements.begin() + head * expected.size();
        const std::vector<Scalar> mine(first, first + expected.size());
        if (same_bits(mine, expected)) continue;
        ASSERT_TRUE(all_close<Scalar>(Buffer<Scalar>(mine).values(), single.values(), closeness))
            << "head " << head << " D " << D << " " << one;
      }
    };
    every_head_is_close(got.out, expected.out, this->of_out(in, D));
    if constexpr (Outcome<TypeParam>::kHasBackward) {
      every_head_is_close(got.d_q, expected.d_q, this->of_gradient(in, D));
      every_head_is_close(got.d_k, expected.d_k, this->of_gradient(in, D));
      every_head_is_close(got.d_v, expected.d_v, this->of_gradient(in, D));
    }
  }
}

TYPED_TEST(AttentionTuned, a_query_that_sees_no_key_gives_zero_and_minus_infinity) {
  using Scalar = typename TypeParam::Scalar;
  for (const int D : TypeParam::widths()) {
    for (const Shape& s : {Shape{1, 2, 401, 193, true}, Shape{1, 2, 3, 0, false}}) {
      const Outcome<TypeParam> got(s, D, Inputs<Scalar>(s, D));
      const auto out = got.out.values(), lse = got.lse.values();
      for (int h = 0; h < s.H; ++h) {
        for (int i = 0; i < s.Tq - s.Tk; ++i) {
          ASSERT_EQ(lse[h * s.Tq + i], -std::numeric_limits<double>::infinity()) << D;
          for (int d = 0; d < D; ++d) ASSERT_EQ(out[(h * s.Tq + i) * D + d], 0) << D;
        }
      }
    }
  }
}

TYPED_TEST(AttentionTuned, a_nan_in_a_query_shows_in_its_output_and_in_no_other) {
  using Scalar = typename TypeParam::Scalar;
  constexpr int bad = 166;
  for (const int D : TypeParam::widths()) {
    const Shape s{1, 1, 250, 250, true};
    Inputs<Scalar> in(s, D);
    in.q[bad * D + 3] = std::nan("");
    const auto out = Outcome<TypeParam>(s, D, in).out.values();
    for (int i = 0; i < s.Tq; ++i) ASSERT_EQ(std::isnan(out[i * D]), i == bad) << i << " D " << D;
  }
}

TYPED_TEST(AttentionTuned, large_scores_neither_overflow_nor_become_nan) {
  using Scalar = typename TypeParam::Scalar;
  for (const int D : TypeParam::widths()) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "D " << D << (causal ? " causal" : ""));
      const Shape s{1, 1, 150, 150, causal};
      Inputs<Scalar> in(s, D);
      for (double& q : in.q) q *= 16;
      for (double& k : in.k) k *= 16;
      const Outcome<TypeParam> got(s, D, in);
      const auto all_are_finite = [](const auto& buffer) {
        const auto values = buffer.values();
        return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
      };
      EXPECT_TRUE(all_are_finite(got.out));
      EXPECT_TRUE(all_are_finite(got.lse));
      if constexpr (Outcome<TypeParam>::kHasBackward) {  // scores behind the mask exceed lse by hundreds
        EXPECT_TRUE(all_are_finite(got.d_q));
        EXPECT_TRUE(all_are_finite(got.d_k));
        // d_v = p^T d_out, where p = e^(score - lse) has the relative error of a score in float
        const auto expected = reference::attention_backward(s.plain(D), in.q, in.k, in.v, in.d_out);
        const auto lse = got.lse.values();
        const double largest = std::max(*std::max_element(lse.begin(), lse.end()), 1.0);
        EXPECT_TRUE(all_close<Scalar>(
            got.d_v.values(), expected.d_v,
            {.of_max = 2 * kEpsilon<Scalar> + 8 * kEpsilon<float> * largest + this->of_products(in, D),
             .absolute = kEpsilon<Scalar>}));
      }
    }
  }
}

TYPED_TEST(AttentionTuned, matches_reference_when_scores_keep_growing_along_the_keys) {
  using Scalar = typename TypeParam::Scalar;
  for (const int D : TypeParam::widths()) {
    for (const bool causal : {false, true}) {
      const Shape s{1, 2, 450, 450, causal};
      Inputs<Scalar> in(s, D);
      // Doubled every 128 keys, exactly: later weights exceed the first ones by factors beyond 2^10.
      for (std::size_t i = 0; i < in.k.size(); ++i) in.k[i] *= 1 << i / D % s.Tk / 128;
      const Outcome<TypeParam> got(s, D, in);
      const auto expected = reference::attention_forward(s.plain(D), in.q, in.k, in.v);
      EXPECT_TRUE(all_close<Scalar>(got.out.values(), expected.out, this->of_out(in, D))) << D;
      EXPECT_TRUE(all_close<float>(got.lse.values(), expected.lse, this->of_lse(in, D))) << D;
      if constexpr (Outcome<TypeParam>::kHasBackward) {
        const auto gradients = reference::attention_backward(s.plain(D), expected, in.q, in.k, in.v, in.d_out);
        EXPECT_TRUE(all_close<Scalar>(got.d_q.values(), gradients.d_q, this->of_gradient(in, D))) << D;
        EXPECT_TRUE(all_close<Scalar>(got.d_k.values(), gradients.d_k, this->of_gradient(in, D))) << D;
        EXPECT_TRUE(all_close<Scalar>(got.d_v.values(), gradients.d_v, this->of_gradient(in, D))) << D;
      }
    }
  }
}

TYPED_TEST(AttentionTuned, reads_q_k_v_inside_the_fused_buffer_and_writes_rows) {
  using Scalar = typename TypeParam::Scalar;
  for (const int D : TypeParam::widths()) {
    const Shape s{2, 3, 137, 137, true};
    const int B = s.B, H = s.H, T = s.Tq, C = H * D;
    const Inputs<Scalar> in(s, D);
    const Outcome<TypeParam> expected(s, D, in);

    std::vector<double> qkv(std::size_t(B) * T * 3 * C), d_out(qkv.size() / 3);
    const auto each = [&](auto visit) {  // index in a contiguous tensor, row of the batch, column of the row
      for (std::size_t i = 0; i < s.queries() * D; ++i) {
        const std::size_t d = i % D, t = i / D % T, h = i / D / T % H, b = i / D / T / H;
        visit(i, b * T + t, h * D + d);
      }
    };
    each([&](std::size_t i, std::size_t row, std::size_t column) {
      qkv[row * 3 * C + column] = in.q[i];
      qkv[row * 3 * C + C + column] = in.k[i];
      qkv[row * 3 * C + 2 * C + column] = in.v[i];
      d_out[row * C + column] = in.d_out[i];
    });
    const Buffer<Scalar> qkv_in(qkv), d_out_in(d_out);
    const auto out = Buffer<Scalar>::unwritten(d_out.size()), d_qkv = Buffer<Scalar>::unwritten(qkv.size());
    const auto lse = Buffer<float>::unwritten(s.queries());
    const auto part = [&](const auto& buffer, int p) {
      return kernels::heads_of_qkv<Device>(buffer.data(), p, B, H, T, D);
    };
    const auto rows = [&](const auto& buffer) { return kernels::heads_of_rows<Device>(buffer.data(), B, H, T, D); };
    const Forward<Scalar> forward{.q = part(qkv_in, 0),
                                  .k = part(qkv_in, 1),
                                  .v = part(qkv_in, 2),
                                  .out = rows(out),
                                  .lse = lse.head_rows(B, H, T),
                                  .scale = 1 / std::sqrt(static_cast<float>(D)),
                                  .causal = true};
    TypeParam::forward(forward);
    if constexpr (Outcome<TypeParam>::kHasBackward) {
      TypeParam::backward(
          forward, {.d_out = rows(d_out_in), .d_q = part(d_qkv, 0), .d_k = part(d_qkv, 1), .d_v = part(d_qkv, 2)});
    }
    Kokkos::fence();

    EXPECT_EQ(lse.values(), expected.lse.values()) << D;
    const auto got = out.values(), want = expected.out.values();
    each([&](std::size_t i, std::size_t row, std::size_t column) { ASSERT_EQ(got[row * C + column], want[i]) << D; });
    if constexpr (Outcome<TypeParam>::kHasBackward) {
      const auto gradients = d_qkv.values(), d_q = expected.d_q.values(), d_k = expected.d_k.values(),
                 d_v = expected.d_v.values();
      each([&](std::size_t i, std::size_t row, std::size_t column) {
        ASSERT_EQ(gradients[row * 3 * C + column], d_q[i]) << D;
        ASSERT_EQ(gradients[row * 3 * C + C + column], d_k[i]) << D;
        ASSERT_EQ(gradients[row * 3 * C + 2 * C + column], d_v[i]) << D;
      });
    }
  }
}

TYPED_TEST(AttentionTuned, repeats_bit_for_bit) {
  using Scalar = typename TypeParam::Scalar;
  bool repeats = true;
  if constexpr (requires { TypeParam::kRepeats; }) repeats = TypeParam::kRepeats;
  if (!repeats) GTEST_SKIP() << TypeParam::kName << " adds in any order";
  for (const int D : TypeParam::widths()) {
    const Shape s{2, 16, 520, 520, true};  // more tiles than a device has multiprocessors
    const Inputs<Scalar> in(s, D);
    const Outcome<TypeParam> one(s, D, in), two(s, D, in);
    EXPECT_TRUE(same_bits(one.out.elements(), two.out.elements())) << D;
    EXPECT_TRUE(same_bits(one.lse.elements(), two.lse.elements())) << D;
    if constexpr (Outcome<TypeParam>::kHasBackward) {
      EXPECT_TRUE(same_bits(one.d_q.elements(), two.d_q.elements())) << D;
      EXPECT_TRUE(same_bits(one.d_k.elements(), two.d_k.elements())) << D;
      EXPECT_TRUE(same_bits(one.d_v.elements(), two.d_v.elements())) << D;
    }
  }
}

TYPED_TEST(AttentionTuned, launches_under_its_name_on_the_callers_instance) {
  using Scalar = typename TypeParam::Scalar;
  for (const int D : TypeParam::widths()) {
    const Shape s{1, 1, 5, 5, true};
    const Inputs<Scalar> in(s, D);
    const OtherInstance other;
    const LaunchRecorder recorder;
    const Outcome<TypeParam> outcome(s, D, in);
    EXPECT_TRUE(launched_under(recorder, "tessera::attention::", instance())) << D;
  }
}

#ifdef TESSERA_VENDOR_CUDA
/// On zeros, with `more` fields after the workspace.
template <class Kernel, class S, class... More>
void is_particular_about_its_workspace(More... more) {
  constexpr int T = 70, D = 64;
  const auto in = Buffer<S>::zeros(T * D), out = Buffer<S>::unwritten(T * D);
  const auto lse = Buffer<float>::zeros(T);
  const auto heads = [&](const Buffer<S>& b) { return kernels::heads_of_rows<Device>(b.data(), 1, 1, T, D); };
  const Forward<S> forward{.q = heads(in),
                           .k = heads(in),
                           .v = heads(in),
                           .out = heads(in),
                           .lse = lse.head_rows(1, 1, T),
                           .scale = 0.125f,
                           .causal = false};
  const Backward<S> backward{.d_out = heads(in), .d_q = heads(out), .d_k = heads(out), .d_v = heads(out)};
  const auto run = [&](std::int64_t missing, std::int64_t offset) {
    run_backward<Kernel>(forward, backward, DqOrder::fixed, missing, offset, more...);
  };
  EXPECT_NO_THROW(run(0, 0));
  EXPECT_THROW(run(1, 0), std::invalid_argument);
  EXPECT_THROW(run(0, 8), std::invalid_argument);
}

TEST(AttentionTunedWorkspace, is_refused_where_it_is_too_small_or_misplaced) {
  is_particular_about_its_workspace<kernels::AmpereBackward<bfloat16>, bfloat16>();
  is_particular_about_its_workspace<kernels::AmpereFloatBackward, float>(3);
  if (kernels::HopperBackward<bfloat16>::runs_on(instance()))
    is_particular_about_its_workspace<kernels::HopperBackward<bfloat16>, bfloat16>();
}

TEST(AttentionTunedFloat, takes_one_or_three_products_and_widths_that_are_multiples_of_8) {
  const auto buffer = Buffer<float>::zeros(16 * 64), lse = Buffer<float>::zeros(16);
  const auto forward = [&](int D, int products) {
    const auto heads = buffer.heads(1, 1, 16, D);
    kernels::AmpereFloatForward{{heads, heads, heads, heads, lse.head_rows(1, 1, 16), 1.0f, false}, products}.launch(
        instance());
    instance().fence();
  };
  EXPECT_NO_THROW(forward(64, 1));
  EXPECT_NO_THROW(forward(64, 3));
  EXPECT_THROW(forward(64, 2), std::invalid_argument);
  EXPECT_THROW(forward(60, 3), std::invalid_argument);
}

TEST(AttentionTunedFloat, one_product_is_coarser_than_three) {
  const Shape s{1, 2, 200, 200, true};
  constexpr int D = 64;
  const Inputs<float> in(s, D);
  const auto expected = reference::attention_forward(s.plain(D), in.q, in.k, in.v).out;
  const auto error = [&](const std::vector<double>& values) {
    double largest = 0;
    for (std::size_t i = 0; i < values.size(); ++i) largest = std::max(largest, std::abs(values[i] - expected[i]));
    return largest;
  };
  const double three = error(Outcome<AmpereFloat<3, DqOrder::fixed>>(s, D, in).out.values()),
               one = error(Outcome<AmpereFloat<1, DqOrder::fixed>>(s, D, in).out.values());
  EXPECT_LT(three, 16 * kEpsilon<float>);
  EXPECT_GT(one, 256 * kEpsilon<float>);  // so that one product is what ran
}

struct PortableFloat {
  using Scalar = float;
  static void forward(const Forward<float>& f) {
    kernels::RegisterForward<Device, float>{{f.q, f.k, f.v, f.out, f.lse, f.scale, f.causal}}.launch(instance());
  }
  static void backward(const Forward<float>& f, const Backward<float>& b) {
    const auto bytes = kernels::RegisterRows<float>::bytes(false, f.q.extent_int(0), f.q.extent_int(1),
                                                           f.q.extent_int(2), f.q.extent_int(3));
    const auto workspace = Buffer<float>::unwritten(bytes / sizeof(float));
    kernels::RegisterBackward<Device, float>{
        {f.q, f.k, f.v, f.out, f.lse, b.d_out, b.d_q, b.d_k, b.d_v, f.scale, f.causal},
        kernels::Vector<std::byte, Device>(reinterpret_cast<std::byte*>(workspace.data()), bytes)}
        .launch(instance());
    instance().fence();
  }
};

// Where a multiply-add rounds a sum, a tensor core truncates it: an error of up to one unit in the last place, not half
// of one, and of twice the root mean square.
TEST(AttentionTunedFloat, three_products_err_at_most_twice_as_much_as_the_portable_kernel) {
  const Shape s{1, 2, 512, 512, true};
  for (const int D : {32, 64, 128, 256}) {
    const Inputs<float> in(s, D);
    const auto expected = reference::attention_forward(s.plain(D), in.q, in.k, in.v);
    const auto gradients = reference::attention_backward(s.plain(D), expected, in.q, in.k, in.v, in.d_out);
    const Outcome<AmpereFloat<3, DqOrder::fixed>> mma(s, D, in);
    const Outcome<PortableFloat> portable(s, D, in);
    const auto compare = [&](const char* name, const Buffer<float>& by_mma, const Buffer<float>& by_portable,
                             const std::vector<double>& exact) {
      const auto rms = [&](const std::vector<double>& values) {
        double squares = 0;
        for (std::size_t i = 0; i < values.size(); ++i) squares += std::pow(values[i] - exact[i], 2);
        return std::sqrt(squares / static_cast<double>(values.size()));
      };
      const double of_mma = rms(by_mma.values()), of_portable = rms(by_portable.values());
      EXPECT_LE(of_mma, 2 * of_portable) << name << " D " << D;
      ::testing::Test::RecordProperty(name + std::to_string(D), std::to_string(of_mma / of_portable));
    };
    compare("out", mma.out, portable.out, expected.out);
    compare("d_q", mma.d_q, portable.d_q, gradients.d_q);
    compare("d_k", mma.d_k, portable.d_k, gradients.d_k);
    compare("d_v", mma.d_v, portable.d_v, gradients.d_v);
  }
}
#endif

}  // namespace
}  // namespace tessera::test
