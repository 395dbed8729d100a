#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention/decode/decode.hpp"
#include "kernels/rope.hpp"
#include "reference/attention.hpp"
#include "reference/rope.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::CacheAppend;
using kernels::DecodeAttention;

struct Shape {
  int H, capacity, D;
  std::vector<int> keys;  // [B]

  int B() const { return static_cast<int>(keys.size()); }
  int heads() const { return B() * H; }
  std::size_t queries() const { return std::size_t(heads()) * D; }
  std::size_t cached() const { return std::size_t(heads()) * capacity * D; }
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "H " << s.H << " capacity " << s.capacity << " D " << s.D << " keys "
             << ::testing::PrintToString(s.keys);
}

/// Lengths 0, 1, odd, a multiple of a part's alignment, one less and one more, equal to the capacity; D from 2 over odd
/// ones, 80 and 96 to 256.
const std::vector<Shape> kShapes = {
    {1, 1, 8, {1}},          {2, 40, 16, {0, 1, 17, 40}}, {3, 97, 64, {97, 5, 31}}, {1, 300, 128, {255, 256, 257, 300}},
    {2, 33, 256, {33, 32}},  {1, 50, 80, {50, 0}},        {2, 64, 13, {63, 64}},    {1, 70, 2, {70}},
    {1, 1000, 32, {999, 2}}, {2, 20, 96, {19}},           {1, 40, 24, {40, 39}}};
const std::vector<int> kParts = {1, 2, 3, 16, 200};  // the last: more than most have keys

template <class Scalar>
struct Outcome {
  std::vector<Scalar> out;
  std::vector<Accum<Scalar>> lse;
};

template <class Scalar>
struct Decode : ::testing::Test {
  using Real = Accum<Scalar>;
  static std::vector<double> q(const Shape& s) { return uniform_as<Scalar>(s.queries(), 1, -2, 2); }
  static std::vector<double> k(const Shape& s) { return uniform_as<Scalar>(s.cached(), 2, -2, 2); }
  static std::vector<double> v(const Shape& s) { return uniform_as<Scalar>(s.cached(), 3); }

  /// Two launches, the second of which finds what the first has left; what lies beyond the keys is NaN.
  static Outcome<Scalar> run(const Shape& s, int parts, int launches = 2) {
    auto k_all = k(s), v_all = v(s);
    for (int head = 0; head < s.heads(); ++head) {
      for (int j = s.keys[head / s.H]; j < s.capacity; ++j) {
        for (int d = 0; d < s.D; ++d) {
          const std::size_t at = (std::size_t(head) * s.capacity + j) * s.D + d;
          k_all[at] = v_all[at] = std::nan("");
        }
      }
    }
    const Buffer<Scalar> q_in(q(s)), k_in(k_all), v_in(v_all), out(Buffer<Scalar>::unwritten(s.queries()));
    const Buffer<Real> lse(Buffer<Real>::unwritten(s.heads())),
        partial(Buffer<Real>::unwritten(kernels::decode_partials(s.heads(), s.D, parts)));
    const Buffer<int> keys(s.keys);
    const auto arrived = Buffer<std::int32_t>::zeros(s.heads());
    const DecodeAttention<Device, Scalar> decode{.q = q_in.heads(s.B(), s.H, 1, s.D),
                                                 .k = k_in.heads(s.B(), s.H, s.capacity, s.D),
                                                 .v = v_in.heads(s.B(), s.H, s.capacity, s.D),
                                                 .keys = keys.vector(),
                                                 .out = out.heads(s.B(), s.H, 1, s.D),
                                                 .lse = lse.head_rows(s.B(), s.H, 1),
                                                 .scale = Real(1 / std::sqrt(s.D)),
                                                 .parts = parts,
                                                 .partial = partial.vector(),
                                                 .arrived = arrived.vector()};
    for (int i = 0; i < launches; ++i) decode.launch(instance());
    EXPECT_EQ(arrived.elements(), std::vector<std::int32_t>(s.heads(), 0)) << "left as it was found";
    return {out.elements(), lse.elements()};
  }
};
TYPED_TEST_SUITE(Decode, AllScalars, ScalarNames);

TYPED_TEST(Decode, matches_reference_for_any_number_of_parts_and_keys) {
  using Real = Accum<TypeParam>;
  for (const Shape& s : kShapes) {
    std::vector<double> out, lse;
    const auto q = this->q(s), k = this->k(s), v = this->v(s);
    for (int head = 0; head < s.heads(); ++head) {
      const int keys = s.keys[head / s.H];
      const auto rows = [&](const std::vector<double>& x, int first, int count) {
        return std::vector<double>(x.begin() + std::size_t(first) * s.D, x.begin() + std::size_t(first + count) * s.D);
      };
      const auto expected =
          reference::attention_forward({1, 1, keys, s.D, false, 1 / std::sqrt(s.D)}, rows(q, head, 1),
                                       rows(k, head * s.capacity, keys), rows(v, head * s.capacity, keys));
      out.insert(out.end(), expected.out.begin(), expected.out.end());
      lse.push_back(expected.lse[0]);
    }
    for (const int parts : kParts) {
      SCOPED_TRACE(::testing::Message() << s << " parts " << parts);
      const auto found = this->run(s, parts);
      const double slack = tolerance<Real>(s.capacity + s.D);
      EXPECT_TRUE(all_close<TypeParam>(Buffer<TypeParam>(found.out).values(), out,
                                       {.relative = tolerance<TypeParam>(), .absolute = slack + kSmallest<TypeParam>}));
      EXPECT_TRUE(all_close<Real>(Buffer<Real>(found.lse).values(), lse, {.relative = slack, .absolute = slack}));
    }
  }
}

TYPED_TEST(Decode, repeats_bit_for_bit) {
  for (const int parts : kParts) {
    const auto once = this->run(kShapes[3], parts), again = this->run(kShapes[3], parts, 1);
    EXPECT_TRUE(same_bits(once.out, again.out));
    EXPECT_TRUE(same_bits(once.lse, again.lse));
  }
}

TYPED_TEST(Decode, of_a_sequence_does_not_depend_on_the_others) {
  const Shape both = kShapes[1], alone{both.H, both.capacity, both.D, {both.keys[0]}};
  Shape other = both;
  other.keys = {both.keys[0], 3, 4, 5};
  for (const int parts : {1, 3}) {
    const auto a = this->run(both, parts).out, b = this->run(other, parts).out;
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + alone.queries(), b.begin(),
                           [](TypeParam x, TypeParam y) { return static_cast<double>(x) == static_cast<double>(y); }));
  }
}

TYPED_TEST(Decode, runs_on_the_callers_instance_in_one_launch) {
  const LaunchRecorder recorder;
  this->run(kShapes[2], 3, 1);
  EXPECT_TRUE(launched_under(recorder, "tessera::attention::decode", instance()));
  EXPECT_EQ(recorder.launches().size(), 1u);
}

TYPED_TEST(Decode, refuses_what_does_not_fit) {
  using Real = Accum<TypeParam>;
  const Buffer<TypeParam> x(std::vector<double>(4096));
  const Buffer<Real> reals(std::vector<double>(1024));
  const Buffer<int> ints(std::vector<int>(16, 1));
  const auto heads = [&](int B, int H, int T, int D) { return x.heads(B, H, T, D); };
  DecodeAttention<Device, TypeParam> good{.q = heads(2, 2, 1, 8),
                                          .k = heads(2, 2, 5, 8),
                                          .v = heads(2, 2, 5, 8),
                                          .keys = ints.first(2),
                                          .out = heads(2, 2, 1, 8),
                                          .lse = {},
                                          .scale = 1,
                                          .parts = 2,
                                          .partial = reals.first(72),
                                          .arrived = ints.first(4)};
  const auto expect_refusal = [&](auto change) {
    auto bad = good;
    change(bad);
    EXPECT_THROW(bad.launch(instance()), std::invalid_argument);
  };
  expect_refusal([&](auto& d) { d.q = heads(2, 2, 2, 8); });
  expect_refusal([&](auto& d) { d.k = heads(2, 3, 5, 8); });
  expect_refusal([&](auto& d) { d.v = heads(2, 2, 4, 8); });
  expect_refusal([&](auto& d) { d.out = heads(2, 2, 1, 4); });
  expect_refusal([&](auto& d) { d.keys = ints.first(3); });
  expect_refusal([&](auto& d) { d.lse = reals.head_rows(2, 2, 2); });
  expect_refusal([&](auto& d) { d.parts = 0; });
  expect_refusal([&](auto& d) { d.parts = kernels::kMaxDecodeParts + 1; });
  expect_refusal([&](auto& d) { d.partial = reals.first(71); });
  expect_refusal([&](auto& d) { d.arrived = ints.first(3); });
}

TEST(DecodeParts, fill_a_gpu_and_are_one_on_a_host) {
  const kernels::Target gpu = kernels::gpu_target("90a");
  EXPECT_EQ(kernels::decode_parts(kernels::kHostTarget, 32, 131072), 1);
  EXPECT_EQ(kernels::decode_parts(gpu, 32, 32), 1) << "too few keys to cut";
  EXPECT_EQ(kernels::decode_parts(gpu, 1 << 20, 131072), 1) << "enough heads";
  for (const int heads : {8, 32, 256}) {
    for (const int capacity : {4096, 16384, 131072}) {
      const int parts = kernels::decode_parts(gpu, heads, capacity);
      EXPECT_GE(parts * heads, 132 * 3) << heads << " heads, " << capacity << " keys";
      EXPECT_GE(capacity / parts, 64) << heads << " heads, " << capacity << " keys";
    }
  }
  EXPECT_EQ(kernels::decode_parts(gpu, 32, 131072), 16) << "one wave";
  EXPECT_EQ(kernels::decode_parts(gpu, 256, 131072), 2) << "512 of 528 places";
  EXPECT_EQ(kernels::decode_parts(gpu, 192, 131072), 5)
      << "two waves: 960 of 1,056 places, where 2 parts have 384 of 528";
  EXPECT_EQ(kernels::decode_parts(gpu, 192, 1024), 2) << "one wave: too few keys for more";
  EXPECT_EQ(kernels::decode_parts(gpu, 600, 131072), 3) << "four waves at most";
  EXPECT_LE(kernels::decode_parts(gpu, 1, 1 << 24), kernels::kMaxDecodeParts);
}

// --- the cache -----------------------------------------------------------------------------------------------------

TYPED_TEST(Decode, append_rotates_by_each_position_and_writes_one_row) {
  using Real = Accum<TypeParam>;
  constexpr double kTheta = 10000;
  const int B = 3, H = 2, capacity = 9;
  const std::vector<int> positions = {0, 8, 5};
  for (const int D : {2, 10, 128}) {
    SCOPED_TRACE(D);
    std::vector<Real> turns(capacity * D);
    kernels::fill_rope_table(turns.data(), capacity, D, kTheta);
    const Buffer<Real> table(turns);
    const auto qkv_in = uniform_as<TypeParam>(B * 3 * H * D, 5),
               before = uniform_as<TypeParam>(B * H * capacity * D, 6);
    const Buffer<TypeParam> qkv(qkv_in), keys(before), values(before);
    const auto part = [&](int i) { return kernels::heads_of_qkv<Device>(qkv.data(), i, B, H, 1, D); };
    CacheAppend<Device, TypeParam>{.q = part(0),
                                   .k = part(1),
                                   .v = part(2),
                                   .table = table.head_rows(capacity, D / 2, 2),
                                   .positions = Buffer<int>(positions).vector(),
                                   .keys = keys.heads(B, H, capacity, D),
                                   .values = values.heads(B, H, capacity, D)}
        .launch(instance());
    instance().fence();
    const auto found = qkv.values(), k = keys.values(), v = values.values();
    const double slack = tolerance<TypeParam>();  // of inputs up to 1
    for (int b = 0; b < B; ++b) {
      for (int h = 0; h < H; ++h) {
        const auto row_of = [&](int i) { return qkv_in.begin() + ((b * 3 + i) * H + h) * D; };
        const auto turned = [&](int i) {
          return reference::rope(std::vector<double>(row_of(i), row_of(i) + D), 1, D, kTheta, positions[b], 1);
        };
        const auto query = turned(0), key = turned(1);
        for (int d = 0; d < D; ++d) {
          EXPECT_NEAR(found[row_of(0) - qkv_in.begin() + d], query[d], slack);
          for (int j = 0; j < capacity; ++j) {
            const std::size_t cell = ((std::size_t(b) * H + h) * capacity + j) * D + d;
            EXPECT_NEAR(k[cell], j == positions[b] ? key[d] : before[cell], j == positions[b] ? slack : 0);
            EXPECT_EQ(v[cell], j == positions[b] ? row_of(2)[d] : before[cell]);
          }
        }
      }
    }
  }
}

TYPED_TEST(Decode, append_refuses_what_does_not_fit) {
  using Real = Accum<TypeParam>;
  const Buffer<TypeParam> x(std::vector<double>(1024));
  const Buffer<Real> table(std::vector<double>(64));
  const Buffer<int> ints(std::vector<int>(4));
  CacheAppend<Device, TypeParam> good{x.heads(2, 2, 1, 8),      x.heads(2, 2, 1, 8), x.heads(2, 2, 1, 8),
                                      table.head_rows(4, 4, 2), ints.first(2),       x.heads(2, 2, 4, 8),
                                      x.heads(2, 2, 4, 8)};
  const auto expect_refusal = [&](auto change) {
    auto bad = good;
    change(bad);
    EXPECT_THROW(bad.launch(instance()), std::invalid_argument);
  };
  expect_refusal([&](auto& a) { a.q = x.heads(2, 2, 2, 8); });
  expect_refusal([&](auto& a) { a.k = x.heads(2, 1, 1, 8); });
  expect_refusal([&](auto& a) { a.v = x.heads(2, 2, 1, 6); });
  expect_refusal([&](auto& a) { a.keys = x.heads(1, 2, 4, 8); });
  expect_refusal([&](auto& a) { a.values = x.heads(2, 2, 3, 8); });
  expect_refusal([&](auto& a) { a.table = table.head_rows(4, 3, 2); });
  expect_refusal([&](auto& a) { a.positions = ints.first(1); });
}

}  // namespace
}  // namespace tessera::test
