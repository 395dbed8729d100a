#include "memory/arena.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "errors.hpp"
#include "kernels/core/kernel_timer.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::memory {
namespace {

using kernels::Device;
using ::testing::HasSubstr;

struct ArenaTest : ::testing::Test {
  Layout layout;
  TensorId fp32 = layout.add("a.float", {7}, Dtype::fp32, Category::parameters, Lifetime::whole_run());
  TensorId fp64 = layout.add("a.double", {3, 5}, Dtype::fp64, Category::workspace, {0, 4});
  TensorId bf16 = layout.add("a.bfloat", {11}, Dtype::bf16, Category::activations, {5, 6});
  TensorId fp16 = layout.add("a.half", {11}, Dtype::fp16, Category::activations, {5, 6});
  TensorId ints = layout.add("an.int", {2}, Dtype::int32, Category::data, Lifetime::whole_run());
  ArenaTest() { layout.place(); }
};

template <class Scalar>
std::vector<Scalar> content(const Arena<Device>& arena, TensorId id) {
  const std::int64_t count = arena.layout()[id].count;
  const auto host = Kokkos::create_mirror_view_and_copy(
      Kokkos::HostSpace(), kernels::Vector<Scalar, Device>(arena.template data<Scalar>(id), count));
  return {host.data(), host.data() + count};
}

TEST_F(ArenaTest, new_memory_is_not_a_number_in_every_dtype) {
  const Arena<Device> arena(layout);
  for (const float x : content<float>(arena, fp32)) EXPECT_TRUE(std::isnan(x));
  for (const double x : content<double>(arena, fp64)) EXPECT_TRUE(std::isnan(x));
  for (const bfloat16 x : content<bfloat16>(arena, bf16)) EXPECT_TRUE(std::isnan(static_cast<float>(x)));
  for (const float16 x : content<float16>(arena, fp16)) EXPECT_TRUE(std::isnan(static_cast<float>(x)));
  for (const std::int32_t i : content<std::int32_t>(arena, ints)) EXPECT_EQ(i, -1);
}

TEST_F(ArenaTest, hands_out_the_places_of_the_layout) {
  const Arena<Device> arena(layout);
  const auto* base = reinterpret_cast<const unsigned char*>(arena.data<float>(fp32)) - layout[fp32].offset;
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(arena.data<double>(fp64)) - base, layout[fp64].offset);
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(arena.data<bfloat16>(bf16)) - base, layout[bf16].offset);
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(arena.data<std::int32_t>(ints)) - base, layout[ints].offset);
  EXPECT_EQ(arena.data<float>(kAbsent), nullptr);
}

TEST_F(ArenaTest, refuses_another_dtype_by_name) {
  const Arena<Device> arena(layout);
  EXPECT_THROW(arena.data<double>(fp32), std::logic_error);
  EXPECT_THROW(arena.data<float16>(bf16), std::logic_error);
  EXPECT_THROW(arena.data<float>(ints), std::logic_error);
  try {
    arena.data<float>(fp64);
    FAIL() << "was not refused";
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a.double"));
  }
}

TEST_F(ArenaTest, is_one_allocation) {
  kernels::KernelTimer timer;
  timer.start();
  const Arena<Device> arena(layout);
  arena.data<float>(fp32);
  timer.stop();
  EXPECT_EQ(timer.counts().allocations, 1);
}

TEST(HostMemory, available_is_plausible) {
  const std::int64_t bytes = available_host_bytes();
  EXPECT_GT(bytes, std::int64_t{1} << 20);  // this test runs
  EXPECT_LT(bytes, std::int64_t{1} << 50);  // no machine has a pebibyte; "no limit" must not come out
}

TEST(HostMemory, too_large_a_layout_fails_with_the_table_and_the_advice) {
  Layout layout;
  layout.add("params", {std::int64_t{1} << 50}, Dtype::fp32, Category::parameters, Lifetime::whole_run());
  layout.place();
  try {
    require_host_memory(layout, 3, "try a smaller one");
    FAIL() << "4 PiB were accepted";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::out_of_memory);
    EXPECT_EQ(static_cast<int>(failure.code()), 4);
    EXPECT_THAT(failure.what(), HasSubstr("12.0 PiB"));
    EXPECT_THAT(failure.what(), HasSubstr("3 ranks x 4.0 PiB"));
    EXPECT_THAT(failure.what(), HasSubstr(layout.table()));
    EXPECT_THAT(failure.what(), ::testing::EndsWith("try a smaller one"));
  }
}

TEST(HostMemory, counts_the_ranks_of_the_host) {
  Layout layout;  // half of what there is fits once, not ten times
  layout.add("params", {available_host_bytes() / 8}, Dtype::fp32, Category::parameters, Lifetime::whole_run());
  layout.place();
  EXPECT_NO_THROW(require_host_memory(layout, 1, ""));
  EXPECT_THROW(require_host_memory(layout, 10, ""), Failure);
}

}  // namespace
}  // namespace tessera::memory
