#include "jobs/together.hpp"

#include <fmt/format.h>

#include "parallel/device.hpp"
#include "parallel/errors.hpp"

namespace tessera::jobs {

Failure failure_of(const std::exception& caught) {
  if (const auto* ours = dynamic_cast<const Failure*>(&caught)) return *ours;
  if (dynamic_cast<const parallel::LossError*>(&caught)) return Failure(Exit::hang, caught.what());
  if (dynamic_cast<const parallel::MemoryError*>(&caught)) return Failure(Exit::out_of_memory, caught.what());
  if (dynamic_cast<const parallel::EnvironmentError*>(&caught)) return Failure(Exit::environment, caught.what());
  const Exit code = exit_of(caught);
  const char* advice = code == Exit::out_of_memory ? ": an allocation failed; smaller batches or models need less" : "";
  return Failure(code, caught.what() + std::string(advice));
}

Failure failure_of(const parallel::World& world, const std::exception& caught) {
  Failure failure = failure_of(caught);
  if (failure.code() == Exit::hang || world.devices().empty()) return failure;
  const std::string lost = parallel::device_fault();
  if (lost.empty()) return failure;
  return Failure(Exit::hang, fmt::format("the GPU is lost: {} ({}){}", lost, caught.what(), parallel::kAfterLoss));
}

void leave_with(parallel::World& world, const std::exception& caught) {
  world.leave();  // first: finding the cause may itself wait for the GPU
  const Failure failure = failure_of(world, caught);
  world.leave(parallel::Departure{static_cast<int>(failure.code()), failure.what()});
}

namespace {

/// Runs `work`; "" on success, else the failure encoded for the other ranks.
std::string problem_of(const parallel::World& world, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& caught) {
    return encoded(failure_of(world, caught));
  }
  return "";
}

[[noreturn]] void fail_with(parallel::World& world, const std::string& problem, const std::string& where) {
  const Failure failure = decoded_failure(problem);
  fail_together(world, failure.code(), where + failure.what());
}

}  // namespace

void fail_together(parallel::World& world, Exit code, const std::string& message) {
  {
    const auto watch = world.watch("the end of all ranks", kPatience);
    world.leave_together();
  }
  throw CollectiveFailure(code, message);
}

void together(parallel::World& world, const std::function<void()>& work) {
  const std::vector<std::string> problems = world.all_gather(problem_of(world, work));
  std::string ranks, first;
  int failed = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (problems[rank].empty()) continue;
    if (failed++ == 0) first = problems[rank];
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  if (failed > 0) fail_with(world, first, failed == world.size() ? "" : fmt::format("rank {}: ", ranks));
}

void on_root(parallel::World& world, const std::function<void()>& work) {
  const std::string problem = world.broadcast(world.rank() == 0 ? problem_of(world, work) : "");
  if (!problem.empty()) fail_with(world, problem, "");
}

void require_same(parallel::World& world, const std::string& mine, const std::string& what) {
  const auto all = world.all_gather(mine);
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& text) { return text != all[0]; });
  if (other == all.end()) return;
  const auto rank = static_cast<std::size_t>(other - all.begin());
  const std::string host = world.all_gather(world.host())[rank];
  fail_together(world, Exit::files, fmt::format("rank {} on {} {}", rank, host, what));
}

io::Peers peers_of(const parallel::World& world) {
  return {world.rank(), world.size(), [&world](const std::string& mine) { return world.all_gather(mine); }};
}

}  // namespace tessera::jobs
