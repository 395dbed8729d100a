/// Several ranks in one process, for code whose communication is passed in.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "io/checkpoint.hpp"

namespace tessera::test {

/// Runs `work` once per rank, each in a thread of its own, one at a time: a rank yields where it waits in all_gather.
/// So code that is not thread-safe (serial HDF5) behaves as in processes, in the order of arrival.
/// Returns the message that each rank threw; "" if none.
inline std::vector<std::string> run_ranks(int ranks, const std::function<void(const io::Peers&)>& work) {
  std::mutex baton;
  std::condition_variable gathered;
  std::vector<std::string> arriving(static_cast<std::size_t>(ranks)), complete, thrown(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> failing(static_cast<std::size_t>(ranks)), failed;
  int arrived = 0, round = 0;

  const auto run = [&](int rank) {
    std::unique_lock<std::mutex> turn(baton);
    const auto all_gather = [&, rank](const io::Peers::Work& result) {
      failing[static_cast<std::size_t>(rank)] = nullptr;
      try {
        arriving[static_cast<std::size_t>(rank)] = result();
      } catch (...) {
        failing[static_cast<std::size_t>(rank)] = std::current_exception();
      }
      const int mine = round;
      if (++arrived == ranks) {
        complete = arriving;
        failed = failing;
        arrived = 0;
        ++round;
        gathered.notify_all();
      } else {
        gathered.wait(turn, [&] { return round != mine; });
      }
      for (const std::exception_ptr& failure : failed) {
        if (failure) std::rethrow_exception(failure);
      }
      return complete;
    };
    try {
      work({rank, ranks, all_gather});
    } catch (const std::exception& fault) {
      thrown[static_cast<std::size_t>(rank)] = fault.what();
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

}  // namespace tessera::test
