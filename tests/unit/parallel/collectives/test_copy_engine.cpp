/// Transfers by copy engines, without NCCL: ranks may share a GPU, so one GPU is enough.
#include "parallel/collectives/copy_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "kernels/core/byte_copies.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/side_stream.hpp"
#include "kernels/cuda/stream.hpp"
#include "support/buffer.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "unit/parallel/collectives/hold_up.hpp"
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
    engines.free();
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

/// In rank order, in Accum<Scalar>, rounded once.
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

/// The sum of that many equal values.
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
void expect_one_rounding(CopyEngine& test, std::size_t shift, Overlap overlap) {
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
    const auto sum = test.engines.make(Operation::all_reduce, span, nullptr, nullptr, overlap);
    for (int run = 0; run < 2; ++run) {  // the second time from what the first one left
      sum->enqueue(test.exec);
      test.exec.fence();
      const std::vector<Scalar> expected = run == 0 ? sums_of<Scalar>(ranks, n) : multiplied(first, ranks);
      const std::vector<Scalar> all = buffer.elements();
      first.assign(all.begin() + static_cast<std::ptrdiff_t>(shift), all.end());
      EXPECT_TRUE(same_bits(first, expected)) << n << " elements of " << kScalarName<Scalar> << " behind " << shift
                                              << (overlap == Overlap::none ? ", beside nothing" : "");
      for (std::size_t i = 0; i < shift; ++i) EXPECT_EQ(static_cast<float>(all[i]), 0.5f);
    }
  }
}

TEST_F(CopyEngine, adds_in_the_order_of_the_ranks_and_rounds_once) {
  for (const Overlap overlap : {Overlap::compute, Overlap::none}) {
    for (const std::size_t shift : {0, 1, 64}) {  // from the start of an allocation, which is aligned
      expect_one_rounding<double>(*this, shift, overlap);
      expect_one_rounding<float>(*this, shift, overlap);
      expect_one_rounding<bfloat16>(*this, shift, overlap);
      expect_one_rounding<float16>(*this, shift, overlap);
    }
  }
}

TEST_F(CopyEngine, sums_spans_larger_than_its_receive_buffer) {
  const std::size_t n = static_cast<std::size_t>(receive_bytes(world.size())) / sizeof(double) * 2 + 3;
  std::vector<double> values(n), expected(n);
  const int ranks = world.size();
  for (std::size_t i = 0; i < n; ++i) {  // whole numbers: exact
    values[i] = static_cast<double>(i % 1'000'003) * (world.rank() + 1);
    expected[i] = static_cast<double>(i % 1'000'003) * (ranks * (ranks + 1) / 2);
  }
  const Buffer<double> buffer(values);
  const BarrierAtEnd barrier(world);
  for (const Overlap overlap : {Overlap::compute, Overlap::none}) {
    buffer.upload(values);
    world.barrier();
    const auto sum = engines.make(Operation::all_reduce, span_of(buffer), nullptr, nullptr, overlap);
    const test::LaunchRecorder recorder;
    sum->enqueue(exec);
    exec.fence();
    EXPECT_TRUE(same_bits(buffer.elements(), expected));
    const std::size_t sums = recorder.launches().size();  // one for a piece's packets, one for what lies behind them
    if (ranks > 1) EXPECT_TRUE(overlap == Overlap::none ? sums <= 2 : sums > 2) << sums;
    world.barrier();
  }
}

/// Under compute-sanitizer it fails: there kernels run one after the other.
TEST_F(CopyEngine, of_two_all_reduces_beside_work_one_goes_on_while_the_other_is_held_up) {
  if (world.size() == 1) GTEST_SKIP() << "a single rank has nothing to sum";
  constexpr std::size_t n = 25'000'001;  // in several pieces
  const auto own = static_cast<float>(world.rank() + 1);
  const auto total = static_cast<float>(world.size() * (world.size() + 1) / 2);
  const Buffer<float> held_up(std::vector<float>(n, own)), beside(std::vector<float>(n, own));
  const BarrierAtEnd barrier(world);
  const auto first = engines.make(Operation::all_reduce, span_of(held_up));
  const auto second = engines.make(Operation::all_reduce, span_of(beside));
  const auto alone = engines.make(Operation::all_reduce, span_of(beside), nullptr, nullptr, Overlap::none);
  ASSERT_TRUE(first->channel() && second->channel());
  EXPECT_EQ(alone->channel(), nullptr);
  second->enqueue(*second->channel());  // loads the kernels, for which CUDA may wait until the device is idle
  second->channel()->fence();
  exec.fence();
  beside.upload(std::vector<float>(n, own));
  world.barrier();

  const Flag goes_on("goes on");
  hold_up(*first->channel(), goes_on);
  first->enqueue(*first->channel());
  second->enqueue(*second->channel());
  const auto is_running = [](const Device& channel) {
    return cudaStreamQuery(channel.cuda_stream()) == cudaErrorNotReady;
  };
  const double deadline_s = events::now_s() + 20;
  while (is_running(*second->channel()) && events::now_s() < deadline_s) {
  }
  EXPECT_FALSE(is_running(*second->channel()));
  EXPECT_TRUE(is_running(*first->channel()));
  *static_cast<volatile int*>(goes_on.data()) = 1;
  first->channel()->fence();
  second->channel()->fence();
  EXPECT_EQ(held_up.elements(), std::vector<float>(n, total));
  EXPECT_EQ(beside.elements(), std::vector<float>(n, total));
}

/// Rank `rank`'s part of `all` behind `shift` other elements.
template <class Element>
std::vector<Element> part_of(const std::vector<Element>& all, int rank, std::size_t part, std::size_t shift = 0) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(shift + rank * part);
  return {begin, begin + static_cast<std::ptrdiff_t>(part)};
}

template <class Element>
void expect_untouched(const std::vector<Element>& all, std::size_t shift) {
  for (std::size_t i = 0; i < shift; ++i) EXPECT_EQ(static_cast<double>(all[i]), 1.0);
}

template <class Scalar>
void expect_scattered_sums(CopyEngine& test, std::size_t shift) {
  const int ranks = test.world.size(), rank = test.world.rank();
  for (const std::size_t part : {std::size_t{1}, std::size_t{1009}, std::size_t{100'003}}) {
    const std::size_t n = part * static_cast<std::size_t>(ranks);
    std::vector<Scalar> initial = values_of<Scalar>(rank, n);
    initial.insert(initial.begin(), shift, Scalar(1.0f));
    const Buffer<Scalar> buffer(initial);
    const BarrierAtEnd barrier(test.world);
    const auto transfer = test.engines.make(
        Operation::reduce_scatter, {"values", buffer.data() + shift, static_cast<std::int64_t>(n), kDtype<Scalar>});
    for (int run = 0; run < 2; ++run) {
      buffer.upload(initial);
      transfer->enqueue(test.exec);
      test.exec.fence();
      const std::vector<Scalar> all = buffer.elements();
      EXPECT_TRUE(same_bits(part_of(all, rank, part, shift), part_of(sums_of<Scalar>(ranks, n), rank, part)))
          << "parts of " << part << " elements of " << kScalarName<Scalar> << " behind " << shift << ", run " << run;
      expect_untouched(all, shift);
    }
  }
}

TEST_F(CopyEngine, scatters_sums_in_the_order_of_the_ranks_that_are_rounded_once) {
  for (const std::size_t shift : {0, 1, 64}) {
    expect_scattered_sums<double>(*this, shift);
    expect_scattered_sums<float>(*this, shift);
    expect_scattered_sums<bfloat16>(*this, shift);
    expect_scattered_sums<float16>(*this, shift);
  }
}

TEST_F(CopyEngine, scatters_sums_of_spans_larger_than_its_receive_buffer) {
  const std::size_t part = static_cast<std::size_t>(receive_bytes(world.size())) / sizeof(double) * 5 / 6 + 3;
  const int ranks = world.size();
  std::vector<double> values(part * ranks), expected(part);
  for (std::size_t i = 0; i < values.size(); ++i) {  // whole numbers: exact
    values[i] = static_cast<double>(i % 1'000'003) * (world.rank() + 1);
  }
  for (std::size_t i = 0; i < part; ++i) {
    expected[i] = static_cast<double>((world.rank() * part + i) % 1'000'003) * (ranks * (ranks + 1) / 2);
  }
  const Buffer<double> buffer(values);
  const BarrierAtEnd barrier(world);
  const auto transfer = engines.make(Operation::reduce_scatter, span_of(buffer));
  transfer->enqueue(exec);
  exec.fence();
  EXPECT_TRUE(same_bits(part_of(buffer.elements(), world.rank(), part), expected));
}

/// Any bytes, which differ between ranks and runs.
template <class Element>
std::vector<Element> bytes_of(int rank, std::size_t n, int run) {
  std::vector<Element> elements(n);
  auto* bytes = reinterpret_cast<unsigned char*>(elements.data());
  for (std::size_t i = 0; i < n * sizeof(Element); ++i) bytes[i] = static_cast<unsigned char>(i * 7 + rank * 31 + run);
  return elements;
}

template <class Element>
void expect_gathered_parts(CopyEngine& test, std::size_t shift, bool is_in_place) {
  const int ranks = test.world.size(), rank = test.world.rank();
  for (const std::size_t part : {std::size_t{1}, std::size_t{1009}, std::size_t{300'001}}) {
    const std::size_t n = part * static_cast<std::size_t>(ranks);
    const Buffer<Element> whole(std::vector<Element>(shift + n, Element(1.0f)));
    const Buffer<Element> outside = Buffer<Element>::zeros(part);
    const BarrierAtEnd barrier(test.world);
    Element* const from = is_in_place ? whole.data() + shift + rank * part : outside.data();
    const auto transfer = test.engines.make(
        Operation::all_gather, {"values", whole.data() + shift, static_cast<std::int64_t>(n), kDtype<Element>}, from);
    for (int run = 0; run < 2; ++run) {
      std::vector<Element> initial(shift + n, Element(1.0f)), expected;
      const std::vector<Element> mine = bytes_of<Element>(rank, part, run);
      if (is_in_place) {
        std::copy(mine.begin(), mine.end(), initial.begin() + static_cast<std::ptrdiff_t>(shift + rank * part));
      }
      for (int other = 0; other < ranks; ++other) {
        const std::vector<Element> theirs = bytes_of<Element>(other, part, run);
        expected.insert(expected.end(), theirs.begin(), theirs.end());
      }
      whole.upload(initial);
      outside.upload(mine);
      transfer->enqueue(test.exec);
      test.exec.fence();
      const std::vector<Element> all = whole.elements();
      EXPECT_TRUE(same_bits(part_of(all, 0, n, shift), expected))
          << "parts of " << part << " elements of " << name_of(kDtype<Element>) << " behind " << shift << ", run "
          << run << (is_in_place ? ", in place" : ", from outside");
      expect_untouched(all, shift);
    }
  }
}

TEST_F(CopyEngine, gathers_parts_of_every_dtype_from_their_place_or_from_outside) {
  for (const std::size_t shift : {0, 1, 64}) {
    for (const bool is_in_place : {false, true}) {
      expect_gathered_parts<double>(*this, shift, is_in_place);
      expect_gathered_parts<float>(*this, shift, is_in_place);
      expect_gathered_parts<bfloat16>(*this, shift, is_in_place);
      expect_gathered_parts<float16>(*this, shift, is_in_place);
      expect_gathered_parts<std::int32_t>(*this, shift, is_in_place);
    }
  }
}

/// Keeps the instance busy, then copies.
void copy_slowly(const Device& exec, const Buffer<float>& from, const Buffer<float>& to) {
  const auto source = from.vector();
  const auto target = to.vector();
  Kokkos::parallel_for(
      "slow", Kokkos::RangePolicy<Device>(exec, 0, target.extent(0)), KOKKOS_LAMBDA(std::int64_t i) {
        float x = 1;
        for (int round = 0; round < 500'000; ++round) x = 0.5f * x + 0.5f;  // stays 1
        target(i) = x * source(i);
      });
}

TEST_F(CopyEngine, a_gather_waits_for_ranks_that_still_read_what_it_overwrites) {
  const std::size_t part = 10'007, n = part * static_cast<std::size_t>(world.size());
  const Buffer<float> whole(std::vector<float>(n, 5.0f)), seen = Buffer<float>::zeros(n);
  const Buffer<float> mine(std::vector<float>(part, 7.0f));
  const BarrierAtEnd barrier(world);
  const auto transfer = engines.make(Operation::all_gather, span_of(whole), mine.data());
  world.barrier();
  if (world.rank() == 0) copy_slowly(exec, whole, seen);
  transfer->enqueue(exec);
  exec.fence();
  if (world.rank() == 0) EXPECT_EQ(seen.elements(), std::vector<float>(n, 5.0f));
  EXPECT_EQ(whole.elements(), std::vector<float>(n, 7.0f));
}

TEST_F(CopyEngine, a_sum_beside_nothing_waits_for_ranks_that_still_write_what_it_reads) {
  const std::size_t n = 100'003;
  const Buffer<float> whole(std::vector<float>(n, 5.0f)), late(std::vector<float>(n, 7.0f));
  const BarrierAtEnd barrier(world);
  const auto sum = engines.make(Operation::all_reduce, span_of(whole), nullptr, nullptr, Overlap::none);
  world.barrier();
  if (world.rank() == 0) copy_slowly(exec, late, whole);
  sum->enqueue(exec);
  exec.fence();
  EXPECT_EQ(whole.elements(), std::vector<float>(n, 5.0f * static_cast<float>(world.size() - 1) + 7.0f));
}

TEST_F(CopyEngine, repeats_in_a_graph_and_behind_each_other) {
  const int ranks = world.size(), rank = world.rank();
  const std::size_t part = 50'021, n = part * static_cast<std::size_t>(ranks);
  const Buffer<float> first(std::vector<float>(n, 1.0f)), second(std::vector<float>(n, 2.0f));
  const Buffer<float> mine(std::vector<float>(4096, 3.0f + static_cast<float>(rank)));
  const Buffer<float> third = Buffer<float>::zeros(4096 * static_cast<std::size_t>(ranks));
  const Buffer<float> fourth(std::vector<float>(n, 1.0f));
  const BarrierAtEnd barrier(world);
  const auto sum = engines.make(Operation::all_reduce, span_of(first));
  const auto scatter = engines.make(Operation::reduce_scatter, span_of(second));
  const auto gather = engines.make(Operation::all_gather, span_of(second), second.data() + rank * part);
  const auto gather_from_outside = engines.make(Operation::all_gather, span_of(third), mine.data());
  const auto sum_alone = engines.make(Operation::all_reduce, span_of(fourth), nullptr, nullptr, Overlap::none);
  const auto enqueue = [&] {
    sum->enqueue(exec);
    sum_alone->enqueue(exec);
    gather_from_outside->enqueue(exec);
    scatter->enqueue(exec);  // and gather: another way to the sum of all
    gather->enqueue(exec);
    sum->enqueue(exec);
  };
  enqueue();
  kernels::clear_bytes(exec, third.data(), third.size() * sizeof(float));
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
    for (int i = 0; i < exponent; ++i) product *= static_cast<float>(ranks);
    return product;
  };
  EXPECT_EQ(first.elements(), std::vector<float>(n, power(8)));
  EXPECT_EQ(second.elements(), std::vector<float>(n, 2 * power(4)));
  EXPECT_EQ(fourth.elements(), std::vector<float>(n, power(4)));
  std::vector<float> gathered;
  for (int from = 0; from < ranks; ++from) gathered.insert(gathered.end(), 4096, 3.0f + static_cast<float>(from));
  EXPECT_EQ(third.elements(), gathered);
  EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST(Priorities, kernels_of_a_step_go_before_those_of_transfers_as_launches_and_in_a_graph) {
  const kernels::SideStream raised(kernels::StreamPriority::raised), lowest;
  int first = 0, last = 0;
  ASSERT_EQ(cudaStreamGetPriority(raised.instance().cuda_stream(), &first), cudaSuccess);
  ASSERT_EQ(cudaStreamGetPriority(lowest.instance().cuda_stream(), &last), cudaSuccess);
  EXPECT_LT(first, last);  // smaller numbers go first
  EXPECT_EQ(last, kernels::cuda::lowest_priority());

  const Buffer<float> from = Buffer<float>::zeros(4096), to = Buffer<float>::zeros(4096);
  const cudaStream_t stream = raised.instance().cuda_stream();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  kernels::copy_bytes(raised.instance(), from.data(), to.data(), from.size() * sizeof(float));
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphNode_t node = nullptr;
  std::size_t nodes = 1;
  ASSERT_EQ(cudaGraphGetNodes(graph, &node, &nodes), cudaSuccess);
  ASSERT_EQ(nodes, 1u);
  cudaLaunchAttributeValue value{};
  ASSERT_EQ(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &value), cudaSuccess);
  EXPECT_EQ(value.priority, first);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(CopyEngine, who_leaves_is_not_held_up_by_ranks_that_never_come) {
  const Buffer<float> buffer(std::vector<float>(1000, 1.0f));
  const BarrierAtEnd barrier(world);
  const auto sum = engines.make(Operation::all_reduce, span_of(buffer));
  if (world.rank() == 0) {
    sum->enqueue(exec);
    engines.abandon();
    exec.fence();  // ends
  }
  world.barrier();
}

TEST_F(CopyEngine, memory_that_cannot_be_reached_is_refused_on_every_rank) {
  if (world.size() == 1) GTEST_SKIP() << "a single rank has no peers";
  std::vector<float> on_host(4);
  const Span host{"values", on_host.data(), 4, Dtype::fp32};
  EXPECT_THROW(engines.make(Operation::all_reduce, host), std::runtime_error);
  EXPECT_THROW(engines.make(Operation::reduce_scatter, host), std::runtime_error);
  EXPECT_THROW(engines.make(Operation::all_gather, host, on_host.data()), std::runtime_error);
}

}  // namespace
}  // namespace tessera::parallel
