/// Sums by copy engines, without NCCL: ranks may share a GPU, so one GPU is enough; a single rank has nothing to sum.
#include "parallel/copy_engine.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "support/buffer.hpp"
#include "support/random.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::parallel {
namespace {

using kernels::Device;
using test::BarrierAtEnd;
using test::Buffer;
using test::same_bits;
using test::TestWorld;

struct CopyEngine : ::testing::Test {
  void SetUp() override { ASSERT_EQ(engines.fault(), ""); }
  void TearDown() override {
    engines.close();
    world.barrier();
  }

  TestWorld world;
  CopyEngines engines{world};
  Device exec;
};

template <class Scalar>
Span span_of(const Buffer<Scalar>& buffer) {
  return {"values", buffer.data(), static_cast<std::int64_t>(buffer.size()), kDtype<Scalar>};
}

/// The contribution of rank `rank` to the sum.
template <class Scalar>
std::vector<Scalar> values_of(int rank, std::size_t n) {
  std::vector<Scalar> values(n);
  const std::vector<double> random = test::uniform(n, 40 + rank);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<Scalar>(random[i]);
  return values;
}

/// In the order of the ranks, in Accum<Scalar>, rounded once.
template <class Scalar>
std::vector<Scalar> sums_of(int ranks, std::size_t n) {
  std::vector<Accum<Scalar>> sums(n);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<Scalar> values = values_of<Scalar>(rank, n);
    for (std::size_t i = 0; i < n; ++i) sums[i] += static_cast<Accum<Scalar>>(values[i]);
  }
  std::vector<Scalar> rounded(n);
  for (std::size_t i = 0; i < n; ++i) rounded[i] = static_cast<Scalar>(sums[i]);
  return rounded;
}

/// As many times the same, added up.
template <class Scalar>
std::vector<Scalar> multiplied(const std::vector<Scalar>& values, int times) {
  std::vector<Scalar> sums(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    Accum<Scalar> sum{};
    for (int k = 0; k < times; ++k) sum += static_cast<Accum<Scalar>>(values[i]);
    sums[i] = static_cast<Scalar>(sum);
  }
  return sums;
}

template <class Scalar>
void expect_one_rounding(CopyEngine& test, std::size_t shift) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{1009}, std::size_t{300'001}}) {
    const int ranks = test.world.size();
    std::vector<Scalar> first;
    std::vector<Scalar> initial = values_of<Scalar>(test.world.rank(), n);
    initial.insert(initial.begin(), shift, Scalar(0.5f));
    const Buffer<Scalar> buffer(initial);
    Span span = span_of(buffer);
    span.data = buffer.data() + shift;
    span.count = static_cast<std::int64_t>(n);
    const BarrierAtEnd barrier(test.world);
    const auto sum = test.engines.make_sum(span);
    for (int run = 0; run < 2; ++run) {  // the second time from what the first one left
      sum->enqueue(test.exec);
      test.exec.fence();
      const std::vector<Scalar> expected = run == 0 ? sums_of<Scalar>(ranks, n) : multiplied(first, ranks);
      const std::vector<Scalar> all = buffer.elements();
      first.assign(all.begin() + static_cast<std::ptrdiff_t>(shift), all.end());
      EXPECT_TRUE(same_bits(first, expected)) << n << " elements of " << kScalarName<Scalar> << " behind " << shift;
      for (std::size_t i = 0; i < shift; ++i) EXPECT_EQ(static_cast<float>(all[i]), 0.5f);
    }
  }
}

TEST_F(CopyEngine, adds_in_the_order_of_the_ranks_and_rounds_once) {
  for (const std::size_t shift : {0, 1, 64}) {  // behind the begin of an allocation, which is aligned
    expect_one_rounding<double>(*this, shift);
    expect_one_rounding<float>(*this, shift);
    expect_one_rounding<bfloat16>(*this, shift);
    expect_one_rounding<float16>(*this, shift);
  }
}

TEST_F(CopyEngine, sums_spans_larger_than_its_receive_buffer) {
  const std::size_t n = static_cast<std::size_t>(kReceiveBytes) / sizeof(double) * 5 / 2 + 3;
  std::vector<double> values(n), expected(n);
  const int ranks = world.size();
  for (std::size_t i = 0; i < n; ++i) {  // whole numbers: exact
    values[i] = static_cast<double>(i % 1'000'003) * (world.rank() + 1);
    expected[i] = static_cast<double>(i % 1'000'003) * (ranks * (ranks + 1) / 2);
  }
  const Buffer<double> buffer(values);
  const BarrierAtEnd barrier(world);
  const auto sum = engines.make_sum(span_of(buffer));
  sum->enqueue(exec);
  exec.fence();
  EXPECT_TRUE(same_bits(buffer.elements(), expected));
}

TEST_F(CopyEngine, repeats_in_a_graph_and_behind_each_other) {
  const std::size_t n = 100'003;
  const Buffer<float> first(std::vector<float>(n, 1.0f)), second(std::vector<float>(n, 2.0f));
  const BarrierAtEnd barrier(world);
  const auto one = engines.make_sum(span_of(first));
  const auto other = engines.make_sum(span_of(second));
  const auto enqueue = [&] {
    one->enqueue(exec);
    other->enqueue(exec);
    one->enqueue(exec);
  };
  enqueue();
  exec.fence();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(exec.cuda_stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  enqueue();
  ASSERT_EQ(cudaStreamEndCapture(exec.cuda_stream(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  for (int run = 0; run < 3; ++run) ASSERT_EQ(cudaGraphLaunch(replay, exec.cuda_stream()), cudaSuccess);
  exec.fence();
  const auto power = [&](int exponent) {
    float product = 1;
    for (int i = 0; i < exponent; ++i) product *= static_cast<float>(world.size());
    return product;
  };
  EXPECT_EQ(first.elements(), std::vector<float>(n, power(8)));
  EXPECT_EQ(second.elements(), std::vector<float>(n, 2 * power(4)));
  EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(CopyEngine, who_leaves_is_not_held_up_by_ranks_that_never_come) {
  const Buffer<float> buffer(std::vector<float>(1000, 1.0f));
  const BarrierAtEnd barrier(world);
  const auto sum = engines.make_sum(span_of(buffer));
  if (world.rank() == 0) {
    sum->enqueue(exec);
    engines.abandon();
    exec.fence();  // ends
  }
  world.barrier();
}

TEST_F(CopyEngine, memory_that_cannot_be_reached_is_refused_on_every_rank) {
  if (world.size() == 1) GTEST_SKIP() << "a single rank reaches what it has";
  std::vector<float> on_host(4);
  EXPECT_THROW(engines.make_sum({"values", on_host.data(), 4, Dtype::fp32}), std::runtime_error);
}

}  // namespace
}  // namespace tessera::parallel
