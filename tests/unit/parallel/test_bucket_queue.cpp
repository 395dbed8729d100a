#include "parallel/bucket_queue.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <stdexcept>

#include "kernels/core/events.hpp"
#include "parallel/collective.hpp"
#include "support/buffer.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::parallel {
namespace {

using test::Buffer;
using test::same_bits;
using test::TestWorld;

/// Keeps a copy of every communication that ends while it lives.
class Listener final : public events::Listener {
 public:
  struct Entry {
    std::string operation, label;
    std::int64_t bytes;
    double start_s, end_s, exposed_s;
  };
  Listener() { events::add_listener(*this); }
  ~Listener() override { events::remove_listener(*this); }
  using events::Listener::on;
  void on(const events::Communication& c) override {
    entries.push_back({std::string(c.operation), std::string(c.label), c.bytes, c.start_s, c.end_s, c.exposed_s});
  }
  std::vector<Entry> entries;
};

/// A flat array of gradients cut into units of `counts` elements, listed from the end, the order of the backward pass.
struct Gradients {
  Gradients(const std::vector<std::int64_t>& counts, int rank)
      : buffer(initial(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), rank)) {
    for (std::size_t unit = 0, end = buffer.size(); unit < counts.size(); ++unit) {
      end -= counts[unit];
      spans.push_back({"unit" + std::to_string(unit), buffer.data() + end, counts[unit], Dtype::fp32});
    }
  }
  static float value(std::int64_t i, int rank) {
    return static_cast<float>((i % 1001 - 500) * (rank + 1));
  }  // sums are exact
  static std::vector<float> initial(std::int64_t total, int rank) {
    std::vector<float> values(total);
    for (std::int64_t i = 0; i < total; ++i) values[i] = value(i, rank);
    return values;
  }
  std::vector<float> values() const { return buffer.elements(); }
  std::vector<float> sums(int ranks, int times = 1) const {
    std::vector<float> result(buffer.size(), 0.0f);
    for (std::size_t i = 0; i < result.size(); ++i) {
      for (int rank = 0; rank < ranks; ++rank) result[i] += value(static_cast<std::int64_t>(i), rank);
      for (int k = 1; k < times; ++k) result[i] *= static_cast<float>(ranks);  // every rank adds the same sums again
    }
    return result;
  }
  Buffer<float> buffer;
  std::vector<Span> spans;
};

void run_all(BucketQueue& queue, std::size_t spans) {
  queue.begin();
  for (std::size_t i = 0; i < spans; ++i) queue.ready(i), queue.progress();
  queue.finish();
}

TEST(BucketQueue, joins_neighbours_until_a_bucket_has_its_bytes) {
  TestWorld world;
  Gradients g({10, 20, 30, 5, 1000, 1}, 0);
  const auto buckets = [&](std::int64_t bytes) {
    return BucketQueue(world.collectives(), {}, g.spans, bytes).buckets();
  };
  EXPECT_EQ(buckets(0), 6u);  // one each
  EXPECT_EQ(buckets(1), 6u);
  EXPECT_EQ(buckets(40), 5u);   // 10 | 20 | 30 | 5 1000 | 1
  EXPECT_EQ(buckets(41), 4u);   // 10 20 | 30 | 5 1000 | 1
  EXPECT_EQ(buckets(121), 3u);  // 10 20 30 | 5 1000 | 1
  EXPECT_EQ(buckets(1 << 30), 1u);
}

TEST(BucketQueue, buckets_become_smaller_towards_the_end) {
  TestWorld world;
  Gradients g(std::vector<std::int64_t>(10, 100), world.rank());  // 10 spans of 400 bytes
  BucketQueue queue(world.collectives(), {}, g.spans, 1500);
  queue.connect();
  Listener listener;
  run_all(queue, 10);
  std::vector<std::int64_t> bytes;
  for (std::size_t i = 0; i < queue.buckets(); ++i) {
    for (const Listener::Entry& entry : listener.entries) {
      if (entry.label == "grad.bucket." + std::to_string(i)) bytes.push_back(entry.bytes);
    }
  }
  EXPECT_EQ(bytes, (std::vector<std::int64_t>{1600, 1200, 800, 400}));
  EXPECT_TRUE(same_bits(g.values(), g.sums(world.size())));
}

TEST(BucketQueue, reports_each_bucket_with_label_bytes_and_times) {
  TestWorld world;
  Gradients g({10, 20, 30, 5}, world.rank());
  BucketQueue queue(world.collectives(), {}, g.spans, 121);
  queue.connect();
  Listener listener;
  const double before_s = events::now_s();
  queue.begin();
  for (std::size_t i = 0; i < 4; ++i) queue.ready(i);
  const double exposed_s = queue.finish();
  ASSERT_EQ(listener.entries.size(), 2u);
  double sum_s = 0;
  for (const Listener::Entry& entry : listener.entries) {
    EXPECT_EQ(entry.operation, "all_reduce[mpi]");
    EXPECT_GE(entry.start_s, before_s);
    EXPECT_GE(entry.end_s, entry.start_s);
    EXPECT_GE(entry.exposed_s, 0);
    sum_s += entry.exposed_s;
  }
  EXPECT_DOUBLE_EQ(sum_s, exposed_s);
  EXPECT_EQ(listener.entries[0].label, "grad.bucket.0");
  EXPECT_EQ(listener.entries[1].label, "grad.bucket.1");
  EXPECT_EQ(listener.entries[0].bytes, 60 * 4);
  EXPECT_EQ(listener.entries[1].bytes, 5 * 4);
}

TEST(BucketQueue, sums_every_element_once_whatever_the_buckets) {
  TestWorld world;
  const std::vector<std::int64_t> counts = {1000, 1, 70000, 64, 500000, 7};
  for (const std::int64_t bucket_bytes :
       {std::int64_t{0}, std::int64_t{5000}, std::int64_t{300000}, std::int64_t{1} << 40}) {
    Gradients g(counts, world.rank());
    BucketQueue queue(world.collectives(), {}, g.spans, bucket_bytes);
    queue.connect();
    run_all(queue, counts.size());
    EXPECT_TRUE(same_bits(g.values(), g.sums(world.size()))) << "buckets of " << bucket_bytes << " bytes";
  }
}

TEST(BucketQueue, rounds_what_crosses_the_network_when_asked_to) {
  TestWorld world;
  const std::vector<std::int64_t> counts = {1000, 8, 70000, 64, 5000};
  for (const std::int64_t bucket_bytes : {std::int64_t{0}, std::int64_t{5000}, std::int64_t{1} << 40}) {
    Gradients g(counts, world.rank());
    const std::int64_t total = static_cast<std::int64_t>(g.buffer.size());
    const auto wire = Buffer<bfloat16>::unwritten(total);
    BucketQueue queue(world.collectives(), {}, g.spans, bucket_bytes, {"wire", wire.data(), total, Dtype::bf16});
    queue.connect();
    Listener listener;
    run_all(queue, counts.size());
    const std::vector<float> made = g.values();
    for (std::int64_t i = 0; i < total; ++i) {
      // Each rank's value is rounded once, and so is each of the additions, to half a unit in the last place.
      double exact = 0, magnitude = 0;
      for (int rank = 0; rank < world.size(); ++rank) {
        exact += Gradients::value(i, rank);
        magnitude += std::abs(Gradients::value(i, rank));
      }
      ASSERT_NEAR(made[i], exact, world.size() * 0.5 * kEpsilon<bfloat16> * 1.01 * magnitude) << "element " << i;
    }
    std::int64_t bytes = 0;
    for (const Listener::Entry& entry : listener.entries) bytes += entry.bytes;
    EXPECT_EQ(bytes, 2 * total);
    const std::string bits(reinterpret_cast<const char*>(made.data()), made.size() * sizeof(float));
    EXPECT_TRUE(world.broadcast(bits) == bits) << "rank " << world.rank() << " has other bits than rank 0";
  }
}

TEST(BucketQueue, refuses_a_copy_for_the_network_that_is_too_short_or_of_a_strange_dtype) {
  TestWorld world;
  Gradients g({300, 300}, world.rank());
  const Buffer<bfloat16> wire = Buffer<bfloat16>::zeros(600);
  const auto make = [&](std::int64_t count, Dtype dtype) {
    BucketQueue(world.collectives(), {}, g.spans, 1, {"wire", wire.data(), count, dtype});
  };
  EXPECT_NO_THROW(make(600, Dtype::bf16));
  EXPECT_THROW(make(599, Dtype::bf16), std::invalid_argument);
  EXPECT_THROW(make(600, Dtype::fp16), std::invalid_argument);
}

TEST(BucketQueue, collects_what_finish_has_waited_for) {
  TestWorld world;
  Gradients g({300, 300}, world.rank());
  BucketQueue queue(world.collectives(), {}, g.spans, 1);
  queue.connect();
  EXPECT_EQ(queue.collect(), 0);
  queue.begin();
  queue.ready(0);
  queue.ready(1);
  const double waited_s = queue.finish();
  EXPECT_EQ(queue.collect(), waited_s);
}

TEST(BucketQueue, a_bucket_starts_while_later_spans_are_not_ready) {
  TestWorld world;
  Gradients g({5000, 5000, 5000}, world.rank());
  BucketQueue queue(world.collectives(), {}, g.spans, 20000);
  queue.connect();
  ASSERT_EQ(queue.buckets(), 3u);
  Listener listener;
  queue.begin();
  queue.ready(0);
  const double limit_s = events::now_s() + 60;
  while (listener.entries.empty() && events::now_s() < limit_s)
    queue.progress();  // it ends, too, under progress() alone
  ASSERT_EQ(listener.entries.size(), 1u);
  EXPECT_EQ(listener.entries[0].label, "grad.bucket.0");
  EXPECT_EQ(listener.entries[0].exposed_s, 0);
  EXPECT_EQ(g.values().back(), g.sums(world.size()).back());         // reduced
  EXPECT_EQ(g.values().front(), Gradients::value(0, world.rank()));  // not yet
  queue.ready(1);
  const double before_last_s = events::now_s();
  queue.ready(2);
  queue.finish();
  ASSERT_EQ(listener.entries.size(), 3u);
  EXPECT_LT(listener.entries[1].start_s, before_last_s);
  EXPECT_GE(listener.entries[2].start_s, before_last_s);
  EXPECT_TRUE(same_bits(g.values(), g.sums(world.size())));
}

TEST(BucketQueue, a_joined_bucket_waits_for_its_last_span) {
  TestWorld world;
  Gradients g({100, 100, 100}, world.rank());
  BucketQueue queue(world.collectives(), {}, g.spans, 401);
  queue.connect();
  ASSERT_EQ(queue.buckets(), 2u);
  queue.begin();
  queue.ready(0);
  for (int i = 0; i < 100; ++i) queue.progress();
  EXPECT_EQ(g.values().back(), Gradients::value(299, world.rank()));
  queue.ready(1);
  queue.ready(2);
  queue.finish();
  EXPECT_TRUE(same_bits(g.values(), g.sums(world.size())));
}

TEST(BucketQueue, serves_step_after_step) {
  TestWorld world;
  Gradients g({300, 300, 300}, world.rank());
  BucketQueue queue(world.collectives(), {}, g.spans, 2000);
  queue.connect();
  run_all(queue, 3);
  run_all(queue, 3);
  EXPECT_TRUE(same_bits(g.values(), g.sums(world.size(), 2)));
}

TEST(BucketQueue, does_nothing_before_begin_and_after_finish) {
  TestWorld world;
  Gradients g({300, 300}, world.rank());
  const std::vector<float> untouched = g.values();
  BucketQueue queue(world.collectives(), {}, g.spans, 1);
  queue.connect();
  Listener listener;
  const auto idle = [&] {
    queue.ready(0);
    queue.ready(0);
    queue.progress();
    EXPECT_EQ(queue.finish(), 0);
  };
  idle();
  EXPECT_TRUE(same_bits(g.values(), untouched));
  run_all(queue, 2);
  const std::vector<float> reduced = g.values();
  idle();
  EXPECT_TRUE(same_bits(g.values(), reduced));
  EXPECT_EQ(listener.entries.size(), 2u);
}

TEST(BucketQueue, refuses_ready_twice_and_never_ready) {
  TestWorld world;
  Gradients g({300, 300}, world.rank());
  BucketQueue queue(world.collectives(), {}, g.spans, 1);
  queue.connect();
  queue.begin();
  queue.ready(0);
  EXPECT_THROW(queue.ready(0), std::logic_error);
  EXPECT_THROW(queue.finish(), std::logic_error);  // span 1
}

TEST(BucketQueue, refuses_a_span_that_does_not_exist) {
  TestWorld world;
  Gradients g({300, 300}, world.rank());
  BucketQueue queue(world.collectives(), {}, g.spans, 1 << 20);
  queue.connect();
  queue.begin();
  EXPECT_THROW(queue.ready(2), std::out_of_range);
  queue.ready(0);
  queue.ready(1);
  queue.finish();
}

TEST(BucketQueue, wants_to_be_connected_first) {
  TestWorld world;
  Gradients g({10, 20}, 0);
  BucketQueue queue(world.collectives(), {}, g.spans, 1);
  EXPECT_THROW(queue.begin(), std::logic_error);
  queue.connect();
  EXPECT_NO_THROW(queue.begin());
}

TEST(BucketQueue, refuses_to_join_spans_that_are_no_neighbours) {
  TestWorld world;
  Gradients g({10, 20, 30}, 0);
  const auto make = [&](const std::vector<Span>& spans) { BucketQueue(world.collectives(), {}, spans, 1 << 20); };
  EXPECT_NO_THROW(make(g.spans));
  EXPECT_THROW(make({g.spans[0], g.spans[2]}), std::invalid_argument);  // a gap
  EXPECT_THROW(make({g.spans[1], g.spans[0]}), std::invalid_argument);  // upwards
  std::vector<Span> mixed = g.spans;
  mixed[1].count /= 2, mixed[1].dtype = Dtype::fp64;  // ends there, but another dtype
  EXPECT_THROW(make(mixed), std::invalid_argument);
}

}  // namespace
}  // namespace tessera::parallel
