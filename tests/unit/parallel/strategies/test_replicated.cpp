#include "parallel/strategies/replicated.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <stdexcept>

#include "kernels/core/events.hpp"
#include "parallel/collectives/collective.hpp"
#include "parallel/collectives/squares.hpp"
#include "support/buffer.hpp"
#include "support/no_collectives.hpp"
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

/// Buckets of that many bytes, each starting when it is full.
GradientOrder buckets_of(std::int64_t bytes) { return {.bucket_bytes = bytes}; }

/// A flat array of gradients of parameters of `counts` elements; counts[0] is the last one's, whose gradient backward
/// completes first.
struct Gradients {
  Gradients(const std::vector<std::int64_t>& counts, int rank)
      : buffer(initial(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), rank)) {
    for (std::size_t i = counts.size(), first = 0; i-- > 0; first += counts[i]) {
      spans.push_back({"param" + std::to_string(spans.size()), buffer.data() + first, counts[i], Dtype::fp32});
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

void run_all(Replicated& queue, std::size_t spans) {
  queue.begin(true);
  for (std::size_t i = spans; i-- > 0;) queue.gradient_enqueued(static_cast<int>(i)), queue.progress();
  queue.finish();
}

/// Notes the place that it is given for its squares; does nothing else.
class Squared final : public Transfer {
 public:
  explicit Squared(std::optional<std::int64_t> squares) : squares_(squares) {}
  bool leave_squares(Squares& room) override {
    if (squares_) place = room.take(*squares_ * Squares::kBytes);
    return squares_.has_value();
  }
  void start(const kernels::Device&) override {}
  bool test() override { return true; }
  void join(const kernels::Device&) override {}
  Times times() override { return {}; }

  double* place = nullptr;

 private:
  std::optional<std::int64_t> squares_;
};

TEST(Squares, have_their_places_one_after_the_other) {
  std::vector<double> room(10);
  const Span span{"room", room.data(), 10, Dtype::fp64};
  Squared first(3), second(0), third(7);
  EXPECT_EQ(Squares::left_by({&first, &second, &third}, span), 10);
  EXPECT_EQ(first.place, room.data());
  EXPECT_EQ(third.place, room.data() + 3);
  EXPECT_EQ(Squares::count_of(2 * Squares::kBytes + 1), 3) << "the last one of a few bytes";
}

TEST(Squares, are_left_by_all_sums_or_by_none_and_within_their_room) {
  std::vector<double> room(10);
  const Span span{"room", room.data(), 10, Dtype::fp64};
  Squared some(3), none(std::nullopt), too_many(8);
  EXPECT_EQ(Squares::left_by({&some, &none}, span), std::nullopt);
  EXPECT_EQ(Squares::left_by({&too_many}, {}), std::nullopt);
  EXPECT_EQ(too_many.place, nullptr);
  EXPECT_THROW(Squares::left_by({&some, &too_many}, span), std::logic_error);
}

/// An all-reduce in host memory that also leaves the squares of this rank's share of its sums, as one partial sum.
class SquaringSum final : public Transfer {
 public:
  SquaringSum(std::unique_ptr<Transfer> sum, const Span& span, int rank, int ranks)
      : sum_(std::move(sum)), span_(span), first_(span.count * rank / ranks), last_(span.count * (rank + 1) / ranks) {}
  void connect() override { sum_->connect(); }
  bool leave_squares(Squares& room) override {
    partial_ = room.take(1);
    return true;
  }
  void start(const kernels::Device& exec) override { sum_->start(exec); }
  bool test() override {
    const bool is_complete = sum_->test();
    if (is_complete) square();
    return is_complete;
  }
  void join(const kernels::Device& exec) override {
    sum_->join(exec);
    square();
  }
  Times times() override { return sum_->times(); }

 private:
  void square() {
    if (!partial_) return;
    *partial_ = 0;
    for (std::int64_t i = first_; i < last_; ++i) *partial_ += std::pow(static_cast<float*>(span_.data)[i], 2);
  }

  std::unique_ptr<Transfer> sum_;
  Span span_;
  std::int64_t first_, last_;
  double* partial_ = nullptr;
};

/// Collectives of all ranks whose all-reduces leave squares.
class Squaring final : public Collectives {
 public:
  explicit Squaring(Collectives& all) : all_(all) {}
  std::string name() const override { return all_.name(); }
  std::string description() const override { return all_.description(); }
  bool is_asynchronous() const override { return all_.is_asynchronous(); }
  int rank() const override { return all_.rank(); }
  int size() const override { return all_.size(); }
  std::unique_ptr<Transfer> make(const Message& message) override {
    if (message.operation != Operation::all_reduce) return all_.make(message);
    overlaps.push_back(message.overlap);
    return std::make_unique<SquaringSum>(all_.make(message), message.span, rank(), size());
  }
  std::unique_ptr<Collectives> make_group(int group) override { return all_.make_group(group); }
  void broadcast(const Span& span) override { all_.broadcast(span); }
  std::string fault() override { return all_.fault(); }
  void abandon() override { all_.abandon(); }

  std::vector<Overlap> overlaps;  // of the sums made so far

 private:
  Collectives& all_;
};

TEST(Squares, of_all_ranks_make_the_norm_of_all_gradients) {
  if constexpr (!kernels::kIsHost<kernels::Device>) GTEST_SKIP() << "the squares are made on the host";
  TestWorld world;
  Squaring squaring(world.collectives());
  const std::vector<std::int64_t> counts = {1000, 1, 70000, 64, 7};
  for (const std::int64_t bucket_bytes : {std::int64_t{0}, std::int64_t{5000}, std::int64_t{1} << 40}) {
    Gradients g(counts, world.rank());
    double total = 0;
    std::vector<double> room(counts.size());
    const NormSpans norm{{"norm", &total, 1, Dtype::fp64}, {"room", room.data(), std::ssize(room), Dtype::fp64}};
    Replicated queue(squaring, {}, g.spans, buckets_of(bucket_bytes), {}, norm);
    queue.connect();
    ASSERT_EQ(queue.squares(), static_cast<std::int64_t>(queue.buckets()));
    run_all(queue, counts.size());
    total = std::accumulate(room.begin(), room.begin() + *queue.squares(), 0.0);
    queue.sum();
    double expected = 0;  // of integers, exact
    for (const float sum : g.sums(world.size())) expected += std::pow(sum, 2);
    EXPECT_EQ(total, expected);
  }
}

TEST(Replicated, says_beside_which_of_its_sums_nothing_is_computed) {
  using Grouping = GradientOrder::Grouping;
  using Start = GradientOrder::Start;
  TestWorld world;
  Gradients g({10, 20, 30}, world.rank());
  double total = 0;
  std::vector<double> room(3);
  const NormSpans norm{{"norm", &total, 1, Dtype::fp64}, {"room", room.data(), 3, Dtype::fp64}};
  const auto overlaps = [&](const GradientOrder& order) {
    Squaring squaring(world.collectives());
    const Replicated queue(squaring, {}, g.spans, order, {}, norm);
    return squaring.overlaps;
  };
  const auto work = Overlap::compute, nothing = Overlap::none;  // the last sum is the norm's
  EXPECT_EQ(overlaps({Grouping::all, Start::after_backward, 0}), (std::vector{nothing, nothing}));
  EXPECT_EQ(overlaps({Grouping::parameter, Start::after_backward, 0}), std::vector(4, nothing));
  EXPECT_EQ(overlaps({Grouping::parameter, Start::when_ready, 0}), (std::vector{work, work, nothing, nothing}));
  EXPECT_EQ(overlaps({Grouping::bucket, Start::when_ready, 120}), (std::vector{work, nothing, nothing}));  // 10 20 | 30
}

/// Collectives whose all-reduces take the given times, one after the other.
class Timed final : public test::NoCollectives {
 public:
  explicit Timed(std::vector<Transfer::Times> times) : NoCollectives(0, 2), times_(std::move(times)) {}
  std::unique_ptr<Transfer> make(const Message&) override { return std::make_unique<Sum>(times_.at(next_++)); }

 private:
  struct Sum final : Transfer {
    explicit Sum(const Times& times) : given(times) {}
    void start(const kernels::Device&) override {}
    bool test() override { return true; }
    void join(const kernels::Device&) override {}
    Times times() override { return given; }
    Times given;
  };
  std::vector<Transfer::Times> times_;
  std::size_t next_ = 0;
};

TEST(Replicated, waits_once_for_sums_that_are_under_way_together) {
  // Backward ends at 10 s. Of two sums that run, one ends at 15 s and the other at 16 s; then the last one takes 2 s.
  Timed timed({{8, 15, 15}, {9, 16, 16}, {16, 18, 10}});
  Gradients g({10, 20, 30}, 0);
  Replicated queue(timed, {}, g.spans, buckets_of(0));
  queue.connect();
  run_all(queue, 3);
  Listener listener;
  EXPECT_DOUBLE_EQ(queue.collect(), 8);
  ASSERT_EQ(listener.entries.size(), 3u);
  EXPECT_DOUBLE_EQ(listener.entries[0].exposed_s, 5);
  EXPECT_DOUBLE_EQ(listener.entries[1].exposed_s, 1);
  EXPECT_DOUBLE_EQ(listener.entries[2].exposed_s, 2);
}

TEST(Squares, that_no_transfer_leaves_make_no_sum_of_the_norm) {
  TestWorld world;
  Gradients g({100, 7}, world.rank());
  double total = 5;
  std::vector<double> room(2);
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(0), {},
                   {{"norm", &total, 1, Dtype::fp64}, {"room", room.data(), 2, Dtype::fp64}});
  queue.connect();
  EXPECT_EQ(queue.squares(), std::nullopt);
  run_all(queue, 2);
  queue.sum();
  EXPECT_EQ(total, 5);
}

TEST(Replicated, joins_neighbours_until_a_bucket_has_its_bytes) {
  TestWorld world;
  Gradients g({10, 20, 30, 5, 1000, 1}, 0);
  const auto buckets = [&](std::int64_t bytes) {
    return Replicated(world.collectives(), {}, g.spans, buckets_of(bytes)).buckets();
  };
  EXPECT_EQ(buckets(0), 6u);  // one each
  EXPECT_EQ(buckets(1), 6u);
  EXPECT_EQ(buckets(40), 5u);   // 10 | 20 | 30 | 5 1000 | 1
  EXPECT_EQ(buckets(41), 4u);   // 10 20 | 30 | 5 1000 | 1
  EXPECT_EQ(buckets(121), 3u);  // 10 20 30 | 5 1000 | 1
  EXPECT_EQ(buckets(1 << 30), 1u);
}

TEST(Replicated, buckets_become_smaller_towards_the_end) {
  TestWorld world;
  Gradients g(std::vector<std::int64_t>(10, 100), world.rank());  // 10 spans of 400 bytes
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(1500));
  queue.connect();
  Listener listener;
  run_all(queue, 10);
  std::vector<std::int64_t> bytes;
  for (std::size_t i = 0; i < queue.buckets(); ++i) {
    for (const Listener::Entry& entry : listener.entries) {
      if (entry.label == "grad.bucket." + std::to_string(i)) bytes.push_back(entry.bytes);
    }
  }
  EXPECT_EQ(bytes, (std::vector<std::int64_t>{1200, 800, 800, 400, 400, 400}));
  EXPECT_TRUE(same_bits(g.values(), g.sums(world.size())));
}

TEST(Replicated, reports_each_bucket_with_label_bytes_and_times) {
  TestWorld world;
  Gradients g({2, 3, 55, 5}, world.rank());
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(121));
  queue.connect();
  Listener listener;
  const double before_s = events::now_s();
  queue.begin(true);
  for (int i = 4; i-- > 0;) queue.gradient_enqueued(i);
  queue.finish();
  ASSERT_EQ(listener.entries.size(), 2u);
  double sum_s = 0;
  for (const Listener::Entry& entry : listener.entries) {
    EXPECT_EQ(entry.operation, "all_reduce[mpi]");
    EXPECT_GE(entry.start_s, before_s);
    EXPECT_GE(entry.end_s, entry.start_s);
    EXPECT_GE(entry.exposed_s, 0);
    sum_s += entry.exposed_s;
  }
  EXPECT_DOUBLE_EQ(sum_s, queue.collect());
  EXPECT_EQ(listener.entries[0].label, "grad.bucket.0");
  EXPECT_EQ(listener.entries[1].label, "grad.bucket.1");
  EXPECT_EQ(listener.entries[0].bytes, 60 * 4);
  EXPECT_EQ(listener.entries[1].bytes, 5 * 4);
}

TEST(Replicated, sums_every_element_once_whatever_the_buckets) {
  TestWorld world;
  const std::vector<std::int64_t> counts = {1000, 1, 70000, 64, 500000, 7};
  for (const std::int64_t bucket_bytes :
       {std::int64_t{0}, std::int64_t{5000}, std::int64_t{300000}, std::int64_t{1} << 40}) {
    Gradients g(counts, world.rank());
    Replicated queue(world.collectives(), {}, g.spans, buckets_of(bucket_bytes));
    queue.connect();
    run_all(queue, counts.size());
    EXPECT_TRUE(same_bits(g.values(), g.sums(world.size()))) << "buckets of " << bucket_bytes << " bytes";
  }
}

TEST(Replicated, rounds_what_crosses_the_network_when_asked_to) {
  TestWorld world;
  const std::vector<std::int64_t> counts = {1000, 8, 70000, 64, 5000};
  for (const std::int64_t bucket_bytes : {std::int64_t{0}, std::int64_t{5000}, std::int64_t{1} << 40}) {
    Gradients g(counts, world.rank());
    const std::int64_t total = static_cast<std::int64_t>(g.buffer.size());
    const auto wire = Buffer<bfloat16>::unwritten(total);
    Replicated queue(world.collectives(), {}, g.spans, buckets_of(bucket_bytes),
                     {"wire", wire.data(), total, Dtype::bf16});
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

TEST(Replicated, refuses_a_copy_for_the_network_that_is_too_short_or_of_a_strange_dtype) {
  TestWorld world;
  Gradients g({300, 300}, world.rank());
  const Buffer<bfloat16> wire = Buffer<bfloat16>::zeros(600);
  const auto make = [&](std::int64_t count, Dtype dtype) {
    Replicated(world.collectives(), {}, g.spans, buckets_of(1), {"wire", wire.data(), count, dtype});
  };
  EXPECT_NO_THROW(make(600, Dtype::bf16));
  EXPECT_THROW(make(599, Dtype::bf16), std::invalid_argument);
  EXPECT_THROW(make(600, Dtype::fp16), std::invalid_argument);
}

TEST(Replicated, collects_what_finish_has_waited_for) {
  TestWorld world;
  Gradients g({300, 300}, world.rank());
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(1));
  queue.connect();
  EXPECT_EQ(queue.collect(), 0);
  queue.begin(true);
  queue.gradient_enqueued(1);
  queue.gradient_enqueued(0);
  Listener listener;
  queue.finish();
  double waited_s = 0;
  for (const Listener::Entry& entry : listener.entries) waited_s += entry.exposed_s;
  ASSERT_EQ(listener.entries.size(), 2u);
  EXPECT_DOUBLE_EQ(queue.collect(), waited_s);
}

TEST(Replicated, a_bucket_starts_while_later_spans_are_not_ready) {
  TestWorld world;
  Gradients g({5000, 5000, 5000}, world.rank());
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(20000));
  queue.connect();
  ASSERT_EQ(queue.buckets(), 3u);
  Listener listener;
  queue.begin(true);
  queue.gradient_enqueued(2);
  const double limit_s = events::now_s() + 60;
  while (listener.entries.empty() && events::now_s() < limit_s)
    queue.progress();  // it ends, too, under progress() alone
  ASSERT_EQ(listener.entries.size(), 1u);
  EXPECT_EQ(listener.entries[0].label, "grad.bucket.0");
  EXPECT_EQ(listener.entries[0].exposed_s, 0);
  EXPECT_EQ(g.values().back(), g.sums(world.size()).back());         // reduced
  EXPECT_EQ(g.values().front(), Gradients::value(0, world.rank()));  // not yet
  queue.gradient_enqueued(1);
  const double before_last_s = events::now_s();
  queue.gradient_enqueued(0);
  queue.finish();
  ASSERT_EQ(listener.entries.size(), 3u);
  EXPECT_LT(listener.entries[1].start_s, before_last_s);
  EXPECT_GE(listener.entries[2].start_s, before_last_s);
  EXPECT_TRUE(same_bits(g.values(), g.sums(world.size())));
}

TEST(Replicated, a_joined_bucket_waits_for_its_last_span) {
  TestWorld world;
  Gradients g({50, 100, 100}, world.rank());
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(401));
  queue.connect();
  ASSERT_EQ(queue.buckets(), 2u);
  queue.begin(true);
  queue.gradient_enqueued(2);
  for (int i = 0; i < 100; ++i) queue.progress();
  EXPECT_EQ(g.values().back(), Gradients::value(249, world.rank()));
  queue.gradient_enqueued(1);
  queue.gradient_enqueued(0);
  queue.finish();
  EXPECT_TRUE(same_bits(g.values(), g.sums(world.size())));
}

TEST(Replicated, serves_step_after_step) {
  TestWorld world;
  Gradients g({300, 300, 300}, world.rank());
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(2000));
  queue.connect();
  run_all(queue, 3);
  run_all(queue, 3);
  EXPECT_TRUE(same_bits(g.values(), g.sums(world.size(), 2)));
}

TEST(Replicated, does_nothing_before_begin_and_after_finish) {
  TestWorld world;
  Gradients g({300, 300}, world.rank());
  const std::vector<float> untouched = g.values();
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(1));
  queue.connect();
  Listener listener;
  const auto idle = [&] {
    queue.gradient_enqueued(1);
    queue.gradient_enqueued(1);
    queue.progress();
    queue.finish();
  };
  idle();
  EXPECT_TRUE(same_bits(g.values(), untouched));
  run_all(queue, 2);
  const std::vector<float> reduced = g.values();
  idle();
  EXPECT_TRUE(same_bits(g.values(), reduced));
  EXPECT_EQ(listener.entries.size(), 2u);
}

TEST(Replicated, refuses_ready_twice_and_never_ready) {
  TestWorld world;
  Gradients g({300, 300}, world.rank());
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(1));
  queue.connect();
  queue.begin(true);
  queue.gradient_enqueued(1);
  EXPECT_THROW(queue.gradient_enqueued(1), std::logic_error);
  EXPECT_THROW(queue.finish(), std::logic_error);  // span 1
}

TEST(Replicated, refuses_a_span_that_does_not_exist) {
  TestWorld world;
  Gradients g({300, 300}, world.rank());
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(1 << 20));
  queue.connect();
  queue.begin(true);
  EXPECT_THROW(queue.gradient_enqueued(2), std::out_of_range);
  queue.gradient_enqueued(1);
  queue.gradient_enqueued(0);
  queue.finish();
}

TEST(Replicated, wants_to_be_connected_first) {
  TestWorld world;
  Gradients g({10, 20}, 0);
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(1));
  EXPECT_THROW(queue.begin(true), std::logic_error);
  queue.connect();
  EXPECT_NO_THROW(queue.begin(true));
}

TEST(Replicated, groups_by_parameter_and_all_at_once) {
  TestWorld world;
  const auto labels = [&](GradientOrder::Grouping grouping, GradientOrder::Start start) {
    Gradients g({10, 20, 30}, world.rank());
    Replicated queue(world.collectives(), {}, g.spans, {.grouping = grouping, .start = start});
    queue.connect();
    Listener listener;
    run_all(queue, 3);
    EXPECT_TRUE(same_bits(g.values(), g.sums(world.size())));
    std::vector<std::string> found;
    for (const Listener::Entry& entry : listener.entries) found.push_back(entry.label);
    return found;
  };
  using enum GradientOrder::Grouping;
  using enum GradientOrder::Start;
  EXPECT_EQ(labels(parameter, when_ready).size(), 3u);
  EXPECT_EQ(labels(parameter, after_backward), (std::vector<std::string>{"param2", "param1", "param0"}));
  EXPECT_EQ(labels(all, after_backward), (std::vector<std::string>{"grad.flat"}));
}

TEST(Replicated, starts_nothing_before_backward_has_ended_when_asked_to) {
  TestWorld world;
  Gradients g({100, 100}, world.rank());
  Replicated queue(world.collectives(), {}, g.spans,
                   {.grouping = GradientOrder::Grouping::parameter, .start = GradientOrder::Start::after_backward});
  queue.connect();
  queue.begin(true);
  queue.gradient_enqueued(1);
  for (int i = 0; i < 100; ++i) queue.progress();
  EXPECT_EQ(g.values().back(), Gradients::value(199, world.rank()));
  queue.gradient_enqueued(0);
  for (int i = 0; i < 100; ++i) queue.progress();
  EXPECT_EQ(g.values().back(), Gradients::value(199, world.rank()));
  queue.finish();
  EXPECT_TRUE(same_bits(g.values(), g.sums(world.size())));
}

TEST(Replicated, accumulating_micro_steps_sum_nothing) {
  TestWorld world;
  Gradients g({100, 100}, world.rank());
  const std::vector<float> untouched = g.values();
  Replicated queue(world.collectives(), {}, g.spans, buckets_of(1));
  queue.connect();
  queue.begin(false);
  queue.gradient_enqueued(1), queue.gradient_enqueued(0);
  queue.progress();
  EXPECT_TRUE(same_bits(g.values(), untouched));
  run_all(queue, 2);
  EXPECT_TRUE(same_bits(g.values(), g.sums(world.size())));
}

TEST(Replicated, refuses_to_join_spans_that_are_no_neighbours) {
  TestWorld world;
  Gradients g({10, 20, 30}, 0);
  const auto make = [&](const std::vector<Span>& spans) {
    Replicated(world.collectives(), {}, spans, buckets_of(1 << 20));
  };
  EXPECT_NO_THROW(make(g.spans));
  EXPECT_THROW(make({g.spans[0], g.spans[2]}), std::invalid_argument);  // a gap
  EXPECT_THROW(make({g.spans[1], g.spans[0]}), std::invalid_argument);  // upwards
  std::vector<Span> mixed = g.spans;
  mixed[1].count /= 2, mixed[1].dtype = Dtype::fp64;  // ends there, but another dtype
  EXPECT_THROW(make(mixed), std::invalid_argument);
}

}  // namespace
}  // namespace tessera::parallel
