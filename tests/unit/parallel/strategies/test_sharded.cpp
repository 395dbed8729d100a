#include "parallel/strategies/sharded.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <stdexcept>

#include "kernels/core/events.hpp"
#include "support/buffer.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::parallel {
namespace {

using test::Buffer;
using test::TestWorld;

/// Units of unequal size: an embedding, blocks, and a head so small that one shard owns all of it and the others own
/// padding only.
std::vector<Unit> units_of(int blocks) {
  std::vector<Unit> units = {{"embedding", 0, 704}};
  const auto add = [&](std::string label, std::int64_t count) {
    units.push_back({std::move(label), units.back().first + units.back().count, count});
  };
  for (int block = 0; block < blocks; ++block) add("block." + std::to_string(block), 448);
  add("head", 64);
  return units;
}

TEST(Ownership, cuts_units_into_equal_aligned_parts_that_cover_each_element_once) {
  for (const int shards : {1, 2, 3, 4, 5, 7, 64}) {
    const Ownership o(units_of(3), shards);
    std::int64_t owned = 0;
    for (int unit = 0; unit < o.units(); ++unit) {
      EXPECT_EQ(o.part(unit) % Ownership::kAlignment, 0);
      EXPECT_GE(o.padded(unit), o[unit].count);
      EXPECT_EQ(o.owned_first(unit), owned);
      EXPECT_EQ(o.whole_first(unit), owned * shards);
      owned += o.part(unit);
      std::int64_t next = o[unit].first;
      for (int shard = 0; shard < shards; ++shard) {
        const Range range = o.owned(unit, shard);
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.count, 0);
        EXPECT_LE(range.count, o.part(unit));
        next += range.count;
      }
      EXPECT_EQ(next, o[unit].first + o[unit].count);
    }
    EXPECT_EQ(o.owned_count(), owned);
    EXPECT_EQ(o.whole_count(), owned * shards);
  }
}

TEST(Ownership, of_one_shard_is_the_flat_index_space) {
  const Ownership o(units_of(4), 1);
  for (int unit = 0; unit < o.units(); ++unit) {
    EXPECT_EQ(o.whole_first(unit), o[unit].first);
    EXPECT_EQ(o.owned_first(unit), o[unit].first);
    EXPECT_EQ(o.padded(unit), o[unit].count);
  }
}

TEST(Ownership, refuses_gaps_and_no_shards) {
  std::vector<Unit> units = units_of(1);
  EXPECT_THROW(Ownership(units, 0), std::invalid_argument);
  ++units[1].first;
  EXPECT_THROW(Ownership(units, 2), std::invalid_argument);
}

/// A model that only counts: every weight of unit u is known, and so is the gradient that each rank computes for it.
struct Toy {
  static constexpr int kBlocks = 5, kParamsOfUnit = 2;

  /// `is_on_host`, of stage 3: what the ranks keep of the weights is copied to its place first.
  Toy(TestWorld& world, int stage, int prefetch, int micro_steps, int shards, bool is_on_host = false)
      : world(world),
        shards_gradients(stage >= 2 && !(is_on_host && shards == 1)),
        micro_steps(micro_steps),
        o(units_of(kBlocks), shards),
        shard(world.rank() % shards) {
    const int units = o.units(), ring = prefetch + 1;
    const bool shards_weights = stage == 3;
    const std::int64_t edge = std::max(o.padded(0), o.padded(units - 1)), block = o.padded(1);
    weights = Buffer<float>::unwritten(shards_weights ? edge + ring * block : o.whole_count());
    gradients = Buffer<float>::unwritten(shards_gradients ? edge + 2 * block : o.whole_count());
    own_weights = Buffer<float>::unwritten(o.owned_count());
    own_gradients = Buffer<float>::unwritten(o.owned_count());
    std::vector<UnitMemory> memory(units);
    const auto span = [](std::string label, float* data, std::int64_t count) {
      return Span{std::move(label), data, count, Dtype::fp32};
    };
    for (int u = 0; u < units; ++u) {
      const bool is_edge = u == 0 || u == units - 1;
      UnitMemory& m = memory[u];
      m.weights_place = shards_weights ? (is_edge ? 0 : 1 + (u - 1) % ring) : u;
      m.gradient_place = shards_gradients ? (is_edge ? 0 : 1 + (u - 1) % 2) : u;
      const auto at = [&](int place) { return place == 0 ? 0 : edge + (place - 1) * block; };
      float* const w = weights.data() + (shards_weights ? at(m.weights_place) : o.whole_first(u));
      float* const g = gradients.data() + (shards_gradients ? at(m.gradient_place) : o.whole_first(u));
      m.weights = span("w", w, o.padded(u));
      m.gradient = span("g", g, o.padded(u));
      m.own_weights =
          span("own w", shards_weights ? own_weights.data() + o.owned_first(u) : w + shard * o.part(u), o.part(u));
      if (is_on_host) {
        m.host_weights = m.own_weights;
        m.own_weights = m.weights.part(shard * o.part(u), o.part(u));
      }
      m.own_gradient =
          span("own g", shards_gradients ? own_gradients.data() + o.owned_first(u) : g + shard * o.part(u), o.part(u));
    }
    places = memory;
    norm = Buffer<double>(std::vector<double>{1.0 + world.rank() % shards});
    options = {.shards_gradients = shards_gradients,
               .shards_weights = shards_weights,
               .prefetch = prefetch,
               .micro_steps = micro_steps,
               .openings = openings(),
               .norm = {.total = {"norm", norm.data(), 1, Dtype::fp64}, .squares = {}},
               .poisons = true};
    for (int p = 0; p < units * kParamsOfUnit; ++p) options.unit_of_param.push_back(p / kParamsOfUnit);
    strategy = std::make_unique<Sharded>(world.collectives(), kernels::Device(), o, memory, options);
    strategy->connect();
  }

  /// Blocks recomputed two by two, as with train.checkpoint_activations = 2.
  std::vector<int> openings() const {
    std::vector<int> list;
    const int head = o.units() - 1;
    for (int u = 0; u <= head; ++u) list.push_back(u);
    for (int last = kBlocks; last > 0; last = (last - 1) / 2 * 2) {
      const int first = (last - 1) / 2 * 2 + 1;
      for (int u = first; u <= last; ++u) list.push_back(u);
      for (int u = last - 1; u >= first; --u) list.push_back(u);
    }
    return list;
  }

  static float weight(int unit, std::int64_t i, int version) {
    return static_cast<float>(unit * 1000 + i % 997 + version * 7);
  }
  float gradient(int unit, std::int64_t i, int micro, int rank) const {
    return static_cast<float>((i % 101 - 50) * (rank + 1) + unit * (micro + 1));
  }

  void set_own_weights(int version) {
    for (int u = 0; u < o.units(); ++u) {
      std::vector<float> part(static_cast<std::size_t>(o.part(u)));
      for (std::size_t i = 0; i < part.size(); ++i) {
        part[i] = weight(u, shard * o.part(u) + static_cast<std::int64_t>(i), version);
      }
      const UnitMemory& m = places[u];
      copy(part, static_cast<float*>(m.host_weights.count > 0 ? m.host_weights.data : m.own_weights.data));
    }
  }
  static void copy(const std::vector<float>& from, float* to) {
    Kokkos::deep_copy(kernels::Vector<float, kernels::Device>(to, from.size()),
                      Kokkos::View<const float*, Kokkos::HostSpace, kernels::Unmanaged>(from.data(), from.size()));
  }
  /// As work on the strategy's instance sees it: a copy without an instance would wait for every other, too.
  static std::vector<float> values(const Span& span) {
    const kernels::Device exec;
    std::vector<float> host(static_cast<std::size_t>(span.count));
    Kokkos::deep_copy(exec, Kokkos::View<float*, Kokkos::HostSpace, kernels::Unmanaged>(host.data(), host.size()),
                      kernels::Vector<float, kernels::Device>(static_cast<float*>(span.data), host.size()));
    exec.fence();
    return host;
  }

  void read(int unit, int version) {
    const std::vector<float> seen = values(places[unit].weights);
    for (std::int64_t i = 0; i < o.padded(unit); ++i) {
      ASSERT_EQ(seen[i], weight(unit, i, version)) << o[unit].label << ", element " << i;
    }
  }
  void visit(int unit, int version) {
    strategy->open(unit);
    read(unit, version);
    strategy->progress();
    strategy->close(unit);
  }
  void write_gradient(int unit, int micro) {
    strategy->begin_gradients(unit);
    std::vector<float> all = values(places[unit].gradient);
    for (std::int64_t i = 0; i < o.padded(unit); ++i) {
      const float mine = gradient(unit, i, micro, world.rank());
      all[i] = shards_gradients || micro == 0 ? mine : all[i] + mine;
    }
    copy(all, static_cast<float*>(places[unit].gradient.data));
    for (int p = kParamsOfUnit; p-- > 0;) strategy->gradient_enqueued(unit * kParamsOfUnit + p);
  }

  void step(int version) {
    const int head = o.units() - 1;
    strategy->begin_step(nullptr);
    for (int micro = 0; micro < micro_steps; ++micro) {
      strategy->begin(micro + 1 == micro_steps);
      for (int u = 0; u < head; ++u) visit(u, version);
      strategy->open(head), strategy->open(head), read(head, version), strategy->close(head);
      write_gradient(head, micro);
      strategy->close(head);
      for (int last = kBlocks; last > 0; last = (last - 1) / 2 * 2) {
        const int first = (last - 1) / 2 * 2 + 1;
        for (int u = first; u < last; ++u) visit(u, version);
        strategy->open(last);  // recomputed, and not closed before backward has opened it
        for (int u = last; u >= first; --u) {
          strategy->open(u);
          if (u == last) strategy->close(u);
          read(u, version);
          write_gradient(u, micro);
          strategy->close(u);
        }
      }
      write_gradient(0, micro);
    }
    strategy->finish();
    strategy->sum();
  }

  void expect_sums() {
    for (int u = 0; u < o.units(); ++u) {
      const std::vector<float> sums = values(places[u].own_gradient);
      for (std::int64_t i = 0; i < o.part(u); ++i) {
        float expected = 0;
        for (int rank = 0; rank < world.size(); ++rank) {
          for (int micro = 0; micro < micro_steps; ++micro) {
            expected += gradient(u, shard * o.part(u) + i, micro, rank);
          }
        }
        ASSERT_EQ(sums[i], expected) << o[u].label << ", element " << i;
      }
    }
  }

  TestWorld& world;
  bool shards_gradients;
  int micro_steps;
  Ownership o;
  int shard;
  Buffer<float> weights = Buffer<float>::zeros(0), gradients = Buffer<float>::zeros(0),
                own_weights = Buffer<float>::zeros(0), own_gradients = Buffer<float>::zeros(0);
  Buffer<double> norm = Buffer<double>::zeros(1);
  std::vector<UnitMemory> places;
  ShardedOptions options;
  std::unique_ptr<Sharded> strategy;
};

TEST(Sharded, every_stage_reads_the_weights_of_all_and_sums_every_gradient_once) {
  TestWorld world;
  for (const int stage : {1, 2, 3}) {
    for (const int micro_steps : {1, 3}) {
      for (const int prefetch : {0, 1, 2, 9}) {
        if (stage < 3 && prefetch != 1) continue;
        SCOPED_TRACE("stage " + std::to_string(stage) + ", micro-steps " + std::to_string(micro_steps) + ", prefetch " +
                     std::to_string(prefetch));
        Toy toy(world, stage, prefetch, micro_steps, world.size());
        const int head = toy.o.units() - 1;
        EXPECT_EQ(toy.o.owned(head, world.size() - 1).count, world.size() > 1 ? 0 : toy.o[head].count);
        for (int version = 0; version < 3; ++version) {
          toy.set_own_weights(version);
          toy.step(version);
          toy.expect_sums();
          toy.set_own_weights(version + 10);
          toy.strategy->begin_inference();
          for (int pass = 0; pass < 2; ++pass) {
            for (int u = 0; u < toy.o.units(); ++u) toy.visit(u, version + 10);
          }
        }
      }
    }
  }
}

TEST(Sharded, groups_sum_what_the_groups_hold_twice) {
  TestWorld world;
  for (const int shards : {1, 2}) {
    if (world.size() % shards != 0) continue;
    for (const int stage : {1, 2, 3}) {
      for (const int micro_steps : {1, 2}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + ", shards " + std::to_string(shards));
        Toy toy(world, stage, 1, micro_steps, shards);
        for (int version = 0; version < 2; ++version) {
          toy.set_own_weights(version);
          toy.step(version);
          toy.expect_sums();
        }
      }
    }
  }
}

TEST(Sharded, weights_on_the_host_are_read_and_their_gradients_summed_as_those_on_the_device) {
  TestWorld world;
  for (const int shards : {1, 2, world.size()}) {
    if (world.size() % shards != 0) continue;
    for (const int micro_steps : {1, 3}) {
      for (const int prefetch : {0, 1, 9}) {
        SCOPED_TRACE("shards " + std::to_string(shards) + ", prefetch " + std::to_string(prefetch));
        Toy toy(world, 3, prefetch, micro_steps, shards, true);
        for (int version = 0; version < 2; ++version) {
          toy.set_own_weights(version);
          toy.step(version);
          toy.expect_sums();
          toy.set_own_weights(version + 10);
          toy.strategy->begin_inference();
          for (int u = 0; u < toy.o.units(); ++u) toy.visit(u, version + 10);
        }
      }
    }
  }
}

TEST(Sharded, gathers_wait_for_the_update_of_their_unit) {
  TestWorld world;
  for (const int stage : {1, 3}) {
    Toy toy(world, stage, 1, 1, world.size());
    toy.set_own_weights(0);
    ShardedOptions options = toy.options;
    std::vector<int> updated;
    options.await_update = [&](const kernels::Device&, int unit) {  // a unit is updated when it is waited for
      updated.push_back(unit);
      const Span& own = toy.places[unit].own_weights;
      std::vector<float> part(static_cast<std::size_t>(own.count));
      for (std::size_t i = 0; i < part.size(); ++i) {
        part[i] = Toy::weight(unit, toy.shard * own.count + static_cast<std::int64_t>(i), 5);
      }
      Toy::copy(part, static_cast<float*>(own.data));
    };
    toy.strategy =
        std::make_unique<Sharded>(world.collectives(), kernels::Device(), toy.o, toy.places, std::move(options));
    toy.strategy->connect();
    toy.strategy->begin_inference();
    for (int u = 0; u < toy.o.units(); ++u) toy.visit(u, 5);
    EXPECT_EQ(std::ssize(updated), toy.o.units());
  }
}

TEST(Sharded, sums_scalars_over_the_parts_of_the_whole) {
  TestWorld world;
  Toy toy(world, 1, 1, 1, world.size());
  toy.strategy->sum();
  EXPECT_EQ(toy.norm.elements()[0], world.size() * (world.size() + 1) / 2.0);
}

TEST(Sharded, weights_that_are_given_up_are_poisoned) {
  TestWorld world;
  Toy toy(world, 3, 1, 1, world.size());
  toy.set_own_weights(0);
  toy.strategy->begin_inference();
  toy.visit(0, 0);
  EXPECT_TRUE(std::isnan(Toy::values(toy.places[0].weights)[0]));
  toy.visit(1, 0);
  EXPECT_TRUE(std::isnan(Toy::values(toy.places[1].weights)[0]));
  for (int u = 2; u < toy.o.units(); ++u) toy.visit(u, 0);  // a gather that nobody joins would outlive the memory
}

TEST(Sharded, refuses_a_unit_that_is_opened_out_of_turn) {
  TestWorld world;
  Toy toy(world, 3, 1, 1, world.size());
  toy.set_own_weights(0);
  toy.strategy->begin_inference();
  EXPECT_THROW(toy.strategy->open(2), std::logic_error);
  EXPECT_THROW(toy.strategy->close(1), std::logic_error);
  toy.strategy->begin_inference();
  for (int u = 0; u < toy.o.units(); ++u) toy.visit(u, 0);
}

struct Starts final : events::Listener {
  Starts() { events::add_listener(*this); }
  ~Starts() override { events::remove_listener(*this); }
  using events::Listener::on;
  void on(const events::CommunicationStart&) override { ++count; }
  int count = 0;
};

TEST(Sharded, starts_nothing_before_a_unit_is_opened) {  // what nobody joins would outlive the memory that it writes
  TestWorld world;
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    Toy toy(world, stage, 1, 1, world.size());
    toy.set_own_weights(0);
    Starts starts;
    toy.strategy->begin_inference();
    toy.strategy->begin_inference();
    EXPECT_EQ(starts.count, 0);
    for (int u = 0; u < toy.o.units(); ++u) toy.visit(u, 0);
    EXPECT_EQ(starts.count, toy.o.units());
  }
}

TEST(Sharded, wants_shards_that_divide_the_ranks) {
  TestWorld world;
  const Ownership o(units_of(1), world.size() + 1);
  EXPECT_THROW(Sharded(world.collectives(), {}, o, std::vector<UnitMemory>(3), {}), std::invalid_argument);
}

}  // namespace
}  // namespace tessera::parallel
