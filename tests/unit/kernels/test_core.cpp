/// The basis of all kernels: the 16-bit storage types, exhaustively, the fast exponential, and the dtype copy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/byte_copies.hpp"
#include "kernels/core/cast_copy.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/scalar.hpp"
#include "kernels/core/sum_parts.hpp"
#include "kernels/residual_add.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class Scalar>
struct Format;
template <>
struct Format<bfloat16> {
  static constexpr int exponent_bits = 8, fraction_bits = 7;
};
template <>
struct Format<float16> {
  static constexpr int exponent_bits = 5, fraction_bits = 10;
};

template <class Scalar>
Scalar from_bits(unsigned bits) {
  Scalar value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

/// The number that IEEE 754 assigns to a pattern, by its definition.
template <class Scalar>
double meaning(unsigned bits) {
  constexpr int f_bits = Format<Scalar>::fraction_bits, bias = (1 << (Format<Scalar>::exponent_bits - 1)) - 1;
  constexpr unsigned e_max = (1u << Format<Scalar>::exponent_bits) - 1;
  const double sign = bits & 0x8000u ? -1 : 1;
  const unsigned exponent = (bits & 0x7fffu) >> f_bits, fraction = bits & ((1u << f_bits) - 1);
  if (exponent == e_max) return fraction ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - f_bits);
  return sign * std::ldexp(fraction + (1u << f_bits), static_cast<int>(exponent) - bias - f_bits);
}

template <class Scalar>
struct Storage : ::testing::Test {
  static constexpr unsigned kFirstNotFinite = ((1u << Format<Scalar>::exponent_bits) - 1)
                                              << Format<Scalar>::fraction_bits;
};
using StorageTypes = ::testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(Storage, StorageTypes, ScalarNames);

TYPED_TEST(Storage, every_pattern_means_what_the_standard_says_and_comes_back) {
  for (unsigned bits = 0; bits < 0x10000u; ++bits) {
    const auto value = from_bits<TypeParam>(bits);
    const double expected = meaning<TypeParam>(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(value))) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(static_cast<float>(value))))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), expected) << bits;
    ASSERT_EQ(std::signbit(static_cast<float>(value)), std::signbit(expected)) << bits;
    ASSERT_EQ(TypeParam(static_cast<float>(value)).bits, bits);
    ASSERT_EQ(TypeParam(static_cast<double>(value)).bits, bits);
  }
}

TYPED_TEST(Storage, rounds_to_the_nearest_and_ties_to_the_even_pattern) {
  for (unsigned bits = 0; bits + 1 < this->kFirstNotFinite; ++bits) {
    const double low = meaning<TypeParam>(bits), high = meaning<TypeParam>(bits + 1);
    const float middle = static_cast<float>((low + high) / 2);  // exact: float has bits to spare
    for (const unsigned sign : {0u, 0x8000u}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(TypeParam(s * middle).bits, sign | (bits + (bits & 1u))) << middle;
      ASSERT_EQ(TypeParam(s * std::nextafter(middle, 0.0f)).bits, sign | bits) << middle;
      ASSERT_EQ(TypeParam(s * std::nextafter(middle, kInf)).bits, sign | (bits + 1)) << middle;
    }
  }
}

TYPED_TEST(Storage, overflows_to_infinity_half_way_past_the_largest_number) {
  const double largest = meaning<TypeParam>(this->kFirstNotFinite - 1);
  const double spacing = largest - meaning<TypeParam>(this->kFirstNotFinite - 2);
  const float limit = static_cast<float>(largest + spacing / 2);
  EXPECT_EQ(TypeParam(std::nextafter(limit, 0.0f)).bits, this->kFirstNotFinite - 1);
  EXPECT_EQ(TypeParam(limit).bits, this->kFirstNotFinite);
  EXPECT_EQ(TypeParam(-limit).bits, 0x8000u | this->kFirstNotFinite);
  EXPECT_EQ(TypeParam(kInf).bits, this->kFirstNotFinite);
}

TYPED_TEST(Storage, epsilon_is_the_distance_from_one_to_the_next) {
  const auto one = TypeParam(1.0f);
  EXPECT_EQ(meaning<TypeParam>(one.bits + 1u) - 1.0, kEpsilon<TypeParam>);
}

TEST(FastExp, is_within_two_ulp_of_the_exact_value) {
  double worst = 0;
  for (double x = -86.5; x <= 88.7; x += 1.7e-4) {
    const auto in = static_cast<float>(x);
    worst = std::max(worst, ulps<float>(kernels::fast_exp(in), std::exp(static_cast<double>(in))));
  }
  EXPECT_LT(worst, 2);
}

TEST(FastExp, has_its_tails_and_keeps_nan) {
  EXPECT_EQ(kernels::fast_exp(0.0f), 1.0f);
  EXPECT_EQ(kernels::fast_exp(-kInf), 0.0f);
  EXPECT_EQ(kernels::fast_exp(-200.0f), 0.0f);
  EXPECT_LT(kernels::fast_exp(-87.0f), 1e-37f);
  EXPECT_EQ(kernels::fast_exp(89.0f), kInf);
  EXPECT_EQ(kernels::fast_exp(kInf), kInf);
  EXPECT_TRUE(std::isfinite(kernels::fast_exp(88.72f)));
  EXPECT_TRUE(std::isnan(kernels::fast_exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(kernels::fast_exp(-std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(kernels::fast_exp(1.25), std::exp(1.25));  // double: the library's
}

TEST(CeilDiv, counts_whole_pieces_of_either_type) {
  EXPECT_EQ(kernels::ceil_div(0, 64), 0);
  EXPECT_EQ(kernels::ceil_div(1, 64), 1);
  EXPECT_EQ(kernels::ceil_div(64, 64), 1);
  EXPECT_EQ(kernels::ceil_div(65, 64), 2);
  EXPECT_LE(kernels::ceil_div(-65, 64), 0);
  EXPECT_EQ(kernels::ceil_div(std::int64_t{1} << 40, 3), 366503875926);
  EXPECT_EQ(kernels::round_up(65, 64), 128);
  EXPECT_EQ(kernels::round_up(128, 64), 128);
}

TEST(OtherInstance, is_not_the_default_one_where_there_are_several) {
  if (kernels::kIsHost<Device>) GTEST_SKIP() << "a host has one instance";
  const OtherInstance other;
  EXPECT_NE(Kokkos::Tools::Experimental::device_id(instance()), Kokkos::Tools::Experimental::device_id(Device()));
}

TEST(CastCopy, converts_and_rounds) {
  const auto values = uniform(1009, 1);
  const Buffer<float> from(values);
  const auto to = Buffer<bfloat16>::unwritten(values.size());
  const OtherInstance other;
  const LaunchRecorder recorder;
  kernels::CastCopy<Device, float, bfloat16>{.from = from.vector(), .to = to.vector()}.launch(instance());
  EXPECT_TRUE(launched_under(recorder, "tessera::core::", instance()));
  EXPECT_TRUE(all_close<bfloat16>(to.values(), from.values(), {.relative = kEpsilon<bfloat16> / 2}));
  EXPECT_THROW(
      (kernels::CastCopy<Device, float, bfloat16>{.from = from.first(3), .to = to.vector()}.launch(instance())),
      std::invalid_argument);
}

TEST(CopyBytes, copies_any_number_of_bytes_from_and_to_any_address) {
  const OtherInstance other;
  const Buffer<float> from(uniform(3000, 1));
  const std::vector<float> source = from.elements();
  const auto bytes_of = [](auto& values) { return reinterpret_cast<char*>(values.data()); };
  for (const std::size_t n : {0, 1, 3, 15, 16, 17, 4096, 11999}) {
    for (const auto& [read, written] : {std::pair<std::size_t, std::size_t>{0, 0}, {16, 32}, {1, 0}, {0, 2}, {1, 1}}) {
      if (n + std::max(read, written) > sizeof(float) * source.size()) continue;
      const Buffer<float> to = Buffer<float>::zeros(source.size());
      std::vector<float> expected = to.elements();
      std::memcpy(bytes_of(expected) + written, reinterpret_cast<const char*>(source.data()) + read, n);
      const LaunchRecorder recorder;
      kernels::copy_bytes(instance(), reinterpret_cast<const char*>(from.data()) + read, bytes_of(to) + written, n);
      const bool is_own_kernel =
          !kernels::kIsHost<Device> && n > 0 && n % 16 == 0 && read % 16 == 0 && written % 16 == 0;
      EXPECT_EQ(static_cast<bool>(launched_under(recorder, "tessera::core::copy_bytes", instance())), is_own_kernel)
          << n << " bytes from " << read << " to " << written;
      EXPECT_TRUE(same_bits(to.elements(), expected)) << n << " bytes from " << read << " to " << written;
    }
  }
}

template <class Scalar>
struct SumParts : ::testing::Test {};
TYPED_TEST_SUITE(SumParts, AllScalars, ScalarNames);

template <class Scalar>
struct ResidualAdd : ::testing::Test {};
TYPED_TEST_SUITE(ResidualAdd, AllScalars, ScalarNames);

TYPED_TEST(ResidualAdd, rounds_once_and_may_overwrite_what_it_adds) {
  for (const std::size_t n : {1, 7, 4099}) {
    const Buffer<TypeParam> x(uniform(n, 1)), delta(uniform(n, 2));
    const std::vector<double> left = x.values(), right = delta.values();
    std::vector<double> expected(n);
    for (std::size_t i = 0; i < n; ++i) expected[i] = left[i] + right[i];
    kernels::ResidualAdd<Device, TypeParam>{.x = x.vector(), .delta = delta.vector(), .out = x.vector()}.launch(
        instance());
    EXPECT_TRUE(all_close<TypeParam>(x.values(), expected, {.relative = kEpsilon<TypeParam> / 2}));
  }
}

/// Compares with the same sum on the host: in the order of the parts, in Accum<Scalar>, rounded once. `shift` parts
/// begin one element after a packet boundary. The sums go to one of the parts; copies of them to another one, if there
/// are several, and beside them all.
template <class Scalar>
void expect_sum_of_parts(int parts, std::size_t n, std::size_t shift) {
  std::vector<Buffer<Scalar>> buffers;
  std::vector<Accum<Scalar>> sums(n);
  kernels::SumParts<Device, Scalar> sum;
  sum.parts = parts;
  for (int p = 0; p < parts; ++p) {
    buffers.emplace_back(uniform(n + shift, 7 + p));
    sum.part[p] = buffers.back().data() + shift;
    const std::vector<Scalar> values = buffers.back().elements();
    for (std::size_t i = 0; i < n; ++i) sums[i] += static_cast<Accum<Scalar>>(values[i + shift]);
  }
  std::vector<Scalar> expected(n);
  for (std::size_t i = 0; i < n; ++i) expected[i] = static_cast<Scalar>(sums[i]);
  const int own = parts / 2;
  sum.out = kernels::Vector<Scalar, Device>(buffers[own].data() + shift, n);
  buffers.push_back(Buffer<Scalar>::zeros(n + shift));
  std::vector<int> places = {own, parts};
  if (parts > 1) places.push_back(0);
  for (std::size_t i = 1; i < places.size(); ++i) sum.copies[sum.copy_count++] = buffers[places[i]].data() + shift;
  sum.launch(instance());
  for (const int place : places) {
    const std::vector<Scalar> all = buffers[place].elements();
    EXPECT_TRUE(same_bits(std::vector<Scalar>(all.begin() + shift, all.end()), expected))
        << parts << " parts of " << n << ", from element " << shift << ", in " << place;
  }
}

TYPED_TEST(SumParts, adds_in_order_and_rounds_once_into_one_of_them) {
  const OtherInstance other;
  const LaunchRecorder recorder;
  for (const int parts : {1, 2, 3, 4, 5, 8, 16}) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{7}, std::size_t{4099}}) {
      expect_sum_of_parts<TypeParam>(parts, n, 0);
      expect_sum_of_parts<TypeParam>(parts, n, 1);
    }
  }
  EXPECT_TRUE(launched_under(recorder, "tessera::core::", instance()));
  kernels::SumParts<Device, TypeParam> none{.part = {}, .parts = 0, .out = {}};
  EXPECT_THROW(none.launch(instance()), std::invalid_argument);
  none.parts = 1;
  none.copy_count = none.kMaxParts + 1;
  EXPECT_THROW(none.launch(instance()), std::invalid_argument);
}

/// Parts that begin `shift` elements after a packet boundary: sums with squares, beside the parts and in one of them,
/// have the bits of plain sums; so have the squares of each run.
template <class Scalar>
void expect_squares_of_sums(int parts, std::size_t n, std::size_t shift) {
  using Sum = kernels::SumParts<Device, Scalar>;
  constexpr auto kBlock = static_cast<std::size_t>(Sum::kSquaresBlock);
  std::vector<Buffer<Scalar>> buffers;
  Sum sum;
  sum.parts = parts;
  for (int p = 0; p < parts; ++p) {
    buffers.emplace_back(uniform(n + shift, 5 + p));
    sum.part[p] = buffers.back().data() + shift;
  }
  const auto summed_into = [&](const Buffer<Scalar>& to, const kernels::Vector<double, Device>& squares) {
    sum.out = kernels::Vector<Scalar, Device>(to.data() + shift, n);
    sum.squares = squares;
    sum.launch(instance());
    const std::vector<Scalar> all = to.elements();
    return std::vector<Scalar>(all.begin() + shift, all.end());
  };
  const Buffer<Scalar> plain = Buffer<Scalar>::zeros(n + shift), out = Buffer<Scalar>::zeros(n + shift);
  const Buffer<double> squares = Buffer<double>::zeros((n + kBlock - 1) / kBlock);
  const Buffer<double> again = Buffer<double>::zeros(squares.size());
  const std::vector<Scalar> sums = summed_into(plain, {});
  const Buffer<Scalar> copy = Buffer<Scalar>::zeros(n + shift);
  sum.copies[sum.copy_count++] = copy.data() + shift;
  const std::string what = std::to_string(parts) + " parts of " + std::to_string(n) + ", from " + std::to_string(shift);
  EXPECT_TRUE(same_bits(summed_into(out, squares.vector()), sums)) << what;
  EXPECT_TRUE(same_bits(summed_into(buffers[parts / 2], again.vector()), sums)) << what << ", in place";
  EXPECT_TRUE(same_bits(squares.elements(), again.elements())) << what;
  const std::vector<Scalar> copied = copy.elements();
  EXPECT_TRUE(same_bits(std::vector<Scalar>(copied.begin() + shift, copied.end()), sums)) << what << ", copied";
  std::vector<double> expected(squares.size(), 0.0);
  for (std::size_t i = 0; i < n; ++i)
    expected[i / kBlock] += static_cast<double>(sums[i]) * static_cast<double>(sums[i]);
  EXPECT_TRUE(all_close<double>(squares.values(), expected, {.relative = kEpsilon<double> * kBlock})) << what;
}

TYPED_TEST(SumParts, squares_of_the_rounded_sums_cost_them_no_bit) {
  using Sum = kernels::SumParts<Device, TypeParam>;
  const OtherInstance other;
  constexpr auto kBlock = static_cast<std::size_t>(Sum::kSquaresBlock);
  for (const int parts : {1, 2, 3, 5, 16}) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{7}, kBlock, kBlock + 3, 3 * kBlock - 1}) {
      expect_squares_of_sums<TypeParam>(parts, n, 0);
      expect_squares_of_sums<TypeParam>(parts, n, 1);
    }
  }
  Sum short_of_squares{.part = {}, .parts = 1, .out = {}};
  const Buffer<double> one = Buffer<double>::zeros(1);
  short_of_squares.squares = one.vector();
  EXPECT_THROW(short_of_squares.launch(instance()), std::invalid_argument);
}

}  // namespace
}  // namespace tessera::test
