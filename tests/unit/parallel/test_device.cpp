#include "parallel/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include <csignal>
#include <cstdlib>
#include <stdexcept>

#include "kernels/cuda/target.hpp"
#include "kernels/core/device_info.hpp"
#include "parallel/errors.hpp"
#include "support/buffer.hpp"

namespace tessera::parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Device, of_a_rank_is_its_local_rank_round_those_there_are) {
  EXPECT_EQ(choose_device(0, 4), 0);
  EXPECT_EQ(choose_device(3, 4), 3);
  EXPECT_EQ(choose_device(1, 8), 1);
  EXPECT_EQ(choose_device(2, 2), 0);
  EXPECT_EQ(choose_device(3, 0), -1);
}

/// Of ranks 0, 1, ... on hosts of one letter, each with the GPU of this bus id; "": none.
std::vector<Place> places_of(const std::string& hosts, const std::vector<std::string>& bus_ids) {
  std::vector<Place> places;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    places.push_back({.rank = static_cast<int>(i), .host = hosts.substr(i, 1)});
    if (!bus_ids[i].empty()) places.back().gpu = "NVIDIA H200";
    places.back().bus_id = bus_ids[i];
  }
  return places;
}

TEST(Device, is_shared_only_when_allowed) {
  EXPECT_FALSE(check_sharing(places_of("aab", {"0", "1", "0"}), false));
  EXPECT_FALSE(check_sharing(places_of("aab", {"", "", ""}), false));  // none at all
  const std::vector<Place> shared = places_of("aaa", {"0", "1", "0"});
  EXPECT_TRUE(check_sharing(shared, true));
  try {
    check_sharing(shared, false);
    FAIL() << "nothing was thrown";
  } catch (const EnvironmentError& failure) {
    EXPECT_THAT(failure.what(), AllOf(HasSubstr("ranks 0, 2 would share the GPU a: NVIDIA H200 at 0\n"),
                                      HasSubstr("parallel.allow_shared_device=true")));
  }
}

TEST(Places, count_devices_that_several_ranks_share_once) {
  EXPECT_EQ(count_devices(places_of("aab", {"0", "1", "0"})), 3);
  const std::vector<Place> shared = places_of("aaa", {"0", "1", "0"}), none = places_of("ab", {"", ""});
  EXPECT_EQ(count_devices(shared), 2);
  EXPECT_EQ(count_ranks_on_device(shared, shared[0]), 2);
  EXPECT_EQ(count_ranks_on_device(shared, shared[1]), 1);
  EXPECT_EQ(count_devices(none), 0);
  EXPECT_EQ(count_ranks_on_device(none, none[0]), 1);
}

TEST(Places, are_sentences_for_people) {
  const std::vector<Place> places = places_of("bab", {"0", "0", "1"});
  EXPECT_EQ(hosts_text(places), "a: 1 rank, b: 2 ranks");
  EXPECT_EQ(devices_text(places),
            "rank 0 on b: NVIDIA H200 at 0; rank 1 on a: NVIDIA H200 at 0; rank 2 on b: NVIDIA H200 at 1");
  EXPECT_EQ(devices_text(places_of("ab", {"", ""})), "");
}

TEST(Device, runs_code_of_its_own_architecture) {
  EXPECT_EQ(architecture_fault("90a", 9, 0, "H200"), "");
  EXPECT_EQ(architecture_fault("80", 8, 0, "A100"), "");
  EXPECT_EQ(architecture_fault("80", 8, 6, "A40"), "");
}

TEST(Device, that_cannot_run_the_code_is_named_with_the_build_that_it_can) {
  EXPECT_THAT(architecture_fault("90a", 8, 0, "A100"),
              AllOf(HasSubstr("A100 has compute capability 8.0"), HasSubstr("code only for sm_90a"),
                    HasSubstr("scripts/build cuda-ampere80")));
  EXPECT_THAT(architecture_fault("80", 9, 0, "H200"), HasSubstr("build with the preset cuda (scripts/build cuda)"));
  EXPECT_THAT(architecture_fault("90a", 10, 0, "B200"), HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(architecture_fault("90a", 12, 0, "RTX"), HasSubstr("8.0 to 9.0"));
  EXPECT_THAT(architecture_fault("86", 8, 0, "A100"), HasSubstr("code only for sm_86"));
}

TEST(Device, memory_is_told_from_the_hosts) {
  const test::Buffer<float> buffer = test::Buffer<float>::zeros(4);
  const float on_host = 0;
  EXPECT_EQ(kernels::is_device_memory(buffer.data()), !kernels::kIsHost<kernels::Device>);
  EXPECT_EQ(kernels::is_device_memory(&on_host), kernels::kHere.is_portable);  // Kokkos cannot tell
  EXPECT_FALSE(kernels::is_device_memory(nullptr));
}

void write_nowhere() {
  double* volatile hidden = reinterpret_cast<double*>(0x10);  // the compiler would see through it
  double* const nowhere = hidden;
  Kokkos::parallel_for(
      "tessera::test::write_nowhere", Kokkos::RangePolicy<kernels::Device>(0, 32),
      KOKKOS_LAMBDA(int i) { nowhere[i] = 1; });
}

using Memory = Kokkos::View<double*, kernels::Device>;

struct FaultExitDeath : ::testing::Test {
  void SetUp() override {
    if (!kernels::kHere.has_vendor_parts()) GTEST_SKIP() << "only the vendor's library tells of a GPU that fails";
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";  // a process of its own, which may lose its GPU
  }
};

TEST_F(FaultExitDeath, ends_with_7_where_kokkos_meets_the_fault) {
  EXPECT_EXIT(
      {
        const FaultExit fault_exit(3, 7);
        write_nowhere();
        Kokkos::fence();
      },
      ::testing::ExitedWithCode(7), "rank 3: its GPU is lost: an illegal memory access(.|\n)*--resume auto");
}

TEST_F(FaultExitDeath, ends_with_7_where_an_exception_gives_memory_back) {
  EXPECT_EXIT(
      {
        const FaultExit fault_exit(3, 7);
        try {
          const Memory memory("tessera::test::memory", 1000);
          write_nowhere();
          while (device_fault().empty()) continue;
          throw std::runtime_error("what the code noticed");
        } catch (const std::runtime_error&) {
          std::_Exit(0);
        }
      },
      ::testing::ExitedWithCode(7), "rank 3: its GPU is lost");
}

TEST_F(FaultExitDeath, leaves_every_other_abort_alone) {
  EXPECT_EXIT(
      {
        const FaultExit fault_exit(3, 7);
        std::abort();
      },
      ::testing::KilledBySignal(SIGABRT), "");
}

/// malloc finds this damage while it holds its lock: any allocation during the exit deadlocks.
TEST_F(FaultExitDeath, lets_the_abort_of_a_damaged_heap_end_the_process_at_once) {
  EXPECT_EXIT(
      {
        const FaultExit fault_exit(3, 7);
        auto* const freed = static_cast<std::size_t*>(std::malloc(5000));
        volatile std::size_t* volatile size_of_freed = freed - 1;  // glibc's: the compiler must not see through it
        void* volatile behind = std::malloc(5000);                 // so that it stays a piece of its own
        std::free(freed);
        *size_of_freed = 1;
        void* volatile meets_it = std::malloc(4000);
        static_cast<void>(behind);
        static_cast<void>(meets_it);
      },
      ::testing::KilledBySignal(SIGABRT), "malloc\\(\\): invalid size");
}

TEST(Device, without_a_fault_says_so) { EXPECT_EQ(device_fault(), ""); }

TEST(Device, is_there_where_the_build_has_a_backend) {
  EXPECT_EQ(visible_devices() > 0, has_gpu_backend());
  EXPECT_EQ(compiled_architecture().empty(), !has_gpu_backend());
}

}  // namespace
}  // namespace tessera::parallel
