#include "memory/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "errors.hpp"

namespace tessera::memory {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::int64_t padded(std::int64_t bytes) {
  return (bytes + Layout::kAlignment - 1) / Layout::kAlignment * Layout::kAlignment;
}

/// Up to 60 tensors over 30 ticks: empty ones, single elements, whole-run ones, moments and long lives.
Layout random_layout(std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<int>(engine() % n); };
  constexpr Dtype dtypes[] = {Dtype::fp64, Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::int32};
  Layout layout;
  const int tensors = 1 + below(60);
  for (int i = 0; i < tensors; ++i) {
    const int first = below(30), last = first + below(8);
    const std::vector<std::int64_t> shape = {below(40), 1 + below(50)};
    layout.add("t" + std::to_string(i), shape, dtypes[below(5)], static_cast<Category>(below(kCategories)),
               below(5) == 0 ? Lifetime::whole_run() : Lifetime{first, last});
  }
  layout.place();
  return layout;
}

/// Whether both live at some tick.
bool meet(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

TEST(Layout, tensors_that_live_at_once_never_overlap) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Layout layout = random_layout(seed);
    const auto& tensors = layout.tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (std::size_t j = i + 1; j < tensors.size(); ++j) {
        const Tensor &a = tensors[i], &b = tensors[j];
        if (!meet(a.lifetime, b.lifetime)) continue;
        EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset)
            << "seed " << seed << ": " << a.label << " at " << a.offset << " + " << a.bytes << ", " << b.label << " at "
            << b.offset << " + " << b.bytes;
      }
    }
  }
}

TEST(Layout, every_tensor_lies_at_the_lowest_offset_that_was_free_when_its_turn_came) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Layout layout = random_layout(seed);
    std::vector<const Tensor*> order;
    for (const Tensor& t : layout.tensors()) order.push_back(&t);
    std::stable_sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
      if (a->lifetime.is_whole_run() != b->lifetime.is_whole_run()) return a->lifetime.is_whole_run();
      return a->lifetime.is_whole_run() ? false : a->bytes > b->bytes;
    });
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::int64_t offset = 0;  // moved up past every conflict until there is none
      for (bool is_free = false; !is_free;) {
        is_free = true;
        for (std::size_t j = 0; j < i && is_free; ++j) {
          const Tensor& other = *order[j];
          const std::int64_t end = other.offset + padded(other.bytes);
          if (!meet(other.lifetime, order[i]->lifetime) || end <= offset) continue;
          if (offset + padded(order[i]->bytes) <= other.offset) continue;
          offset = end;
          is_free = false;
        }
      }
      if (order[i]->bytes == 0) continue;
      EXPECT_EQ(order[i]->offset, offset) << "seed " << seed << ": " << order[i]->label;
    }
  }
}

TEST(Layout, spaces_are_placed_apart_and_the_host_is_no_part_of_the_devices_sums) {
  Layout layout;
  layout.add("x", {256}, Dtype::fp32, Category::activations, {0, 3});
  const TensorId tokens = layout.add("tokens", {64}, Dtype::int32, Category::data, Lifetime::whole_run(), Space::host);
  const TensorId more = layout.add("more", {64}, Dtype::int32, Category::data, {1, 2}, Space::host);
  layout.place();
  EXPECT_EQ(layout[tokens].offset, 0);
  EXPECT_EQ(layout[more].offset, 256);
  EXPECT_EQ(layout.arena_bytes(), 1024);
  EXPECT_EQ(layout.total_bytes(), 1024);
  EXPECT_EQ(layout.arena_bytes(Space::host), 512);
  EXPECT_EQ(layout.peak_by_category()[kCategories], 1024);
  EXPECT_NE(layout.table().find("  on the host         2         512 B"), std::string::npos) << layout.table();
}

TEST(Layout, a_flat_array_is_as_long_as_its_parts) {
  Layout layout;
  const TensorId all =
      layout.add_flat("params", {{"a", 64}, {"b", 128}}, Dtype::bf16, Category::parameters, Lifetime::whole_run());
  EXPECT_EQ(layout[all].count, 192);
  EXPECT_EQ(layout[all].parts[1].label, "b");
}

TEST(Layout, offsets_are_aligned_and_the_arena_ends_with_its_last_tensor) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Layout layout = random_layout(seed);
    std::int64_t end = 0;
    for (const Tensor& t : layout.tensors()) {
      EXPECT_GE(t.offset, 0);
      EXPECT_EQ(t.offset % Layout::kAlignment, 0) << t.label;
      EXPECT_EQ(t.count, t.shape[0] * t.shape[1]);
      EXPECT_EQ(t.bytes, t.count * bytes_of(t.dtype));
      end = std::max(end, t.offset + padded(t.bytes));
    }
    EXPECT_EQ(layout.arena_bytes(), end) << "seed " << seed;
  }
}

TEST(Layout, is_never_smaller_than_what_lives_at_once_and_seldom_much_larger) {
  double used = 0, needed = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Layout layout = random_layout(seed);
    EXPECT_GE(layout.arena_bytes(), layout.peak_by_category()[kCategories]) << "seed " << seed;
    used += static_cast<double>(layout.arena_bytes());
    needed += static_cast<double>(layout.peak_by_category()[kCategories]);
  }
  EXPECT_LT(used, 1.25 * needed);  // about 1.14: padding of small tensors, and gaps
}

TEST(Layout, is_deterministic) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Layout a = random_layout(seed), b = random_layout(seed);
    for (std::size_t i = 0; i < a.tensors().size(); ++i)
      EXPECT_EQ(a[static_cast<int>(i)].offset, b[static_cast<int>(i)].offset);
  }
}

TEST(Layout, tensors_that_never_meet_share_memory) {
  Layout layout;
  const TensorId first = layout.add("first", {256}, Dtype::fp32, Category::activations, {0, 3});
  const TensorId second = layout.add("second", {256}, Dtype::fp32, Category::activations, {4, 6});
  const TensorId both = layout.add("both", {64}, Dtype::fp32, Category::activations, {3, 4});
  layout.place();
  EXPECT_EQ(layout[first].offset, layout[second].offset);
  EXPECT_GE(layout[both].offset, 1024);
  EXPECT_EQ(layout.arena_bytes(), 1024 + 256);
}

TEST(Layout, a_small_tensor_fills_the_gap_below_a_larger_one) {
  Layout layout;
  layout.add("early", {512}, Dtype::fp32, Category::activations, {0, 1});   // 2048 bytes at 0
  layout.add("bridge", {300}, Dtype::fp32, Category::activations, {1, 3});  // meets early: 1200 bytes at 2048
  const TensorId small = layout.add("small", {256}, Dtype::fp32, Category::activations, {2, 3});  // early is gone
  layout.place();
  EXPECT_EQ(layout[small].offset, 0);
}

TEST(Layout, what_lives_for_the_whole_run_lies_at_the_bottom_in_order) {
  Layout layout;
  layout.add("activation", {100000}, Dtype::fp32, Category::activations, {0, 9});
  const TensorId a = layout.add("params", {100}, Dtype::fp32, Category::parameters, Lifetime::whole_run());
  const TensorId b = layout.add("grads", {1000}, Dtype::fp32, Category::gradients, Lifetime::whole_run());
  layout.place();
  EXPECT_EQ(layout[a].offset, 0);
  EXPECT_EQ(layout[b].offset, 512);
}

TEST(Layout, peaks_are_those_of_a_sum_over_every_tick) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Layout layout = random_layout(seed);
    std::vector<std::int64_t> peaks(kCategories + 1, 0);
    for (int tick = 0; tick < 64; ++tick) {  // a lifetime that has ended never begins or ends again
      std::int64_t all = 0;
      for (int category = 0; category < kCategories; ++category) {
        std::int64_t live = 0;
        for (const Tensor& t : layout.tensors()) {
          if (static_cast<int>(t.category) == category && t.lifetime.first <= tick && tick <= t.lifetime.last)
            live += t.bytes;
        }
        peaks[category] = std::max(peaks[category], live);
        all += live;
      }
      peaks[kCategories] = std::max(peaks[kCategories], all);
    }
    EXPECT_EQ(layout.peak_by_category(), peaks) << "seed " << seed;
  }
}

TEST(Layout, table_has_a_row_per_category_and_the_ratio) {
  Layout layout;
  layout.add("params", {1024}, Dtype::fp32, Category::parameters, Lifetime::whole_run());
  layout.add("grads", {1024}, Dtype::fp32, Category::gradients, Lifetime::whole_run());
  layout.add("m", {1024}, Dtype::fp32, Category::optimizer, Lifetime::whole_run());
  layout.add("v", {512}, Dtype::fp32, Category::optimizer, Lifetime::whole_run());
  layout.add("x", {2048}, Dtype::bf16, Category::activations, {0, 1});
  layout.add("y", {2048}, Dtype::bf16, Category::activations, {2, 3});
  layout.place();
  EXPECT_EQ(layout.table(),
            "memory per rank tensors           sum          peak\n"
            "  parameters          1       4.0 KiB       4.0 KiB\n"
            "  gradients           1       4.0 KiB       4.0 KiB\n"
            "  optimizer           2       6.0 KiB       6.0 KiB\n"
            "  activations         2       8.0 KiB       4.0 KiB\n"
            "  arena               6      18.0 KiB      18.0 KiB\n"
            "  parameters : gradients : optimizer = 1 : 1.00 : 1.50\n");
}

TEST(Layout, empty_is_an_empty_arena) {
  Layout layout;
  layout.place();
  EXPECT_EQ(layout.arena_bytes(), 0);
  EXPECT_EQ(layout.peak_by_category(), std::vector<std::int64_t>(kCategories + 1, 0));
}

TEST(Layout, refuses_impossible_shapes_and_additions_after_placement) {
  Layout layout;
  const auto add = [&](std::vector<std::int64_t> shape) {
    layout.add("t", std::move(shape), Dtype::fp32, Category::data, Lifetime::whole_run());
  };
  EXPECT_THROW(add({-1}), std::invalid_argument);
  add({4});
  layout.place();
  EXPECT_THROW(add({4}), std::logic_error);
}

/// The words with which `action` is refused as a fault of the deck.
template <class Action>
std::string refusal_of(const Action& action) {
  try {
    action();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::usage);
    return failure.what();
  }
  return "";
}

TEST(Layout, refuses_a_tensor_of_more_than_64_bits_of_bytes_by_its_name_and_keys) {
  constexpr std::int64_t k = std::int64_t{1} << 30;
  Layout layout;
  const auto add = [&](std::vector<std::int64_t> shape, Dtype dtype, Category category) {
    return refusal_of([&] { layout.add("block.00.scores", std::move(shape), dtype, category, {0, 1}); });
  };
  EXPECT_THAT(add({4096, k, k}, Dtype::fp32, Category::activations),
              AllOf(StartsWith("block.00.scores [4096, 1073741824, 1073741824] of fp32 is more than 64 bits of bytes."),
                    HasSubstr("train.micro_batch_size"), HasSubstr("model.context_length")));
  EXPECT_THAT(add({k, k}, Dtype::fp64, Category::optimizer),
              AllOf(HasSubstr("model.d_model"), ::testing::Not(HasSubstr("context_length"))));
  EXPECT_TRUE(layout.tensors().empty());
  EXPECT_EQ(add({k, k - 1}, Dtype::fp64, Category::optimizer), "");
}

TEST(Layout, refuses_what_is_more_than_64_bits_of_bytes_together) {
  constexpr std::int64_t k = std::int64_t{1} << 30, eib = k * k;
  Layout layout;
  const auto add = [&](std::int64_t bytes, Category category, Lifetime life) {
    return refusal_of([&] { layout.add("x", {bytes / 4}, Dtype::fp32, category, life); });
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(add(2 * eib, Category::optimizer, Lifetime::whole_run()), "");
  EXPECT_EQ(add(eib, Category::activations, {0, 1}), "");
  EXPECT_THAT(add(eib, Category::activations, {2, 3}), HasSubstr("up to x, are together more than 64 bits of bytes"));
  EXPECT_NE(refusal_of([&] { layout.add_outside("pads", eib); }), "");
  layout.add_outside("pads", eib - 512, Space::host);
  layout.place();
  EXPECT_EQ(layout.total_bytes(), 7 * eib);
  EXPECT_EQ(layout.total_bytes() + layout.total_bytes(Space::host), 7 * eib + (eib - 512));
  EXPECT_EQ(layout.peak_by_category()[kCategories], 7 * eib);
  EXPECT_THAT(layout.table(), ::testing::Not(HasSubstr(" -")));
}

TEST(ReadableBytes, chooses_the_unit) {
  EXPECT_EQ(readable_bytes(0), "0 B");
  EXPECT_EQ(readable_bytes(1023), "1023 B");
  EXPECT_EQ(readable_bytes(1024), "1.0 KiB");
  EXPECT_EQ(readable_bytes(12897485), "12.3 MiB");
  EXPECT_EQ(readable_bytes(std::int64_t{3} << 50), "3.0 PiB");
  EXPECT_EQ(readable_bytes(std::int64_t{3} << 60), "3.0 EiB");
  EXPECT_EQ(readable_bytes(0x1p70), "1.0 ZiB");
  EXPECT_EQ(readable_bytes(2.5 * 0x1p80), "2.5 YiB");
  EXPECT_EQ(readable_bytes(0x1p90), "1024.0 YiB");
}

}  // namespace
}  // namespace tessera::memory
