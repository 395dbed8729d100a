#include "kernels/device_check.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "kernels/core/events.hpp"
#include "kernels/gemm/gemm.hpp"
#include "support/buffer.hpp"

namespace tessera::kernels {
namespace {

TEST(DeviceCheck, passes_a_sound_device_and_leaves_no_algorithms) {
  const double start_s = events::now_s();
  const DeviceCheck found = check_device();
  const double took_s = events::now_s() - start_s;
  EXPECT_EQ(found.wrong, "");
  EXPECT_TRUE(gemm_algorithms().empty());
  if (kIsHost<Device>) {
    EXPECT_EQ(found.gbyte_per_s, 0);
    return;
  }
  std::printf("checked in %.3f s; %.0f GB/s\n", took_s, found.gbyte_per_s);
  EXPECT_LT(took_s, 1);
  EXPECT_GT(found.gbyte_per_s, 500);
}

TEST(DeviceCheck, finds_every_bit_that_differs_and_the_first_entry) {
  constexpr int kRows = 7, kColumns = 300;
  const std::vector<double> values(kRows * kColumns, 5);
  const test::Buffer<float> expected(values);
  EXPECT_EQ(different_bits({}, expected.matrix(kRows, kColumns), expected.matrix(kRows, kColumns)).count, 0);
  for (const double other : {5 + 0x1p-21, -5.0, std::nan("")}) {  // one bit, the sign, no number
    std::vector<double> changed = values;
    changed[2 * kColumns + 3] = changed[2 * kColumns + 4] = changed.back() = other;
    const test::Buffer<float> made(changed);
    const auto [count, first] = different_bits({}, made.matrix(kRows, kColumns), expected.matrix(kRows, kColumns));
    EXPECT_EQ(count, 3) << other;
    EXPECT_EQ(first, 2 * kColumns + 3) << other;
  }
}

TEST(DeviceCheck, tells_zeros_of_different_signs_apart) {
  const test::Buffer<float> plus(std::vector<double>(4, 0.0)), minus(std::vector<double>(4, -0.0));
  EXPECT_EQ(different_bits({}, plus.matrix(2, 2), minus.matrix(2, 2)).count, 4);
}

}  // namespace
}  // namespace tessera::kernels
