#include "memory/arena.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>

#include "errors.hpp"
#include "kernels/core/kernel_timer.hpp"
#include "kernels/core/tensor.hpp"
#include "unit/io/scratch.hpp"

namespace tessera::memory {
namespace {

using kernels::Device;
using ::testing::HasSubstr;
using ::testing::Not;

struct ArenaTest : ::testing::Test {
  Layout layout;
  TensorId fp32 = layout.add("a.float", {7}, Dtype::fp32, Category::parameters, Lifetime::whole_run());
  TensorId fp64 = layout.add("a.double", {3, 5}, Dtype::fp64, Category::workspace, {0, 4});
  TensorId bf16 = layout.add("a.bfloat", {11}, Dtype::bf16, Category::activations, {5, 6});
  TensorId fp16 = layout.add("a.half", {11}, Dtype::fp16, Category::activations, {5, 6});
  TensorId ints = layout.add("an.int", {2}, Dtype::int32, Category::data, Lifetime::whole_run());
  ArenaTest() { layout.place(); }
};

template <class Scalar>
std::vector<Scalar> content(const Arena& arena, TensorId id) {
  const std::int64_t count = arena.layout()[id].count;
  const auto host = Kokkos::create_mirror_view_and_copy(
      Kokkos::HostSpace(), kernels::Vector<Scalar, Device>(arena.template data<Scalar>(id), count));
  return {host.data(), host.data() + count};
}

TEST_F(ArenaTest, new_memory_is_not_a_number_in_every_dtype) {
  const Arena arena(layout);
  for (const float x : content<float>(arena, fp32)) EXPECT_TRUE(std::isnan(x));
  for (const double x : content<double>(arena, fp64)) EXPECT_TRUE(std::isnan(x));
  for (const bfloat16 x : content<bfloat16>(arena, bf16)) EXPECT_TRUE(std::isnan(static_cast<float>(x)));
  for (const float16 x : content<float16>(arena, fp16)) EXPECT_TRUE(std::isnan(static_cast<float>(x)));
  for (const std::int32_t i : content<std::int32_t>(arena, ints)) EXPECT_EQ(i, -1);
}

TEST_F(ArenaTest, hands_out_the_places_of_the_layout) {
  const Arena arena(layout);
  const auto* base = reinterpret_cast<const unsigned char*>(arena.data<float>(fp32)) - layout[fp32].offset;
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(arena.data<double>(fp64)) - base, layout[fp64].offset);
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(arena.data<bfloat16>(bf16)) - base, layout[bf16].offset);
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(arena.data<std::int32_t>(ints)) - base, layout[ints].offset);
  EXPECT_EQ(arena.data<float>(kAbsent), nullptr);
}

TEST_F(ArenaTest, refuses_another_dtype_by_name) {
  const Arena arena(layout);
  EXPECT_THROW(arena.data<double>(fp32), std::logic_error);
  EXPECT_THROW(arena.data<float16>(bf16), std::logic_error);
  EXPECT_THROW(arena.data<float>(ints), std::logic_error);
  try {
    arena.data<float>(fp64);
    FAIL() << "was not refused";
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a.double"));
  }
}

TEST_F(ArenaTest, is_one_allocation) {
  kernels::KernelTimer timer;
  timer.start();
  const Arena arena(layout);
  arena.data<float>(fp32);
  timer.stop();
  EXPECT_EQ(timer.counts().allocations, 1);
}

TEST(ArenaThatDoesNotFit, is_out_of_memory_with_the_table_and_what_needs_less_in_its_space) {
  for (const Space space : {Space::device, Space::host}) {
    Layout layout;
    layout.add("a.giant", {std::int64_t{1} << 46}, Dtype::fp32, Category::parameters, Lifetime::whole_run(), space);
    layout.place();
    try {
      const Arena arena(layout);
      FAIL() << "2^48 bytes were allocated";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), Exit::out_of_memory);
      EXPECT_THAT(failure.what(), HasSubstr("memory per rank"));
      const bool is_device = space == Space::device;
      EXPECT_THAT(failure.what(), HasSubstr(is_device ? "train.micro_batch_size" : "parallel.offload"));
      EXPECT_THAT(failure.what(), Not(HasSubstr(is_device ? "parallel.offload" : "train.micro_batch_size")));
    }
  }
}

TEST(ExitCode, of_an_exception_is_its_own_or_what_its_words_mean) {
  EXPECT_EQ(exit_of(Failure(Exit::files, "out of memory")), Exit::files);
  EXPECT_EQ(exit_of(std::bad_alloc()), Exit::out_of_memory);
  EXPECT_EQ(exit_of(std::runtime_error("Kokkos ERROR: Cuda memory space failed to allocate 1 TiB (label=\"x\").")),
            Exit::out_of_memory);
  EXPECT_EQ(exit_of(std::runtime_error("CUDA graph: instantiating: out of memory")), Exit::out_of_memory);
  EXPECT_EQ(exit_of(std::runtime_error("gemm: cublasLtCreate: CUBLAS_STATUS_ALLOC_FAILED")), Exit::out_of_memory);
  const char* of_nccl = "connecting: unhandled cuda error (Failed to CUDA calloc 4194304 bytes)";
  EXPECT_EQ(exit_of(std::runtime_error(of_nccl)), Exit::out_of_memory);
  EXPECT_EQ(exit_of(std::runtime_error("no such device")), Exit::environment);
}

TEST(HostMemory, available_is_plausible) {
  const std::int64_t bytes = available_host_bytes();  // for one rank
  EXPECT_GT(bytes, std::int64_t{1} << 20);            // this test runs
  EXPECT_LT(bytes, std::int64_t{1} << 50);            // less than a pebibyte: "no limit" is not taken for a number
}

/// A machine as its files describe it.
struct Machine {
  test::ScratchFolder folder;
  Machine(const std::string& membership, std::int64_t available_kib) {
    file("proc/meminfo", "MemTotal:       99999999 kB\nMemFree:          111111 kB\nMemAvailable:   " +
                             std::to_string(available_kib) + " kB\nHugePages_Total:       0\n");
    file("proc/self/cgroup", membership);
  }
  void file(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((folder / name).parent_path());
    test::write_bytes(folder / name, content);
  }
  std::int64_t available() const { return host_memory(folder.path()).shared; }
};

TEST(HostMemory, without_control_groups_is_what_the_system_has) {
  EXPECT_EQ(Machine("", 4096).available(), 4096 * 1024);
  EXPECT_EQ(Machine("0::/\n", 4096).available(), 4096 * 1024);
  EXPECT_EQ(Machine("5:cpu,cpuacct:/\n1:name=systemd:/\n", 4096).available(), 4096 * 1024);
}

TEST(HostMemory, a_group_leaves_its_limit_less_what_is_in_use_but_for_file_cache) {
  const Machine v2("0::/job/step\n", 1 << 20);
  v2.file("sys/fs/cgroup/job/step/memory.max", "1000000\n");
  v2.file("sys/fs/cgroup/job/step/memory.current", "700000\n");
  EXPECT_EQ(v2.available(), 300000);
  v2.file("sys/fs/cgroup/job/step/memory.stat", "anon 100000\nfile 600000\nactive_file 0\ninactive_file 600000\n");
  EXPECT_EQ(v2.available(), 900000);

  const Machine v1("9:memory:/docker/7\n", 1 << 20);  // which the container does not see under its mount
  v1.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
  v1.file("sys/fs/cgroup/memory/memory.usage_in_bytes", "700000\n");
  v1.file("sys/fs/cgroup/memory/memory.stat", "cache 600000\ninactive_file 3\ntotal_inactive_file 500000\n");
  EXPECT_EQ(v1.available(), 800000);
}

TEST(HostMemory, the_groups_above_have_a_say_and_max_has_none) {
  const Machine machine("0::/slurm/job_1/step_0\n", 1 << 20);
  machine.file("sys/fs/cgroup/slurm/job_1/step_0/memory.max", "max\n");
  machine.file("sys/fs/cgroup/slurm/job_1/memory.max", "5000000\n");
  machine.file("sys/fs/cgroup/slurm/memory.max", "9000000\n");
  EXPECT_EQ(machine.available(), 5000000);
  machine.file("sys/fs/cgroup/slurm/memory.max", "4000000\n");
  machine.file("sys/fs/cgroup/slurm/memory.current", "5000000\n");
  EXPECT_EQ(machine.available(), 0);  // not a negative number
}

TEST(HostMemory, ranks_divide_what_is_shared_and_each_leaves_room_for_its_libraries) {
  constexpr std::int64_t kGib = std::int64_t{1} << 30;
  const HostMemory unlimited{.shared = 12 * kGib, .own = std::numeric_limits<std::int64_t>::max()};
  EXPECT_EQ(unlimited.of_each(1), 12 * kGib - kLibraryBytes);
  EXPECT_EQ(unlimited.of_each(3), 4 * kGib - kLibraryBytes);
  const HostMemory limited{.shared = 12 * kGib, .own = 4 * kGib};
  EXPECT_EQ(limited.of_each(2), 4 * kGib - kLibraryBytes) << "a limit of each process is not divided";
  EXPECT_EQ(limited.of_each(6), 2 * kGib - kLibraryBytes);
  EXPECT_EQ((HostMemory{.shared = kLibraryBytes / 2, .own = kGib}.of_each(1)), 0) << "not a negative number";
}

/// A plan of 310 MiB in a control group of 330 MiB, of which the process has taken 12 MB, was once accepted and killed.
TEST(HostMemory, a_plan_that_leaves_libraries_no_room_in_its_group_does_not_fit) {
  const Machine machine("0::/job\n", 1 << 20);
  machine.file("sys/fs/cgroup/job/memory.max", std::to_string(330LL << 20) + "\n");
  machine.file("sys/fs/cgroup/job/memory.current", "12000000\n");
  EXPECT_LT(host_memory(machine.folder.path()).of_each(1), std::int64_t{310} << 20);
  EXPECT_GT(host_memory(machine.folder.path()).of_each(1), std::int64_t{200} << 20);
}

TEST(HostMemory, limits_of_the_process_leave_what_it_has_not_taken) {
  const Machine machine("", 1 << 20);
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  machine.file("proc/self/statm", "1000 200 100 50 0 300 0\n");
  const auto left = [&](decltype(RLIMIT_AS) resource, std::int64_t bytes) {
    rlimit before{};
    ::getrlimit(resource, &before);
    const rlimit limit{static_cast<rlim_t>(bytes), before.rlim_max};
    ::setrlimit(resource, &limit);
    const std::int64_t own = host_memory(machine.folder.path()).own;
    ::setrlimit(resource, &before);
    return own;
  };
  constexpr std::int64_t kLimit = std::int64_t{1} << 46;  // far above what this test has
  EXPECT_EQ(left(RLIMIT_AS, kLimit), kLimit - 1000 * page);
  EXPECT_EQ(left(RLIMIT_DATA, kLimit), kLimit - 300 * page);
}

TEST(HostMemory, too_large_a_layout_fails_with_the_table_and_the_advice) {
  Layout layout;
  layout.add("params", {std::int64_t{1} << 50}, Dtype::fp32, Category::parameters, Lifetime::whole_run());
  layout.place();
  try {
    require_host_memory(layout, 3, "try a smaller one");
    FAIL() << "4 PiB were accepted";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::out_of_memory);
    EXPECT_EQ(static_cast<int>(failure.code()), 4);
    EXPECT_THAT(failure.what(), HasSubstr("12.0 PiB"));
    EXPECT_THAT(failure.what(), HasSubstr("(3 ranks x 4.0 PiB)"));
    EXPECT_THAT(failure.what(), HasSubstr(layout.table()));
    EXPECT_THAT(failure.what(), ::testing::EndsWith("try a smaller one"));
  }
}

TEST(HostMemory, counts_the_ranks_of_the_host) {
  Layout layout;  // half of the available memory fits once, not ten times
  layout.add("params", {host_memory().shared / 8}, Dtype::fp32, Category::parameters, Lifetime::whole_run());
  layout.place();
  EXPECT_NO_THROW(require_host_memory(layout, 1, ""));
  EXPECT_THROW(require_host_memory(layout, 10, ""), Failure);
}

}  // namespace
}  // namespace tessera::memory
