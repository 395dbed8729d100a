#include "parallel/soundness.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parallel/errors.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// As many ranks as there are bandwidths, two on each host, each with a GPU of its own.
std::vector<Place> places_of(const std::vector<double>& gbyte_per_s) {
  std::vector<Place> places;
  for (int rank = 0; rank < static_cast<int>(gbyte_per_s.size()); ++rank) {
    places.push_back({.rank = rank,
                      .host = "node" + std::to_string(rank / 2),
                      .gpu = "NVIDIA H200",
                      .bus_id = std::to_string(rank % 2),
                      .uuid = "GPU-" + std::to_string(rank)});
  }
  return places;
}

std::vector<Soundness> found_of(const std::vector<double>& gbyte_per_s) {
  std::vector<Soundness> found;
  for (const double number : gbyte_per_s) found.push_back({.gbyte_per_s = number});
  return found;
}

std::string unsound(const std::vector<double>& gbyte_per_s) {
  return unsound_ranks(places_of(gbyte_per_s), found_of(gbyte_per_s));
}

TEST(Soundness, lets_equal_and_unmeasured_devices_begin) {
  EXPECT_EQ(unsound({3000}), "");
  EXPECT_EQ(unsound({3000, 2900, 3100, 2200}), "");
  EXPECT_EQ(unsound({0, 0, 0}), "");
  EXPECT_EQ(unsound_ranks({}, {}), "");
}

TEST(Soundness, names_a_slow_gpu_with_host_and_uuid) {
  EXPECT_THAT(
      unsound({3000, 2900, 2000, 3100}),
      AllOf(HasSubstr("the GPU node1: NVIDIA H200 at 0 (GPU-2), rank 2's, is slow: its memory copies 2000 GB/s, "
                      "the ranks' median is 3000\n"),
            HasSubstr("sbatch --exclude"), Not(HasSubstr("GPU-0")), Not(HasSubstr("GPU-1")), Not(HasSubstr("GPU-3"))));
  EXPECT_THAT(unsound({2000, 3000}), AllOf(HasSubstr("GPU-0"), Not(HasSubstr("GPU-1")))) << "of two, the larger counts";
}

TEST(Soundness, compares_gpus_of_one_name_that_nobody_shares) {
  const std::vector<double> numbers{3000, 3000, 1500, 1500};
  std::vector<Place> mixed = places_of(numbers), shared = places_of(numbers);
  mixed[2].gpu = mixed[3].gpu = "NVIDIA A100";
  EXPECT_EQ(unsound_ranks(mixed, found_of(numbers)), "");
  shared[3].bus_id = shared[2].bus_id;
  EXPECT_EQ(unsound_ranks(shared, found_of(numbers)), "");
}

TEST(Soundness, names_whoever_computes_wrongly_and_the_kernel) {
  std::vector<Soundness> found = found_of({3000, 10, 3000});
  found[1].wrong = "gemm of bf16: 1 of 6 sums is wrong";
  EXPECT_THAT(
      unsound_ranks(places_of({0, 0, 0}), found),
      AllOf(HasSubstr("the GPU node0: NVIDIA H200 at 1 (GPU-1), rank 1's, computes wrongly: gemm of bf16: 1 of 6"),
            Not(HasSubstr("is slow"))));
  const std::vector<Place> processors{{.rank = 0, .host = "a"}, {.rank = 1, .host = "b"}};
  EXPECT_THAT(unsound_ranks(processors, std::vector<Soundness>(found.begin(), found.begin() + 2)),
              HasSubstr("the processor of b, rank 1's, computes wrongly"));
}

TEST(Soundness, of_a_thousand_names_the_first_and_counts_the_others) {
  std::vector<Soundness> found(1000);
  for (Soundness& one : found) one.wrong = "gemm";
  EXPECT_THAT(unsound_ranks(places_of(std::vector<double>(1000)), found),
              AllOf(HasSubstr("rank 7's"), Not(HasSubstr("rank 8's")), HasSubstr("and 992 more\n")));
}

TEST(Soundness, of_one_rank_ends_all_alike) {
  test::TestWorld world;
  world.set_places(places_of(std::vector<double>(world.size())));
  EXPECT_NO_THROW(require_sound(world, {.gbyte_per_s = 3000, .took_s = 1.0 + world.rank()}));
  for (const Place& place : world.places()) {
    EXPECT_EQ(place.gbyte_per_s, 3000);
    EXPECT_EQ(place.check_s, 1 + place.rank);
  }
  const int last = world.size() - 1;
  try {
    require_sound(world, {world.rank() == last ? "gemm of bf16: 2 of 6 sums are wrong" : "", 3000});
    FAIL() << "nothing was thrown";
  } catch (const AgreedError& failure) {
    EXPECT_THAT(failure.what(),
                HasSubstr("rank " + std::to_string(last) + "'s, computes wrongly: gemm of bf16: 2 of 6"));
  }
}

}  // namespace
}  // namespace tessera::parallel
