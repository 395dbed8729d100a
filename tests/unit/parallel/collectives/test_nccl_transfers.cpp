#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "kernels/core/events.hpp"
#include "kernels/cuda/check.hpp"
#include "parallel/collectives/squares.hpp"
#include "parallel/collectives/collective.hpp"
#include "parallel/choice.hpp"
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
using test::TestWorld;

/// Of a part: one element, a few, a prime, whole packets, and 4.8 MB in double.
const std::vector<std::size_t> kParts = {1, 3, 1009, 4096, 600'001};

/// 68 MB of four bytes each: more than a reduce-scatter receives at a time.
const std::vector<std::size_t> kLongParts = {17'000'003};

/// What a rank contributes to a sum in its `run`: numbers of at most 8 bits, as are the sums of up to 4 ranks, which
/// are exact in every dtype and order.
template <class Scalar>
std::vector<Scalar> numbers_of(int factor, std::size_t n, int run) {
  std::vector<Scalar> numbers(n);
  for (std::size_t i = 0; i < n; ++i) {
    numbers[i] = static_cast<Scalar>(0.5f * static_cast<float>((static_cast<int>((i + run) % 31) - 15) * factor));
  }
  return numbers;
}

template <class Scalar>
std::vector<Scalar> numbers_of_rank(int rank, std::size_t n, int run) {
  return numbers_of<Scalar>(rank + 1, n, run);
}

template <class Scalar>
std::vector<Scalar> sums_over(const std::vector<int>& ranks, std::size_t n, int run) {
  int factor = 0;
  for (const int rank : ranks) factor += rank + 1;
  return numbers_of<Scalar>(factor, n, run);
}

/// Any bytes, which differ between ranks and runs.
template <class Element>
std::vector<Element> bytes_of_rank(int rank, std::size_t n, int run) {
  std::vector<Element> elements(n);
  auto* bytes = reinterpret_cast<unsigned char*>(elements.data());
  for (std::size_t i = 0; i < n * sizeof(Element); ++i) bytes[i] = static_cast<unsigned char>(i * 7 + rank * 31 + run);
  return elements;
}

template <class Element>
std::vector<Element> part_of(const std::vector<Element>& whole, int rank, int ranks) {
  const auto part = static_cast<std::ptrdiff_t>(whole.size()) / ranks;
  return {whole.begin() + rank * part, whole.begin() + (rank + 1) * part};
}

template <class Element>
Span part_of(const Buffer<Element>& whole, int rank, int ranks) {
  const auto part = static_cast<std::int64_t>(whole.size()) / ranks;
  return {"part", whole.data() + rank * part, part, kDtype<Element>};
}

void run(Transfer& transfer) {
  const Device exec;
  transfer.start(exec);
  transfer.join(exec);
  exec.fence();
}

/// Ranks 0 .. n-1.
std::vector<int> first_ranks(int n) {
  std::vector<int> ranks(n);
  for (int rank = 0; rank < n; ++rank) ranks[rank] = rank;
  return ranks;
}

/// Reduce-scatters among `ranks`, of which this one is `me`, twice.
template <class Scalar>
void expect_scattered_sums(const TestWorld& world, Collectives& collectives, const std::vector<int>& ranks, int me,
                           const std::vector<std::size_t>& parts) {
  const int size = collectives.size(), place = collectives.rank();
  for (const std::size_t part : parts) {
    const std::size_t n = part * static_cast<std::size_t>(size);
    const Buffer<Scalar> buffer = Buffer<Scalar>::zeros(n), elsewhere = Buffer<Scalar>::zeros(part);
    const BarrierAtEnd barrier(world);
    const auto in_place = collectives.make_reduce_scatter(span_of(buffer), {});
    const auto outside = collectives.make_reduce_scatter(span_of(buffer), {}, span_of(elsewhere));
    for (const auto& transfer : {in_place.get(), outside.get()}) {
      transfer->connect();
      for (int r = 0; r < 2; ++r) {
        buffer.upload(numbers_of_rank<Scalar>(me, n, r));
        run(*transfer);
        const std::vector<Scalar> sums =
            transfer == in_place.get() ? part_of(buffer.elements(), place, size) : elsewhere.elements();
        EXPECT_TRUE(same_bits(sums, part_of(sums_over<Scalar>(ranks, n, r), place, size)))
            << "parts of " << part << " elements of " << kScalarName<Scalar> << ", run " << r
            << (transfer == in_place.get() ? ", in place" : ", outside");
      }
    }
  }
}

TEST_P(Nccl, reduce_scatters_of_exact_numbers_are_exact) {
  const std::vector<int> ranks = first_ranks(world.size());
  expect_scattered_sums<double>(world, nccl(), ranks, world.rank(), kParts);
  expect_scattered_sums<float>(world, nccl(), ranks, world.rank(), kParts);
  expect_scattered_sums<bfloat16>(world, nccl(), ranks, world.rank(), kParts);
  expect_scattered_sums<float16>(world, nccl(), ranks, world.rank(), kParts);
  expect_scattered_sums<float>(world, nccl(), ranks, world.rank(), kLongParts);
}

/// Sums of `buffer`, twice, that leave their squares, whose total over the ranks is that of all sums; `sums_all`: each
/// rank has all of them.
template <class Scalar>
void expect_squares(Nccl& test, Transfer& sum, const Buffer<Scalar>& buffer, bool sums_all) {
  const std::size_t n = buffer.size();
  const Buffer<double> partial = Buffer<double>::zeros(static_cast<std::size_t>(Squares::count_of(n * sizeof(Scalar))));
  ASSERT_TRUE(Squares::left_by({&sum}, span_of(partial)));
  sum.connect();
  for (int r = 0; r < 2; ++r) {
    buffer.upload(numbers_of_rank<Scalar>(test.world.rank(), n, r));
    run(sum);
    double squares = 0, total = 0;
    for (const double square : partial.elements()) squares += square;
    for (const std::string& text : test.world.all_gather(std::to_string(squares))) total += std::stod(text);
    double exact = 0;  // integers
    const std::vector<Scalar> sums = sums_over<Scalar>(first_ranks(test.world.size()), n, r);
    if (sums_all) EXPECT_TRUE(same_bits(buffer.elements(), sums)) << n << " elements, run " << r;
    for (const Scalar value : sums) {
      exact += static_cast<double>(value) * static_cast<double>(value);
    }
    EXPECT_EQ(total, exact) << n << " elements of " << kScalarName<Scalar> << ", run " << r;
  }
}

TEST_P(Nccl, sums_of_copy_engines_leave_their_squares) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const bool makes_its_sums = !is_ring() && ranks > 1;
  for (const std::size_t n : {std::size_t{1}, std::size_t{100'003}, kLongParts[0]}) {  // the last one in several pieces
    const Buffer<float> all = Buffer<float>::zeros(n), parts = Buffer<float>::zeros(n * ranks);
    const Buffer<bfloat16> halves = Buffer<bfloat16>::zeros(n);
    const BarrierAtEnd barrier(world);
    const auto reduce = nccl().make_all_reduce(span_of(all), {}), narrow = nccl().make_all_reduce(span_of(halves), {}),
               alone = nccl().make_all_reduce(span_of(all), {}, Overlap::none),
               scatter = nccl().make_reduce_scatter(span_of(parts), {});
    Squares none({});
    EXPECT_FALSE(nccl().make_all_gather(span_of(all), span_of(parts))->leave_squares(none));
    for (Transfer* sum : {reduce.get(), narrow.get(), alone.get(), scatter.get()}) {
      if (!makes_its_sums) EXPECT_FALSE(sum->leave_squares(none));
    }
    if (!makes_its_sums) continue;
    expect_squares(*this, *reduce, all, true);
    expect_squares(*this, *alone, all, true);
    expect_squares(*this, *narrow, halves, true);
    expect_squares(*this, *scatter, parts, false);
  }
}

TEST_P(Nccl, reduce_scatters_through_a_narrower_wire) {
  const int ranks = world.size(), rank = world.rank();
  for (const std::size_t part : kParts) {
    const std::size_t n = part * static_cast<std::size_t>(ranks);
    const Buffer<float> buffer = Buffer<float>::zeros(n);
    const Buffer<bfloat16> wire = Buffer<bfloat16>::zeros(n);
    const Buffer<float> elsewhere = Buffer<float>::zeros(part);
    const BarrierAtEnd barrier(world);
    const auto transfer = nccl().make_reduce_scatter(span_of(buffer), span_of(wire));
    const auto outside = nccl().make_reduce_scatter(span_of(buffer), span_of(wire), span_of(elsewhere));
    transfer->connect();
    outside->connect();
    for (int r = 0; r < 2; ++r) {
      buffer.upload(numbers_of_rank<float>(rank, n, r));
      run(*transfer);
      const std::vector<float> sums = sums_over<float>(first_ranks(ranks), n, r);
      EXPECT_TRUE(same_bits(part_of(buffer.elements(), rank, ranks), part_of(sums, rank, ranks)))
          << part << ", run " << r;
    }
    buffer.upload(std::vector<float>(n, 1.0f + 0x1p-10f));  // 1 in bf16
    run(*outside);
    EXPECT_EQ(elsewhere.elements(), std::vector<float>(part, static_cast<float>(ranks)));
    buffer.upload(std::vector<float>(n, 1.0f + 0x1p-10f));
    run(*transfer);
    EXPECT_EQ(part_of(buffer.elements(), rank, ranks), std::vector<float>(part, static_cast<float>(ranks)));
  }
}

template <class Scalar>
void expect_sums_of_the_all_reduce(Nccl& test) {
  const int ranks = test.world.size(), rank = test.world.rank();
  const std::size_t n = 100'003 * static_cast<std::size_t>(ranks);
  const Buffer<Scalar> all(test::uniform(n, 70 + rank)), scattered(test::uniform(n, 70 + rank));
  test::all_reduce(test.world, span_of(all));
  const BarrierAtEnd barrier(test.world);
  const auto transfer = test.nccl().make_reduce_scatter(span_of(scattered), {});
  transfer->connect();
  run(*transfer);
  EXPECT_TRUE(same_bits(part_of(scattered.elements(), rank, ranks), part_of(all.elements(), rank, ranks)))
      << kScalarName<Scalar>;
}

TEST_P(Nccl, a_reduce_scatter_adds_as_the_all_reduce_does) {
  if (is_ring() && world.size() > 2) GTEST_SKIP() << "the ring adds each part in an order of its own";
  expect_sums_of_the_all_reduce<double>(*this);
  expect_sums_of_the_all_reduce<float>(*this);
  expect_sums_of_the_all_reduce<bfloat16>(*this);
}

/// Gathers among `ranks`, of which this one is `me`: twice, from outside of the whole or from its own place in it.
template <class Element>
void expect_gathered_parts(const TestWorld& world, Collectives& collectives, const std::vector<int>& ranks, int me,
                           const std::vector<std::size_t>& parts) {
  const int size = collectives.size(), place = collectives.rank();
  for (const bool is_in_place : {false, true}) {
    for (const std::size_t part : parts) {
      const Buffer<Element> whole = Buffer<Element>::zeros(part * static_cast<std::size_t>(size));
      const Buffer<Element> outside = Buffer<Element>::zeros(part);
      const BarrierAtEnd barrier(world);
      const auto transfer =
          collectives.make_all_gather(is_in_place ? part_of(whole, place, size) : span_of(outside), span_of(whole));
      transfer->connect();
      for (int r = 0; r < 2; ++r) {
        const std::vector<Element> mine = bytes_of_rank<Element>(me, part, r);
        std::vector<Element> initial(whole.size()), expected;
        if (is_in_place)
          std::copy(mine.begin(), mine.end(), initial.begin() + place * static_cast<std::ptrdiff_t>(part));
        for (const int rank : ranks) {
          const std::vector<Element> theirs = bytes_of_rank<Element>(rank, part, r);
          expected.insert(expected.end(), theirs.begin(), theirs.end());
        }
        whole.upload(initial);
        outside.upload(mine);
        run(*transfer);
        EXPECT_TRUE(same_bits(whole.elements(), expected))
            << "parts of " << part << " elements of " << name_of(kDtype<Element>) << ", run " << r
            << (is_in_place ? ", in place" : ", from outside");
      }
    }
  }
}

TEST_P(Nccl, gathers_the_parts_of_all_ranks_in_every_dtype) {
  const std::vector<int> ranks = first_ranks(world.size());
  expect_gathered_parts<double>(world, nccl(), ranks, world.rank(), kParts);
  expect_gathered_parts<float>(world, nccl(), ranks, world.rank(), kParts);
  expect_gathered_parts<bfloat16>(world, nccl(), ranks, world.rank(), kParts);
  expect_gathered_parts<float16>(world, nccl(), ranks, world.rank(), kParts);
  expect_gathered_parts<std::int32_t>(world, nccl(), ranks, world.rank(), kParts);
  expect_gathered_parts<std::int32_t>(world, nccl(), ranks, world.rank(), kLongParts);
}

TEST_P(Nccl, transfers_start_behind_the_work_and_what_follows_a_join_sees_them) {
  const Device exec;
  const int ranks = world.size();
  const std::size_t part = 1 << 18;
  const Buffer<float> grads = Buffer<float>::zeros(part * ranks), whole = Buffer<float>::zeros(part * ranks);
  const Buffer<float> mine = Buffer<float>::zeros(part);
  const BarrierAtEnd barrier(world);
  const auto scatter = nccl().make_reduce_scatter(span_of(grads), {});
  const auto gather = nccl().make_all_gather(span_of(mine), span_of(whole));
  scatter->connect();
  gather->connect();
  run(*scatter);  // loads the kernels, for which CUDA may wait until the device is idle
  run(*gather);
  std::vector<float> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.insert(parts.end(), part, 2 * static_cast<float>(rank + 1));
  const auto both = {std::tuple(&scatter, &grads, &grads, 3.0f),
                     std::tuple(&gather, &mine, &whole, static_cast<float>(world.rank() + 1))};
  for (int r = 0; r < 3; ++r) {
    for (const auto& [transfer, from, to, value] : both) {
      fill_slowly(exec, *from, value);
      const double start_s = events::now_s();
      (*transfer)->start(exec);
      EXPECT_THROW((*transfer)->times(), std::logic_error) << "the slow kernel before it is over already";
      (*transfer)->join(exec);
      double_all(exec, *to);
      exec.fence();
      const double end_s = events::now_s();
      ASSERT_TRUE((*transfer)->test());
      const Transfer::Times times = (*transfer)->times();
      EXPECT_GE(times.start_s, start_s - 1e-4);
      EXPECT_GE(times.end_s, times.start_s);
      EXPECT_LE(times.end_s, end_s + 1e-4);
    }
    EXPECT_EQ(part_of(grads.elements(), world.rank(), ranks),
              std::vector<float>(part, 6.0f * static_cast<float>(ranks)));
    EXPECT_EQ(whole.elements(), parts);
  }
}

/// The gradients of a step: the weights, times `factor`.
void set_gradients(const Device& exec, const Buffer<float>& grads, const Buffer<float>& weights, float factor) {
  const auto from = weights.vector();
  const auto to = grads.vector();
  Kokkos::parallel_for(
      "set gradients", Kokkos::RangePolicy<Device>(exec, 0, to.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) { to(i) = from(i) * factor; });
}

/// A step with the weights in parts: gradients are reduce-scattered, become this rank's weights, and are gathered.
/// It multiplies every weight by 1 + 2 + ... + R, and a scalar by R: whole numbers, exact.
struct ShardedStep {
  static constexpr std::size_t kPart = 50'021;
  ShardedStep(Nccl& test, bool is_narrow)
      : ranks(test.world.size()),
        rank(test.world.rank()),
        weights(initial(kPart * ranks)),
        grads(Buffer<float>::zeros(kPart * ranks)),
        wire(Buffer<bfloat16>::zeros(kPart * ranks)),
        scalar(std::vector<double>{1.0}),
        barrier(test.world),
        scatter(test.nccl().make_reduce_scatter(span_of(grads), is_narrow ? span_of(wire) : Span{})),
        gather(test.nccl().make_all_gather(part_of(grads, rank, ranks), span_of(weights))),
        sum(test.nccl().make_all_reduce(span_of(scalar), {})) {
    for (const auto* transfer : {&scatter, &gather, &sum}) (*transfer)->connect();
  }

  void enqueue() const {
    set_gradients(exec, grads, weights, static_cast<float>(rank + 1));
    scatter->start(exec);
    scatter->join(exec);
    sum->start(exec);
    gather->start(exec);
    sum->join(exec);
    gather->join(exec);
  }

  static std::vector<float> initial(std::size_t n) {  // powers of two: products have few bits, in bf16, too
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = i % 3 == 0 ? -1.0f : static_cast<float>(1 << i % 5);
    return values;
  }

  void expect_after(int steps) const {
    double factor = 1, product = 1;
    for (int step = 0; step < steps; ++step) {
      factor *= ranks * (ranks + 1) / 2;
      product *= ranks;
    }
    std::vector<float> expected = initial(weights.size());
    for (float& weight : expected) weight *= static_cast<float>(factor);
    EXPECT_TRUE(same_bits(weights.elements(), expected)) << "after " << steps << " steps";
    EXPECT_EQ(scalar.elements(), std::vector<double>{product});
  }

  int ranks, rank;
  Device exec;
  Buffer<float> weights, grads;
  Buffer<bfloat16> wire;
  Buffer<double> scalar;
  BarrierAtEnd barrier;
  std::unique_ptr<Transfer> scatter, gather, sum;
};

/// Work that a GPU repeats as a graph.
class Replay {
 public:
  /// Captures what `enqueue` launches from `exec`, without running it. Enqueue it before, as it is: a capture must not
  /// initialise anything.
  template <class Enqueue>
  Replay(const Device& exec, const Enqueue& enqueue) : stream_(exec.cuda_stream()) {
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CUDA_CHECK(cudaStreamEndCapture(stream_, &graph_));
    CUDA_CHECK(cudaGraphInstantiate(&replay_, graph_, 0));
  }
  ~Replay() {
    EXPECT_EQ(cudaGraphExecDestroy(replay_), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void launch() const { CUDA_CHECK(cudaGraphLaunch(replay_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t replay_ = nullptr;
};

TEST_P(Nccl, captured_transfers_repeat_with_their_times) {
  for (const bool is_narrow : {false, true}) {
    const ShardedStep step(*this, is_narrow);
    step.enqueue();  // warm-up: a capture must not initialise anything
    step.exec.fence();
    step.expect_after(1);
    const Replay replay(step.exec, [&] { step.enqueue(); });
    for (int steps = 2; steps <= 3; ++steps) {
      const double start_s = events::now_s();
      replay.launch();
      step.exec.fence();
      const double end_s = events::now_s();
      step.expect_after(steps);
      const Transfer::Times scatter = step.scatter->times(), gather = step.gather->times();
      EXPECT_GE(scatter.start_s, start_s - 1e-4);
      EXPECT_GE(scatter.end_s, scatter.start_s);
      EXPECT_GE(gather.start_s, scatter.end_s - 1e-4);
      EXPECT_GE(gather.end_s, gather.start_s);
      EXPECT_LE(gather.end_s, end_s + 1e-4);
      if (world.size() > 1) {  // a single rank records nothing
        EXPECT_THAT(world.recorder().report(1e9), ::testing::Contains(::testing::HasSubstr("on stream 1: none")));
      }
    }
  }
}

/// All-reduces of several lengths, a reduce-scatter and an all-gather that are under way together.
struct TogetherStep {
  explicit TogetherStep(Nccl& test) : ranks(test.world.size()), rank(test.world.rank()), barrier(test.world) {
    for (const std::size_t n : {3, 600'001, 17, 9'000'001, 4096, 1'000'003}) add(n);
    const auto last = [&] { return span_of(*spans.back()); };
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Overlap overlap = i == 4 ? Overlap::none : Overlap::compute;
      transfers.push_back(test.nccl().make_all_reduce(span_of(*spans[i]), {}, overlap));
    }
    add(50'021 * ranks);
    transfers.insert(transfers.begin() + 2, test.nccl().make_reduce_scatter(last(), {}));
    add(50'021 * ranks);
    transfers.insert(transfers.begin() + 5, test.nccl().make_all_gather(part_of(*spans.back(), rank, ranks), last()));
    for (const auto& transfer : transfers) transfer->connect();
  }

  void add(std::size_t n) {
    values.push_back(std::make_unique<Buffer<float>>(numbers_of<float>(1, n, 0)));
    spans.push_back(std::make_unique<Buffer<float>>(Buffer<float>::zeros(n)));
  }

  void enqueue() const {
    for (std::size_t i = 0; i < spans.size(); ++i) {
      set_gradients(exec, *spans[i], *values[i], static_cast<float>(rank + 1));
    }
    for (const auto& transfer : transfers) transfer->start(exec);
    transfers.back()->join(exec);
  }

  void expect_sums_and_ends_in_order() const {
    const int total = ranks * (ranks + 1) / 2;
    for (std::size_t i = 0; i + 2 < spans.size(); ++i) {
      EXPECT_TRUE(same_bits(spans[i]->elements(), numbers_of<float>(total, spans[i]->size(), 0))) << "all-reduce " << i;
    }
    const std::size_t scattered = spans.size() - 2, gathered = scattered + 1;
    const auto whole = numbers_of<float>(total, spans[scattered]->size(), 0);
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(rank * (whole.size() / ranks));
    EXPECT_EQ(part_of(spans[scattered]->elements(), rank, ranks),
              std::vector<float>(first, first + static_cast<std::ptrdiff_t>(whole.size() / ranks)));
    std::vector<float> parts = numbers_of<float>(1, spans[gathered]->size(), 0);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] *= static_cast<float>(i / (parts.size() / ranks) + 1);
    EXPECT_TRUE(same_bits(spans[gathered]->elements(), parts)) << "all-gather";
    for (std::size_t i = 1; i < transfers.size(); ++i) {
      EXPECT_GE(transfers[i]->times().end_s, transfers[i - 1]->times().end_s - 1e-4) << i;
    }
  }

  int ranks, rank;
  Device exec;
  std::vector<std::unique_ptr<Buffer<float>>> values, spans;
  BarrierAtEnd barrier;
  std::vector<std::unique_ptr<Transfer>> transfers;
};

TEST_P(Nccl, transfers_under_way_together_end_in_the_order_of_their_starts) {
  const TogetherStep step(*this);
  for (int run = 0; run < 3; ++run) {
    step.enqueue();
    step.exec.fence();
    step.expect_sums_and_ends_in_order();
  }
  const Replay replay(step.exec, [&] { step.enqueue(); });
  for (int run = 0; run < 3; ++run) {
    replay.launch();
    step.exec.fence();
    step.expect_sums_and_ends_in_order();
  }
}

/// The message of the std::invalid_argument that `make` throws; empty: none.
template <class Make>
std::string refusal(const Make& make) {
  try {
    make();
  } catch (const std::invalid_argument& refused) {
    return refused.what();
  }
  return "";
}

TEST_P(Nccl, refuses_transfers_that_it_cannot_do) {
  const int ranks = world.size();
  const std::size_t n = 4 * static_cast<std::size_t>(ranks);
  const Buffer<float> whole = Buffer<float>::zeros(n), part = Buffer<float>::zeros(4),
                      odd = Buffer<float>::zeros(n + 1);
  const Buffer<std::int32_t> ints = Buffer<std::int32_t>::zeros(n);
  std::vector<float> on_host(n);
  const Span host{"values", on_host.data(), static_cast<std::int64_t>(n), Dtype::fp32};
  const auto scatter = [&](const Span& span) { return refusal([&] { nccl().make_reduce_scatter(span, {}); }); };
  const auto gather = [&](const Span& one, const Span& all) {
    return refusal([&] { nccl().make_all_gather(one, all); });
  };
  using ::testing::StartsWith;
  const std::string means = is_ring() ? "nccl" : "copy_engine";
  const std::string scatter_of = means + " reduce-scatter of values: ", gather_of = means + " all-gather of values: ";
  EXPECT_THAT(scatter(span_of(ints)), StartsWith(scatter_of + "int32 cannot be summed"));
  EXPECT_THAT(scatter(host), StartsWith(scatter_of + "its memory"));
  EXPECT_THAT(gather(span_of(part), host), StartsWith(gather_of + "its memory"));
  EXPECT_THAT(gather(span_of(part), span_of(odd)), StartsWith(gather_of + "its part must be one"));
  EXPECT_THAT(gather(span_of(part), span_of(ints)), StartsWith(gather_of + "its part must be one"));
  EXPECT_EQ(scatter(span_of(whole)), "");
  EXPECT_EQ(gather(span_of(part), span_of(whole)), "");
  if (ranks > 1) {
    EXPECT_THAT(scatter(span_of(odd)), StartsWith(scatter_of + "its " + std::to_string(n + 1)));
    EXPECT_THAT(gather(part_of(whole, (world.rank() + 1) % ranks, ranks), span_of(whole)),
                StartsWith(gather_of + "its part lies inside"));
  }
  EXPECT_THAT(refusal([&] { nccl().make_group(-1); }), StartsWith("nccl: a group"));
}

/// Those of `ranks` for which `group_of` returns the same as for `rank`.
template <class GroupOf>
std::vector<int> members(int ranks, int rank, const GroupOf& group_of) {
  std::vector<int> same;
  for (int other = 0; other < ranks; ++other) {
    if (group_of(other) == group_of(rank)) same.push_back(other);
  }
  return same;
}

void expect_sums_over(const std::vector<int>& ranks, int me, Collectives& collectives) {
  const Buffer<float> buffer(numbers_of_rank<float>(me, 100'003, 0));
  const auto transfer = collectives.make_all_reduce(span_of(buffer), {});
  transfer->connect();
  run(*transfer);
  EXPECT_TRUE(same_bits(buffer.elements(), sums_over<float>(ranks, buffer.size(), 0)));
}

TEST_P(Nccl, groups_of_ranks_transfer_among_themselves) {
  const int rank = world.rank();
  const auto expect_group = [&](const auto& group_of) {
    const std::vector<int> ranks = members(world.size(), rank, group_of);
    const auto group = nccl().make_group(group_of(rank));
    ASSERT_EQ(group->size(), static_cast<int>(ranks.size()));
    EXPECT_EQ(ranks[group->rank()], rank);
    EXPECT_TRUE(group->is_asynchronous());
    EXPECT_EQ(group->device_bytes(), 0);
    EXPECT_THAT(group->description(), ::testing::HasSubstr("by the ring"));
    EXPECT_NE(group->instance().cuda_stream(), nccl().instance().cuda_stream());
    expect_sums_over(ranks, rank, *group);
    expect_scattered_sums<float>(world, *group, ranks, rank, kParts);
    expect_scattered_sums<bfloat16>(world, *group, ranks, rank, kParts);
    expect_gathered_parts<bfloat16>(world, *group, ranks, rank, kParts);
    expect_gathered_parts<std::int32_t>(world, *group, ranks, rank, kParts);
    const Buffer<float> buffer(std::vector<float>(1009, static_cast<float>(rank)));
    group->broadcast(span_of(buffer));
    EXPECT_EQ(buffer.elements(), std::vector<float>(1009, static_cast<float>(ranks.front())));
    EXPECT_EQ(group->fault(), "");
  };
  expect_group([](int of) { return of / 2; });
  expect_group([](int of) { return of % 2; });
  expect_group([](int) { return 7; });
  expect_group([](int of) { return of; });
}

TEST_P(Nccl, a_sum_within_groups_and_one_across_them_are_the_sum_of_all) {
  if (world.size() % 2 != 0) GTEST_SKIP() << "one rank makes no pair";
  const auto within = nccl().make_group(world.rank() / 2), across = nccl().make_group(world.rank() % 2);
  const std::size_t n = 2 * 100'003;
  const Buffer<float> buffer = Buffer<float>::zeros(n);
  const Device exec;
  const auto scatter = within->make_reduce_scatter(span_of(buffer), {});
  const auto sum = across->make_all_reduce(part_of(buffer, within->rank(), 2), {});
  scatter->connect();
  sum->connect();
  for (int r = 0; r < 3; ++r) {
    buffer.upload(numbers_of_rank<float>(world.rank(), n, r));
    scatter->start(exec);
    sum->start(within->instance());  // after it
    sum->join(exec);
    exec.fence();
    const std::vector<float> sums = sums_over<float>(first_ranks(world.size()), n, r);
    EXPECT_TRUE(same_bits(part_of(buffer.elements(), within->rank(), 2), part_of(sums, within->rank(), 2)));
  }
}

TEST_P(Nccl, groups_may_outlive_what_they_were_made_from) {
  const auto pair_of = [](int rank) { return rank / 2; };
  const std::vector<int> ranks = members(world.size(), world.rank(), pair_of);
  TestWorld other;
  other.use(make_gpu_collectives(other, GetParam()));
  auto pair = other.collectives().make_group(pair_of(world.rank()));
  const auto same = pair->make_group(0);
  other.use(nullptr);
  EXPECT_EQ(same->fault(), "");
  expect_sums_over(ranks, world.rank(), *pair);
  pair.reset();
  expect_sums_over(ranks, world.rank(), *same);
}

TEST_P(Nccl, who_abandons_them_alone_is_followed_by_all_at_the_end) {
  if (!is_ring()) GTEST_SKIP() << "ranks that leave each other's memory mapped would disturb the tests that follow";
  TestWorld other;
  other.use(make_gpu_collectives(other, GetParam()));
  const auto group = other.collectives().make_group(0);
  expect_sums_over(first_ranks(world.size()), world.rank(), *group);
  if (world.rank() == world.size() - 1) other.collectives().abandon();
  other.use(nullptr);  // ends
}

TEST_P(Nccl, who_abandons_the_collectives_is_not_held_up_by_a_group) {
  if (!is_ring()) GTEST_SKIP() << "ranks that leave each other's memory mapped would disturb the tests that follow";
  const Device exec;
  TestWorld other;
  other.use(make_gpu_collectives(other, GetParam()));
  const auto group = other.collectives().make_group(0);
  const Buffer<float> buffer(std::vector<float>(1000, 1.0f));
  const auto sum = group->make_all_reduce(span_of(buffer), {});
  sum->connect();
  run(*sum);  // connections are made
  world.barrier();
  if (world.rank() == 0) {  // the others never come
    sum->start(exec);
    sum->join(exec);
  }
  other.collectives().abandon();
  exec.fence();  // ends
  EXPECT_EQ(group->fault(), "");
  world.barrier();
}

}  // namespace
}  // namespace tessera::parallel
