#include "parallel/watch/stream_log.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "kernels/core/tensor.hpp"
#include "kernels/cuda/event.hpp"
#include "kernels/cuda/stream.hpp"
#include "unit/parallel/collectives/hold_up.hpp"

namespace tessera::parallel {
namespace {

using kernels::Device;
using kernels::cuda::Event;
using kernels::cuda::Stream;

/// A log in the recorder of one of two ranks, of transfers that fork off `exec` and join it, as those over NCCL do.
struct Log : ::testing::Test {
  static constexpr std::uint64_t kOfRun = 3;  // transfers, of 100, 200 and 300 bytes

  Log() : recorder(std::make_unique<SharedMemory>(FlightRecorder::bytes_for(1)), 0, 1, 0, 2) {
    lane = recorder.take_lane();
    recorder.give_back(lane);  // for the log to take
    log.emplace(recorder);
    let_go();
  }
  ~Log() override {
    let_go();
    cudaDeviceSynchronize();
    if (replay) cudaGraphExecDestroy(replay);
    if (graph) cudaGraphDestroy(graph);
  }

  void hold() const { set(0); }
  void let_go() const { set(1); }
  void set(int value) const { std::atomic_ref(*flag.data()).store(value); }

  void run() {
    for (std::uint64_t i = 1; i <= kOfRun; ++i) {
      CUDA_CHECK(cudaEventRecord(ready, exec.cuda_stream()));
      CUDA_CHECK(cudaStreamWaitEvent(transfers, ready, 0));
      begun.stamp(transfers);
      log->start(begun, transfers, name, static_cast<std::int64_t>(100 * i));
      hold_up(instance, flag);
      ended.stamp(transfers);
      CUDA_CHECK(cudaEventRecord(done, transfers));
      log->end(ended, transfers);
      CUDA_CHECK(cudaStreamWaitEvent(exec.cuda_stream(), done, 0));
    }
  }

  /// After a run: a capture must not initialise anything.
  void capture() {
    ASSERT_EQ(cudaStreamBeginCapture(exec.cuda_stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    run();
    ASSERT_EQ(cudaStreamEndCapture(exec.cuda_stream(), &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&replay, graph, cudaGraphInstantiateFlagUseNodePriority), cudaSuccess);
  }
  void launch() const { ASSERT_EQ(cudaGraphLaunch(replay, exec.cuda_stream()), cudaSuccess); }

  std::uint64_t started() const { return std::atomic_ref(lane->started).load(); }
  std::uint64_t completed() const { return std::atomic_ref(lane->completed).load(); }
  const FlightRecorder::Entry& entry(std::uint64_t number) const { return lane->ring[number % FlightRecorder::kKept]; }

  void expect_complete(std::uint64_t count) const {
    EXPECT_EQ(started(), count);
    EXPECT_EQ(completed(), count);
    const std::int64_t now_ns = FlightRecorder::now_ns();
    const auto kept = std::min<std::uint64_t>(count, FlightRecorder::kKept);
    for (std::uint64_t n = count - kept + 1; n <= count; ++n) {
      EXPECT_EQ(entry(n).name, name) << n;
      EXPECT_EQ(entry(n).bytes, static_cast<std::int64_t>(100 * ((n - 1) % kOfRun + 1))) << n;
      EXPECT_GE(entry(n).end_ns, entry(n).start_ns) << n;
      EXPECT_LE(entry(n).end_ns, now_ns + 1'000'000) << n;  // the clocks drift apart
      if (n > count - kept + 1) EXPECT_GE(entry(n).start_ns, entry(n - 1).end_ns) << n;
    }
  }

  /// The transfer `number` runs until let_go(): its start is there, its end is not.
  void expect_under_way(std::uint64_t number) const {
    using namespace std::chrono;
    const auto begin = steady_clock::now();
    while (started() < number && steady_clock::now() - begin < seconds(5)) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(started(), number);
    EXPECT_EQ(completed(), number - 1);
    EXPECT_EQ(entry(number).end_ns, 0);
    EXPECT_EQ(cudaStreamQuery(exec.cuda_stream()), cudaErrorNotReady);
  }

  FlightRecorder recorder;
  FlightRecorder::Lane* lane = nullptr;
  const std::uint32_t name = recorder.name("all_reduce[nccl]", "grad.bucket.3");
  Flag flag{"flag"};
  Device exec;
  Stream transfers{kernels::cuda::highest_priority()};
  Device instance{static_cast<cudaStream_t>(transfers)};
  Event ready{cudaEventDisableTiming}, done{cudaEventDisableTiming}, begun, ended;
  std::optional<StreamLog> log;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
};

TEST_F(Log, records_what_is_launched) {
  for (int i = 0; i < 2; ++i) run();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  expect_complete(2 * kOfRun);
}

TEST_F(Log, is_complete_at_the_end_of_every_replay) {
  run();
  exec.fence();
  capture();
  for (std::uint64_t runs = 2; runs <= 50; ++runs) {  // more transfers than the lane keeps
    launch();
    ASSERT_EQ(cudaStreamSynchronize(exec.cuda_stream()), cudaSuccess);
    expect_complete(runs * kOfRun);
  }
}

TEST_F(Log, goes_on_counting_between_launches_and_replays) {
  run();
  capture();
  launch();
  run();
  launch();
  launch();
  run();
  run();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(started(), 7 * kOfRun);
  EXPECT_EQ(completed(), 7 * kOfRun);
}

TEST_F(Log, follows_a_second_capture_and_one_that_failed) {
  run();
  cudaGraph_t discarded = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(exec.cuda_stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  run();
  EXPECT_NE(cudaStreamSynchronize(exec.cuda_stream()), cudaSuccess);  // not allowed there
  EXPECT_NE(cudaStreamEndCapture(exec.cuda_stream(), &discarded), cudaSuccess);
  cudaGetLastError();  // clears it
  run();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  expect_complete(2 * kOfRun);
  capture();
  launch();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  expect_complete(3 * kOfRun);
}

TEST_F(Log, shows_a_transfer_that_does_not_end) {
  run();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  capture();
  hold();
  run();
  expect_under_way(kOfRun + 1);
  let_go();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  expect_complete(2 * kOfRun);
  hold();
  launch();
  expect_under_way(2 * kOfRun + 1);
  let_go();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  expect_complete(3 * kOfRun);
}

TEST_F(Log, is_complete_when_it_has_been_destroyed) {
  run();
  log.reset();
  expect_complete(kOfRun);
}

}  // namespace
}  // namespace tessera::parallel
