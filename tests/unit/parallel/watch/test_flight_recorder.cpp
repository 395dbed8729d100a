#include "parallel/watch/flight_recorder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tessera::parallel {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNever_s = 1e9;

/// Recorders of the ranks of one host, which in this test are one process.
struct Host {
  explicit Host(int local_ranks, int ranks = 0) {
    const std::size_t bytes = FlightRecorder::bytes_for(local_ranks);
    auto first = std::make_unique<SharedMemory>(bytes);
    const SharedMemory::Address address = first->address();
    for (int rank = 0; rank < local_ranks; ++rank) {
      auto memory = rank == 0 ? std::move(first) : std::make_unique<SharedMemory>(bytes, address);
      EXPECT_EQ(memory->fault(), "");
      recorders.push_back(
          std::make_unique<FlightRecorder>(std::move(memory), rank, local_ranks, rank, std::max(ranks, local_ranks)));
    }
  }
  FlightRecorder& operator[](int rank) { return *recorders[rank]; }

  std::vector<std::unique_ptr<FlightRecorder>> recorders;
};

std::uint64_t begin(FlightRecorder& recorder, const std::string& label = "grad.bucket.0") {
  return recorder.begin(recorder.name("all_reduce[mpi]", label), 1200);
}
void transfer(FlightRecorder& recorder, int times = 1) {
  for (int i = 0; i < times; ++i) recorder.end(begin(recorder));
}

TEST(FlightRecorder, names_are_the_same_for_the_same_words) {
  FlightRecorder recorder;
  const auto a = recorder.name("all_reduce[mpi]", "grad.bucket.0");
  EXPECT_NE(recorder.name("all_reduce[mpi]", "grad.bucket.1"), a);
  EXPECT_NE(recorder.name("all_gather[mpi]", "grad.bucket.0"), a);
  EXPECT_EQ(recorder.name("all_reduce[mpi]", "grad.bucket.0"), a);
}

TEST(FlightRecorder, lists_what_is_under_way_before_what_is_over) {
  FlightRecorder recorder;
  transfer(recorder, 3);
  begin(recorder, "grad.bucket.7");
  const std::vector<std::string> lines = recorder.report(kNever_s);
  const auto line_with = [&](const std::string& words) {
    return std::find_if(lines.begin(), lines.end(),
                        [&](const std::string& line) { return line.find(words) != std::string::npos; });
  };
  EXPECT_THAT(*line_with("under way, and the last"), HasSubstr("its transfers"));
  EXPECT_THAT(*line_with("#4 "), AllOf(HasSubstr("all_reduce[mpi] of grad.bucket.7 (1200 bytes), started"),
                                       HasSubstr("s ago, under way")));
  EXPECT_THAT(*line_with("#3 "), ContainsRegex("grad.bucket.0 .*, ended [0-9.]+ s ago after [0-9.]+ ms"));
  EXPECT_LT(line_with("#4 "), line_with("#1 "));
  EXPECT_LT(line_with("#1 "), line_with("#3 "));
}

TEST(FlightRecorder, keeps_the_last_ones_when_the_ring_wraps) {
  FlightRecorder recorder;
  transfer(recorder, 3 * FlightRecorder::kKept + 5);
  const std::string last = "#" + std::to_string(3 * FlightRecorder::kKept + 5) + " ";
  EXPECT_THAT(recorder.report(kNever_s), Contains(HasSubstr(last)));
  EXPECT_THAT(recorder.report(kNever_s), Each(Not(HasSubstr("#1 "))));
  EXPECT_THAT(recorder.report(kNever_s), Each(Not(HasSubstr(", under way"))));
}

TEST(FlightRecorder, the_end_of_one_that_the_ring_has_lost_ends_no_other) {
  FlightRecorder recorder;
  const std::uint64_t old = begin(recorder);
  for (int i = 1; i < FlightRecorder::kKept; ++i) transfer(recorder);
  begin(recorder, "grad.bucket.9");  // takes its place
  recorder.end(old);
  EXPECT_THAT(recorder.report(kNever_s), Contains(AllOf(HasSubstr("grad.bucket.9"), HasSubstr(", under way"))));
}

TEST(FlightRecorder, names_the_rank_that_is_behind_and_what_waits_for_it) {
  Host host(3);
  for (int rank = 0; rank < 3; ++rank) transfer(host[rank], 417);
  for (const int rank : {0, 1}) begin(host[rank], "grad.bucket.3");
  EXPECT_THAT(host[0].report(kNever_s)[0],
              ContainsRegex("^rank 2 is behind: it has started 417 transfers, the others 418; waiting for it: "
                            "all_reduce\\[mpi\\] of grad.bucket.3 \\(1200 bytes\\), for [0-9.]+ s$"));
  EXPECT_EQ(host[2].report(kNever_s)[0], "rank 2, this one, is behind: it has started 417 transfers, the others 418");
}

TEST(FlightRecorder, names_all_that_are_behind) {
  Host host(3);
  transfer(host[0], 2);
  begin(host[0], "grad.bucket.3");
  transfer(host[1]);
  const std::vector<std::string> lines = host[0].report(kNever_s);
  EXPECT_THAT(lines[0], HasSubstr("rank 1 is behind: it has started 1 transfers, the foremost 3; waiting for it: "));
  EXPECT_THAT(lines[1], HasSubstr("rank 2 is behind: it has started 0 transfers, the foremost 3; waiting for it: "));
}

TEST(FlightRecorder, names_the_rank_that_has_completed_less_where_all_have_started) {
  Host host(2);
  transfer(host[0]);
  begin(host[1]);
  EXPECT_THAT(host[0].report(kNever_s),
              Contains(HasSubstr("rank 1 is behind: it has completed 0 transfers, the others 1")));
}

TEST(FlightRecorder, says_when_no_rank_is_behind) {
  Host host(2);
  for (int rank = 0; rank < 2; ++rank) transfer(host[rank], 3), begin(host[rank]);
  EXPECT_EQ(host[0].report(kNever_s)[0], "no rank of this host is behind: each has started 4 transfers");
}

TEST(FlightRecorder, names_a_rank_without_signs_of_life) {
  Host host(3);
  for (int rank = 0; rank < 3; ++rank) begin(host[rank], "grad.bucket.3");
  EXPECT_THAT(host[0].report(0), Each(Not(HasSubstr("sign of life"))));  // none has ever given one
  host[0].beat();
  host[1].beat();
  host[2].beat();
  host[2].rest();  // in good order
  EXPECT_THAT(host[0].report(0)[0],
              ContainsRegex("^rank 1 has given no sign of life for [0-9.]+ s: it is stopped, or its process is gone; "
                            "waiting for it: all_reduce\\[mpi\\] of grad.bucket.3"));
  EXPECT_THAT(host[0].report(0), Each(Not(HasSubstr("rank 2 has"))));
  EXPECT_THAT(host[0].report(kNever_s), Each(Not(HasSubstr("sign of life"))));
}

TEST(FlightRecorder, lanes_of_streams_are_compared_each_with_its_own) {
  Host host(2);
  FlightRecorder::Lane* lanes[2];
  for (int rank = 0; rank < 2; ++rank) lanes[rank] = host[rank].take_lane();
  transfer(host[0]);
  transfer(host[1]);
  const auto name = host[0].name("all_gather[nccl]", "params.block.01");
  lanes[0]->ring[1] = {FlightRecorder::now_ns(), 0, 64, name};
  lanes[0]->started = 1;  // as a stream writes it
  EXPECT_THAT(host[0].report(kNever_s)[0],
              HasSubstr("rank 1 is behind: it has started 0 transfers on stream 1, the others 1; waiting for it: "
                        "all_gather[nccl] of params.block.01 (64 bytes)"));
}

TEST(FlightRecorder, has_lanes_until_they_are_taken) {
  FlightRecorder recorder;
  std::vector<FlightRecorder::Lane*> lanes;
  for (int i = 1; i < FlightRecorder::kLanes; ++i) lanes.push_back(recorder.take_lane());
  EXPECT_THAT(lanes, Each(Not(nullptr)));
  EXPECT_EQ(recorder.take_lane(), nullptr);
  recorder.give_back(nullptr);
  recorder.give_back(lanes[1]);
  EXPECT_EQ(recorder.take_lane(), lanes[1]);
}

TEST(FlightRecorder, says_that_ranks_of_other_hosts_are_not_seen) {
  Host host(2, 8);
  EXPECT_THAT(host[0].report(kNever_s), Contains(HasSubstr("6 of 8 ranks, those of other hosts, are not visible")));
}

TEST(FlightRecorder, says_why_the_other_ranks_are_not_seen) {
  auto nowhere = std::make_unique<SharedMemory>(FlightRecorder::bytes_for(2), SharedMemory::Address{});
  FlightRecorder recorder(std::move(nowhere), 1, 2, 1, 2);
  transfer(recorder);
  EXPECT_THAT(recorder.report(kNever_s), Contains(HasSubstr("not visible here: the process that creates")));
}

TEST(FlightRecorder, says_why_a_streams_transfers_are_not_recorded) {
  FlightRecorder recorder;
  EXPECT_THAT(recorder.report(kNever_s), Each(Not(HasSubstr("not recorded"))));
  recorder.explain("cudaHostRegister: out of memory");
  EXPECT_THAT(recorder.report(kNever_s), Contains(HasSubstr("not recorded: cudaHostRegister: out of memory")));
}

TEST(FlightRecorder, is_read_whole_while_it_is_written) {
  FlightRecorder recorder;
  std::atomic<bool> is_over = false;
  std::atomic<int> reports = 0;
  std::thread reader([&] {
    while (!is_over || reports == 0) {
      for (const std::string& line : recorder.report(kNever_s)) {
        // Labels and bytes go together: number n has label n % 7 and as many bytes.
        const std::size_t at = line.find("label.");
        if (at == std::string::npos) continue;
        EXPECT_EQ(line.substr(at + 6, 1) + " bytes", line.substr(at + 9, 7)) << line;
        const auto number = std::stoull(line.substr(line.find('#') + 1));
        EXPECT_EQ(line[at + 6], static_cast<char>('0' + number % 7)) << line;
      }
      ++reports;
    }
  });
  std::vector<std::uint32_t> names;
  for (int i = 0; i < 7; ++i) names.push_back(recorder.name("sum", "label." + std::to_string(i)));
  for (std::uint64_t n = 1; n < 300'000 || reports < 20; ++n) recorder.end(recorder.begin(names[n % 7], n % 7));
  is_over = true;
  reader.join();
}

TEST(FlightRecorder, takes_no_time_to_speak_of) {
  FlightRecorder recorder;
  const auto name = recorder.name("sum", "label");
  double least_s = 1;
  for (int round = 0; round < 20; ++round) {
    const std::int64_t start_ns = FlightRecorder::now_ns();
    for (int i = 0; i < 1000; ++i) recorder.end(recorder.begin(name, i));
    least_s = std::min(least_s, 1e-12 * static_cast<double>(FlightRecorder::now_ns() - start_ns));
  }
  EXPECT_LT(least_s, 2e-6);  // of a transfer, which takes 20e-6 at least
  RecordProperty("ns_per_transfer", std::to_string(1e9 * least_s));
}

TEST(SharedMemory, starts_as_zeros_that_both_see) {
  SharedMemory made(4096);
  const SharedMemory opened(4096, made.address());
  ASSERT_EQ(made.fault() + opened.fault(), "");
  const auto* there = static_cast<const char*>(opened.data());
  EXPECT_EQ(there[4095], 0);
  static_cast<char*>(made.data())[4095] = 7;
  EXPECT_EQ(there[4095], 7);
}

TEST(SharedMemory, is_seen_by_another_process_and_outlives_its_maker) {
  int to_child[2], to_parent[2];
  ASSERT_EQ(::pipe(to_child) + ::pipe(to_parent), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const SharedMemory made(4096);
    static_cast<char*>(made.data())[0] = 5;
    if (::write(to_parent[1], made.address().data(), made.address().size()) < 0) ::_exit(1);
    char go = 0;
    if (::read(to_child[0], &go, 1) < 0) ::_exit(1);
    ::raise(SIGKILL);
  }
  SharedMemory::Address address{};
  ASSERT_EQ(::read(to_parent[0], address.data(), address.size()), static_cast<ssize_t>(address.size()));
  const SharedMemory opened(4096, address);
  EXPECT_EQ(opened.fault(), "");
  ASSERT_EQ(::write(to_child[1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(static_cast<const char*>(opened.data())[0], 5);
  EXPECT_THAT(SharedMemory(4096, address).fault(), HasSubstr("No such file"));
  for (const int end : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) ::close(end);
}

TEST(SharedMemory, is_the_processs_own_where_it_cannot_be_shared) {
  SharedMemory made(4096);
  SharedMemory::Address other = made.address();
  *std::strrchr(other.data(), '-') = '+';  // by this name it is another's
  const SharedMemory mistaken(4096, other), short_one(8192, made.address());
  EXPECT_THAT(mistaken.fault(), HasSubstr("is something else here"));
  EXPECT_THAT(short_one.fault(), HasSubstr("has another length"));
  static_cast<char*>(mistaken.data())[4095] = 7;
  static_cast<char*>(short_one.data())[8191] = 7;
  made.close_to_others();
  EXPECT_NE(SharedMemory(4096, made.address()).fault(), "");
}

}  // namespace
}  // namespace tessera::parallel
