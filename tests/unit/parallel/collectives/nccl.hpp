/// For tests of collectives over NCCL: ranks that it has joined, and work on their GPUs.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "parallel/choice.hpp"
#include "parallel/device.hpp"
#include "support/buffer.hpp"
#include "support/shared_gpu.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::parallel {

/// Ranks on separate GPUs, joined by NCCL, with each way of transfer; the tests skip themselves if there are fewer
/// GPUs than ranks. Ranks are connected once per way: it takes seconds.
struct Nccl : ::testing::TestWithParam<TransferMethod> {
  static test::TestWorld& connect(TransferMethod method) {
    const auto [entry, is_new] = worlds.try_emplace(method);
    test::TestWorld& world = entry->second;
    if (is_new && has_gpus_for(world)) world.use(make_gpu_collectives(world, method));
    return world;
  }
  static bool has_gpus_for(const test::TestWorld& world) {
    return test::ranks_share_a_gpu() || visible_devices() >= world.local_size();
  }
  static void TearDownTestSuite() { worlds.clear(); }

  void SetUp() override {
    if (!has_gpus_for(world)) GTEST_SKIP() << "needs " << world.local_size() << " GPUs, found " << visible_devices();
  }
  Collectives& nccl() { return world.collectives(); }

  bool is_ring() const { return GetParam() == TransferMethod::ring; }

  inline static std::map<TransferMethod, test::TestWorld> worlds;
  test::TestWorld& world = connect(GetParam());
};

template <class Scalar>
Span span_of(const test::Buffer<Scalar>& buffer) {
  return {"values", buffer.data(), static_cast<std::int64_t>(buffer.size()), kDtype<Scalar>};
}

/// Keeps the instance busy, then writes `value` to every element.
inline void fill_slowly(const kernels::Device& exec, const test::Buffer<float>& buffer, float value) {
  const auto numbers = buffer.vector();
  Kokkos::parallel_for(
      "slow", Kokkos::RangePolicy<kernels::Device>(exec, 0, numbers.extent(0)), KOKKOS_LAMBDA(std::int64_t i) {
        float x = value;
        for (int round = 0; round < 200000; ++round) x = 0.5f * x + 0.5f * value;
        numbers(i) = x;
      });
}

inline void double_all(const kernels::Device& exec, const test::Buffer<float>& buffer) {
  const auto numbers = buffer.vector();
  Kokkos::parallel_for(
      "double", Kokkos::RangePolicy<kernels::Device>(exec, 0, numbers.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) { numbers(i) *= 2; });
}

}  // namespace tessera::parallel
