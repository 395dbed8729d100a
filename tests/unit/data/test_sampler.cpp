/// The sampler: every window once per epoch, nothing of the validation part, no dependence on earlier calls.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <iterator>
#include <set>

#include "data/sampler.hpp"
#include "tests/unit/io/scratch.hpp"

namespace tessera::test {
namespace {

using data::Corpus;
using data::Permutation;
using data::Sampler;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// A corpus of `size` tokens, token i being i, so that a row shows where it was read.
class Counting {
 public:
  explicit Counting(std::int64_t size) : corpus_(open(folder_, size)) {}
  const Corpus& corpus() const { return corpus_; }

 private:
  static Corpus open(const ScratchFolder& folder, std::int64_t size) {
    std::vector<std::uint16_t> tokens(static_cast<std::size_t>(size));
    std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
    write_array(folder / "tokens.bin", tokens);
    return Corpus::open(config::DataSource::tokens, (folder / "tokens.bin").string(), 65536, 1);
  }
  ScratchFolder folder_;
  Corpus corpus_;
};

TEST(Permutation, is_a_bijection_for_any_size_and_key) {
  std::vector<std::int64_t> sizes(130);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (const std::int64_t size : {255, 256, 257, 1000, 1023, 1025, 4096, 4097, 65535, 65537, 100'003})
    sizes.push_back(size);
  for (const std::int64_t size : sizes) {
    for (const std::uint64_t key : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
      const Permutation order(size, key);
      std::vector<bool> is_hit(static_cast<std::size_t>(size));
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t image = order(i);
        ASSERT_GE(image, 0);
        ASSERT_LT(image, size);
        ASSERT_FALSE(is_hit[static_cast<std::size_t>(image)]) << "size " << size << ", key " << key << ", index " << i;
        is_hit[static_cast<std::size_t>(image)] = true;
      }
    }
  }
}

TEST(Permutation, shuffles) {
  constexpr std::int64_t size = 100'000;
  const Permutation order(size, 7);
  std::int64_t neighbours = 0, fixed = 0, rising = 0;
  for (std::int64_t i = 1; i < size; ++i) {
    neighbours += std::abs(order(i) - order(i - 1)) == 1;
    fixed += order(i) == i;
    rising += order(i) > order(i - 1);
  }
  EXPECT_LT(neighbours, 20);  // 2 are expected of a random order
  EXPECT_LT(fixed, 12);       // 1 is
  EXPECT_NEAR(static_cast<double>(rising), size / 2.0, 0.01 * size);
}

TEST(Permutation, is_the_same_on_every_platform) {
  const Permutation order(1000, 42);
  EXPECT_THAT((std::vector<std::int64_t>{order(0), order(1), order(2), order(3)}), ElementsAre(504, 348, 32, 160));
}

TEST(Permutation, serves_sizes_beyond_32_bits) {
  const std::int64_t size = (std::int64_t{1} << 40) + 12345;
  const Permutation order(size, 3);
  std::set<std::int64_t> images;
  for (std::int64_t i = 0; i < 1000; ++i) images.insert(order(size - 1 - i));
  EXPECT_EQ(images.size(), 1000u);
  EXPECT_GE(*images.begin(), 0);
  EXPECT_LT(*images.rbegin(), size);
  EXPECT_GT(*images.rbegin(), size / 2);
}

TEST(Sampler, visits_every_window_once_per_epoch_and_never_the_validation_part) {
  for (const std::int64_t size : {33, 40, 64, 65, 100, 1000, 4099}) {
    for (const std::int64_t T : {1, 2, 7, 16}) {
      for (const double fraction : {0.0, 0.1, 0.5}) {
        const Counting counting(size);
        if (static_cast<std::int64_t>(fraction * static_cast<double>(size)) <= T && fraction > 0) continue;
        const Sampler sampler(counting.corpus(), T, fraction, 9);
        const std::int64_t W = sampler.windows_per_epoch(), N = sampler.validation_start(0);
        ASSERT_LE(N - 1 - W * T, std::max<std::int64_t>(2 * T - 2, 0)) << "too much of the corpus sits out an epoch";
        for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
          std::set<std::int64_t> starts;
          for (std::int64_t g = epoch * W; g < (epoch + 1) * W; ++g) starts.insert(sampler.window_start(g));
          ASSERT_EQ(std::ssize(starts), W) << "a window came twice";
          ASSERT_GE(*starts.begin(), 0);
          ASSERT_LE(*starts.rbegin() + T, N - 1) << "a target lies in the validation part";
          ASSERT_EQ(*starts.rbegin() - *starts.begin(), (W - 1) * T) << "windows are not side by side";
        }
      }
    }
  }
}

TEST(Sampler, boundaries_move_and_every_token_is_reached) {
  const Counting counting(200);
  const Sampler sampler(counting.corpus(), 16, 0.1, 9);
  const std::int64_t W = sampler.windows_per_epoch();
  std::set<std::int64_t> offsets, inputs, targets;
  for (std::int64_t epoch = 0; epoch < 300; ++epoch) {
    std::int64_t offset = sampler.validation_start(0);
    for (std::int64_t g = epoch * W; g < (epoch + 1) * W; ++g) {
      const std::int64_t start = sampler.window_start(g);
      offset = std::min(offset, start);
      for (std::int64_t t = 0; t < 16; ++t) inputs.insert(start + t), targets.insert(start + t + 1);
    }
    offsets.insert(offset);
  }
  EXPECT_GE(offsets.size(), 16u);
  EXPECT_EQ(*inputs.begin(), 0);
  EXPECT_EQ(*targets.rbegin(), sampler.validation_start(0) - 1);
  EXPECT_EQ(std::ssize(inputs), sampler.validation_start(0) - 1);
  EXPECT_EQ(std::ssize(targets), sampler.validation_start(0) - 1);
}

TEST(Sampler, order_changes_with_epoch_and_seed_but_not_with_the_caller) {
  const Counting counting(5000);
  const auto order = [&](std::uint64_t seed, std::int64_t epoch) {
    const Sampler sampler(counting.corpus(), 8, 0.1, seed);
    std::vector<std::int64_t> starts;
    for (std::int64_t i = 0; i < 100; ++i)
      starts.push_back(sampler.window_start(epoch * sampler.windows_per_epoch() + i));
    return starts;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
}

TEST(Sampler, rows_hold_the_window_and_the_target_after_it) {
  const Counting counting(1000);
  const Sampler sampler(counting.corpus(), 8, 0.1, 1);
  std::vector<std::int32_t> row(9);
  for (const std::int64_t g : {0, 5, 100, 1'000'000}) {
    sampler.fill(g, row);
    for (std::int32_t t = 0; t <= 8; ++t) EXPECT_EQ(row[static_cast<std::size_t>(t)], sampler.window_start(g) + t);
  }
  std::vector<std::int32_t> short_row(8);
  EXPECT_THROW(sampler.fill(0, short_row), std::invalid_argument);
}

TEST(Sampler, validation_windows_are_fixed_in_order_and_apart_from_training) {
  const Counting counting(1000);
  const Sampler sampler(counting.corpus(), 16, 0.1, 1);
  EXPECT_EQ(sampler.validation_start(0), 900);
  EXPECT_EQ(sampler.validation_windows(), 6);  // 99 targets
  std::vector<std::int32_t> row(17);
  for (std::int64_t i = 0; i < 6; ++i) {
    sampler.fill_validation(i, row);
    EXPECT_EQ(row.front(), 900 + 16 * i);
    EXPECT_EQ(row.back(), 916 + 16 * i);
  }
  EXPECT_THROW(sampler.fill_validation(6, row), std::invalid_argument);
  EXPECT_EQ(Sampler(counting.corpus(), 16, 0.0, 1).validation_windows(), 0);
}

TEST(Sampler, leaves_out_what_it_is_told_to) {
  const Counting counting(1000);
  Sampler sampler(counting.corpus(), 16, 0.0, 1);
  std::set<std::int64_t> left_out;
  const auto leave_out = [&](std::int64_t first, std::int64_t end) {
    sampler.leave_out(first, end);
    for (; first < end; ++first) left_out.insert(first);
  };
  const auto expect_same_order = [&] {
    for (std::int64_t first = 0; first < 40; ++first) {
      ASSERT_EQ(sampler.left_out_before(first), std::distance(left_out.begin(), left_out.lower_bound(first)));
      std::int64_t sample = first;
      for (std::int64_t n = 0; n < 40; ++n, ++sample) {
        while (left_out.contains(sample)) ++sample;
        ASSERT_EQ(sampler.after(first, n), sample) << n << " after " << first;
      }
    }
  };
  expect_same_order();
  for (const auto& [first, end] :
       {std::pair{20, 28}, {4, 5}, {28, 30}, {9, 12}, {8, 14}}) {  // the last one holds 9..11
    leave_out(first, end);
    expect_same_order();
  }
  EXPECT_EQ(sampler.left_out().size(), 4u);
  for (const auto& [first, end] : {std::pair{10, 12}, {2, 9}, {19, 29}}) {  // a resume on other batches makes these
    leave_out(first, end);
    expect_same_order();
  }
  EXPECT_EQ(sampler.left_out().size(), 2u);
}

TEST(Sampler, smallest_corpus_is_one_window) {
  const Counting counting(9);
  const Sampler sampler(counting.corpus(), 8, 0.0, 1);
  EXPECT_EQ(sampler.windows_per_epoch(), 1);
  for (std::int64_t g = 0; g < 5; ++g) EXPECT_EQ(sampler.window_start(g), 0);
}

TEST(Sampler, too_short_is_refused_with_the_sizes) {
  const Counting tiny(8), small(40);
  EXPECT_THAT(failure_of([&] { Sampler(tiny.corpus(), 8, 0.0, 1); }),
              AllOf(HasSubstr("tokens.bin"), HasSubstr("training part has 8 of 8 tokens"), HasSubstr("needs 9"),
                    HasSubstr("model.context_length 8")));
  EXPECT_THAT(failure_of([&] { Sampler(small.corpus(), 8, 0.2, 1); }),
              AllOf(HasSubstr("validation part has 8 of 40 tokens"), HasSubstr("data.validation_fraction = 0.2"),
                    HasSubstr("needs 9")));
}

}  // namespace
}  // namespace tessera::test
