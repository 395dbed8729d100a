#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "kernels/core/events.hpp"
#include "kernels/core/kernel_timer.hpp"
#include "parallel/collectives/collective.hpp"
#include "parallel/strategies/replicated.hpp"
#include "support/buffer.hpp"
#include "support/random.hpp"
#include "unit/parallel/collectives/nccl.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::parallel {
namespace {

using kernels::Device;
using test::BarrierAtEnd;
using test::Buffer;
using test::same_bits;

INSTANTIATE_TEST_SUITE_P(By, Nccl, ::testing::Values(TransferMethod::ring, TransferMethod::copy_engine),
                         [](const auto& info) { return info.param == TransferMethod::ring ? "ring" : "copy_engine"; });

/// One element, a few, a prime, and 9.6 MB.
const std::size_t kSizes[] = {1, 3, 1009, 2'400'001};

template <class Scalar>
void expect_exact_sums(Nccl& test, double unit) {
  for (const std::size_t n : kSizes) {
    std::vector<Scalar> values(n), expected(n);
    for (std::size_t i = 0; i < n; ++i) {  // at most 8 bits: exact in bf16, in any order of up to 4 ranks
      const double number = (static_cast<double>(i % 31) - 15) * unit;
      values[i] = Scalar(number * (test.world.rank() + 1));
      expected[i] = Scalar(number * test.world.size() * (test.world.size() + 1) / 2);
    }
    const Buffer<Scalar> buffer(values);
    tessera::test::all_reduce(test.world, span_of(buffer));
    EXPECT_TRUE(same_bits(buffer.elements(), expected)) << n << " elements of " << kScalarName<Scalar>;
  }
}

TEST_P(Nccl, sums_of_exact_numbers_are_exact) {
  expect_exact_sums<double>(*this, 0.25);
  expect_exact_sums<float>(*this, 0.25);
  expect_exact_sums<bfloat16>(*this, 0.5);
  expect_exact_sums<float16>(*this, 0.5);
}

TEST_P(Nccl, tells_what_carries_out_each_operation) {
  for (const Operation operation : {Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather}) {
    EXPECT_EQ(nccl().means_of(operation), is_ring() ? "nccl" : "copy_engine");
  }
  EXPECT_EQ(nccl().means_of(Operation::broadcast), "nccl");
  EXPECT_EQ(nccl().make_group(0)->means_of(Operation::all_reduce), "nccl") << "copy engines serve all ranks together";
}

TEST_P(Nccl, has_the_same_bits_on_every_rank_and_in_every_repeat) {
  for (const std::size_t n : kSizes) {
    const std::vector<double> random = test::uniform(n, 100 + world.rank());
    std::vector<float> first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Buffer<float> buffer(random);
      test::all_reduce(world, span_of(buffer));
      if (repeat == 0) first = buffer.elements();
      EXPECT_TRUE(same_bits(buffer.elements(), first)) << n << " elements";
    }
    const std::string bits(reinterpret_cast<const char*>(first.data()), n * sizeof(float));
    EXPECT_TRUE(world.broadcast(bits) == bits) << "rank " << world.rank() << " has other bits than rank 0";
  }
}

template <class Scalar>
void expect_one_rounding(Nccl& test) {
  using Real = Accum<Scalar>;
  const std::size_t n = 300'001;
  const auto values_of = [&](int rank) {
    const Buffer<Scalar> rounded(test::uniform(n, 40 + rank));
    return rounded.elements();
  };
  std::vector<Real> sums(n);
  for (int rank = 0; rank < test.world.size(); ++rank) {
    const std::vector<Scalar> values = values_of(rank);
    for (std::size_t i = 0; i < n; ++i) sums[i] += static_cast<Real>(values[i]);
  }
  std::vector<Scalar> expected(n);
  for (std::size_t i = 0; i < n; ++i) expected[i] = static_cast<Scalar>(sums[i]);
  const Buffer<Scalar> buffer(values_of(test.world.rank()));
  tessera::test::all_reduce(test.world, span_of(buffer));
  EXPECT_TRUE(same_bits(buffer.elements(), expected)) << kScalarName<Scalar>;
}

TEST_P(Nccl, copy_engines_add_in_the_order_of_the_ranks_and_round_once) {
  if (is_ring()) GTEST_SKIP() << "the ring rounds at every hop, in an order of its own";
  expect_one_rounding<double>(*this);
  expect_one_rounding<float>(*this);
  expect_one_rounding<bfloat16>(*this);
  expect_one_rounding<float16>(*this);
}

/// Number i of a rank's vector of small integers: sums of up to 4 ranks are exact in bf16.
KOKKOS_INLINE_FUNCTION float small_integer(std::int64_t i, int rank) {
  return static_cast<float>((i * (rank + 1) + i / 1000) % 61 - 30);
}

using Halves = kernels::Vector<bfloat16, Device>;
using Indices = Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>;

void fill_with_small_integers(const Device& exec, const Halves& values, int rank, int run) {
  Kokkos::parallel_for(
      "fill", Indices(exec, 0, values.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) { values(i) = static_cast<bfloat16>(small_integer(i + run, rank)); });
}

std::int64_t count_wrong_sums(const Device& exec, const Halves& values, int ranks, int run) {
  std::int64_t wrong = 0;
  Kokkos::parallel_reduce(
      "check", Indices(exec, 0, values.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t & count) {
        float expected = 0;
        for (int rank = 0; rank < ranks; ++rank) expected += small_integer(i + run, rank);
        count += static_cast<float>(values(i)) != expected ? 1 : 0;
      },
      wrong);
  return wrong;
}

TEST_P(Nccl, sums_spans_larger_than_every_buffer) {
  const std::int64_t n = 75'000'003;  // 150 MB
  const Kokkos::View<std::uint16_t*, Device::memory_space> memory(
      Kokkos::view_alloc(Kokkos::WithoutInitializing, "values"), n);
  const Halves values(reinterpret_cast<bfloat16*>(memory.data()), n);
  const BarrierAtEnd barrier(world);
  const auto sum = test::connected_sum(world, {"values", values.data(), n, Dtype::bf16});
  const Device exec;
  for (int run = 0; run < 3; ++run) {
    fill_with_small_integers(exec, values, world.rank(), run);
    sum->start(exec);
    sum->join(exec);
    EXPECT_EQ(count_wrong_sums(exec, values, world.size(), run), 0) << "run " << run;
  }
}

TEST_P(Nccl, starts_behind_the_work_and_what_follows_a_join_sees_the_sums) {
  const Device exec;
  const Buffer<float> buffer = Buffer<float>::zeros(1 << 20);
  const BarrierAtEnd barrier(world);
  const auto sum = test::connected_sum(world, span_of(buffer));
  for (int run = 0; run < 3; ++run) {
    fill_slowly(exec, buffer, 3.0f);
    sum->start(exec);
    sum->join(exec);
    double_all(exec, buffer);
    exec.fence();
    EXPECT_EQ(buffer.elements(), std::vector<float>(buffer.size(), 6.0f * static_cast<float>(world.size())));
  }
}

TEST_P(Nccl, leaves_the_host_free_and_allocates_nothing) {
  const Device exec;
  const Buffer<float> buffer = Buffer<float>::zeros(1 << 20);
  const Buffer<bfloat16> wire = Buffer<bfloat16>::zeros(1 << 20);
  const BarrierAtEnd barrier(world);
  const auto plain = test::connected_sum(world, span_of(buffer));
  const auto narrow = test::connected_sum(world, span_of(buffer), span_of(wire));
  for (const auto* sum : {&plain, &narrow}) {
    (*sum)->start(exec);  // connections are made
    (*sum)->join(exec);
    exec.fence();
    fill_slowly(exec, buffer, 1.0f);
    const double start_s = events::now_s();
    kernels::KernelTimer counter;
    const bool counts = sum == &plain && is_ring();  // it fences around kernels, and the others have some
    if (counts) counter.start();
    (*sum)->start(exec);
    EXPECT_FALSE((*sum)->test()) << "the slow kernel before it is over already";
    EXPECT_THROW((*sum)->times(), std::logic_error);
    (*sum)->join(exec);
    counter.stop();
    const double host_s = events::now_s() - start_s;
    exec.fence();
    EXPECT_TRUE((*sum)->test());
    if (counts) {
      EXPECT_EQ(counter.counts().fences, 0);
      EXPECT_EQ(counter.counts().allocations, 0);
    }
    EXPECT_GT((*sum)->times().end_s, start_s + host_s) << "the host waited";
  }
}

TEST_P(Nccl, several_complete_in_the_order_of_their_starts) {
  const Device exec;
  std::vector<Buffer<double>> values;
  const BarrierAtEnd barrier(world);
  std::vector<std::unique_ptr<Transfer>> sums;
  for (int i = 0; i < 4; ++i) {
    values.emplace_back(std::vector<double>(50000 + i, i + world.rank()));
    sums.push_back(test::connected_sum(world, span_of(values.back())));
    sums.back()->start(exec);
  }
  while (!sums.back()->test()) continue;
  const double ranks = world.size() * (world.size() - 1) / 2.0;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(sums[i]->test());
    EXPECT_EQ(values[i].elements(), std::vector<double>(50000 + i, i * world.size() + ranks));
  }
}

TEST_P(Nccl, broadcasts_rank_0_in_every_dtype) {
  const auto check = [&](auto zero, std::size_t n) {
    using Element = decltype(zero);
    std::vector<Element> values(n, zero), expected(n);
    auto* bytes = reinterpret_cast<unsigned char*>(expected.data());
    for (std::size_t i = 0; i < n * sizeof(Element); ++i) bytes[i] = static_cast<unsigned char>(i * 7);
    const Buffer<Element> buffer(world.rank() == 0 ? expected : values);
    nccl().broadcast(span_of(buffer));
    EXPECT_TRUE(same_bits(buffer.elements(), expected)) << n << " elements of " << name_of(kDtype<Element>);
  };
  for (const std::size_t n : {std::size_t{1}, std::size_t{1'000'003}}) {
    check(0.0f, n);
    check(0.0, n);
    check(bfloat16(), n);
    check(float16(), n);
    check(std::int32_t{0}, n);
  }
}

TEST_P(Nccl, a_broadcast_starts_behind_the_work_and_what_follows_a_join_sees_it) {
  const Device exec;
  const Buffer<float> buffer = Buffer<float>::zeros(1 << 20);
  const auto broadcast = nccl().make_broadcast(span_of(buffer));
  broadcast->connect();
  for (int run = 1; run <= 3; ++run) {
    fill_slowly(exec, buffer, static_cast<float>(run + 10 * world.rank()));
    broadcast->start(exec);
    broadcast->join(exec);
    double_all(exec, buffer);
    exec.fence();
    EXPECT_EQ(buffer.elements(), std::vector<float>(buffer.size(), 2.0f * static_cast<float>(run)));
  }
}

TEST_P(Nccl, says_what_it_holds_of_the_device_from_the_beginning) {
  EXPECT_EQ(nccl().device_bytes(), is_ring() || world.size() == 1 ? 0 : receive_bytes(world.size()));
}

TEST_P(Nccl, refuses_what_it_cannot_sum) {
  const Buffer<std::int32_t> ints = Buffer<std::int32_t>::zeros(4);
  const Buffer<double> doubles = Buffer<double>::zeros(4);
  const Buffer<bfloat16> wire = Buffer<bfloat16>::zeros(4);
  std::vector<float> on_host(4);
  const Span host{"values", on_host.data(), 4, Dtype::fp32};
  EXPECT_THROW(nccl().make_all_reduce(span_of(ints), {}), std::invalid_argument);
  EXPECT_THROW(nccl().make_all_reduce(span_of(doubles), span_of(wire)), std::invalid_argument);
  EXPECT_THROW(nccl().make_all_reduce(host, {}), std::invalid_argument);
  EXPECT_THROW(nccl().broadcast(host), std::invalid_argument);
  EXPECT_EQ(nccl().fault(), "");
  EXPECT_THAT(nccl().description(), ::testing::HasSubstr("NCCL_ALGO="));
  EXPECT_THAT(nccl().description(), ::testing::HasSubstr(is_ring() ? "by the ring" : "by copy engines"));
}

/// Gradients in four units that a slow kernel computes one after the other, as backward does: small integers times
/// `scale`, a power of two, so that sums of up to 4 ranks are exact even in bf16, in any order.
struct Step {
  static constexpr std::int64_t kUnit = 500'000;
  Step(Nccl& test, bool is_narrow)
      : grads(Buffer<float>::zeros(4 * kUnit)),
        wire(Buffer<bfloat16>::zeros(4 * kUnit)),
        barrier(test.world),
        rank(test.world.rank()) {
    for (int unit = 0; unit < 4; ++unit) {
      spans.push_back({"unit", grads.data() + unit * kUnit, kUnit, Dtype::fp32});
    }
    const Span narrow{"wire", wire.data(), 4 * kUnit, Dtype::bf16};
    const GradientOrder one_unit_each{.bucket_bytes = kUnit * 4};
    queue = std::make_unique<Replicated>(test.nccl(), exec, spans, one_unit_each, is_narrow ? narrow : Span{});
    queue->connect();
  }

  void enqueue(float scale) {
    queue->begin(true);
    for (int unit = 4; unit-- > 0;) {
      const kernels::Vector<float, Device> numbers(static_cast<float*>(spans[unit].data), kUnit);
      const float mine = static_cast<float>(rank + 1) * scale;
      Kokkos::parallel_for(
          "unit", Kokkos::RangePolicy<Device>(exec, 0, kUnit), KOKKOS_LAMBDA(std::int64_t i) {
            float x = static_cast<float>(i);  // ends as 0
            for (int round = 0; round < 20000; ++round) x = 0.5f * x;
            numbers(i) = x + mine * static_cast<float>(i % 31 - 15);
          });
      queue->gradient_enqueued(unit);
      queue->progress();
    }
    queue->finish();
    double_all(exec, grads);  // sees the sums
  }

  std::vector<float> expected(int ranks, float scale) const {
    std::vector<float> result(4 * kUnit);
    for (std::int64_t i = 0; i < 4 * kUnit; ++i) {
      result[i] = scale * static_cast<float>((i % kUnit) % 31 - 15) * static_cast<float>(ranks * (ranks + 1));
    }
    return result;
  }

  Buffer<float> grads;
  Buffer<bfloat16> wire;
  BarrierAtEnd barrier;
  int rank;
  Device exec;
  std::vector<Span> spans;
  std::unique_ptr<Replicated> queue;
};

class Listener final : public events::Listener {
 public:
  Listener() { events::add_listener(*this); }
  ~Listener() override { events::remove_listener(*this); }
  using events::Listener::on;
  void on(const events::Communication& c) override {
    bytes += c.bytes;
    first_start_s = std::min(first_start_s, c.start_s);
    last_end_s = std::max(last_end_s, c.end_s);
    exposed_s += c.exposed_s;
    ++count;
  }
  /// Of the time from the first bucket's start to the last one's end.
  double exposed_part() const { return exposed_s / (last_end_s - first_start_s); }

  std::int64_t bytes = 0;
  int count = 0;
  double first_start_s = 1e30, last_end_s = 0, exposed_s = 0;
};

TEST_P(Nccl, buckets_travel_while_later_units_are_computed) {
  for (const bool is_narrow : {false, true}) {
    Step step(*this, is_narrow);
    double least = 1;
    for (int run = 0; run < 6; ++run) {
      world.barrier();  // waiting for late ranks has nothing to do with overlap
      const double start_s = events::now_s();
      step.enqueue(1.0f);
      step.exec.fence();
      const double end_s = events::now_s();
      Listener listener;
      const double exposed_s = step.queue->collect();
      EXPECT_TRUE(same_bits(step.grads.elements(), step.expected(world.size(), 1.0f)));
      EXPECT_EQ(listener.count, 4);
      EXPECT_EQ(listener.bytes, (is_narrow ? 2 : 4) * 4 * Step::kUnit);
      EXPECT_DOUBLE_EQ(listener.exposed_s, exposed_s);
      EXPECT_GE(listener.first_start_s, start_s - 1e-4);
      EXPECT_LE(listener.last_end_s, end_s + 1e-4);
      if (run > 0) least = std::min(least, listener.exposed_part());  // connections are made
    }
    // Three of four buckets are sent while a unit is computed: the exposed part is the last one's, at most about the
    // time from its start. A busy host makes a rank late, and the others wait for it, but not in every run.
    if (!test::ranks_share_a_gpu()) {
      EXPECT_LT(least, 0.5);
    }
  }
}

TEST_P(Nccl, a_captured_step_repeats_with_its_times) {
  for (const bool is_narrow : {false, true}) {
    Step step(*this, is_narrow);
    step.enqueue(1.0f);  // warm-up: a capture must not initialise anything
    step.exec.fence();
    cudaStream_t stream = step.exec.cuda_stream();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    step.enqueue(2.0f);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
    double least = 1;
    for (int run = 0; run < 6; ++run) {
      world.barrier();
      const double start_s = events::now_s();
      ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
      step.exec.fence();
      const double end_s = events::now_s();
      EXPECT_TRUE(same_bits(step.grads.elements(), step.expected(world.size(), 2.0f))) << "replay " << run;
      Listener listener;
      const double exposed_s = step.queue->collect();
      EXPECT_EQ(listener.count, 4);
      EXPECT_GE(listener.first_start_s, start_s - 1e-4);
      EXPECT_LE(listener.last_end_s, end_s + 1e-4);
      EXPECT_DOUBLE_EQ(listener.exposed_s, exposed_s);
      least = std::min(least, listener.exposed_part());
    }
    if (!test::ranks_share_a_gpu()) {
      EXPECT_LT(least, 0.5);
    }
    step.enqueue(4.0f);  // launch by launch again
    step.exec.fence();
    EXPECT_TRUE(same_bits(step.grads.elements(), step.expected(world.size(), 4.0f)));
    EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
}

}  // namespace
}  // namespace tessera::parallel
