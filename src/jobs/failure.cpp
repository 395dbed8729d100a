#include "jobs/failure.hpp"

#include <algorithm>

#include "parallel/device.hpp"
#include "parallel/errors.hpp"

namespace tessera::jobs {

Failure failure_of(const std::exception& caught) {
  if (const auto* ours = dynamic_cast<const Failure*>(&caught)) return *ours;
  if (const auto* all = dynamic_cast<const parallel::AgreedError*>(&caught)) {
    return Failure(static_cast<Exit>(all->exit_code()), all->what());
  }
  if (dynamic_cast<const parallel::LossError*>(&caught)) return Failure(Exit::hang, caught.what());
  if (dynamic_cast<const parallel::MemoryError*>(&caught)) return Failure(Exit::out_of_memory, caught.what());
  if (dynamic_cast<const parallel::EnvironmentError*>(&caught)) return Failure(Exit::environment, caught.what());
  const Exit code = exit_of(caught);
  const char* advice = code == Exit::out_of_memory ? ": an allocation failed; smaller batches or models need less" : "";
  return Failure(code, caught.what() + std::string(advice));
}

Failure failure_of(const parallel::World& world, const std::exception& caught) {
  Failure failure = failure_of(caught);
  if (failure.code() == Exit::hang || world.device_count() == 0) return failure;
  const std::string lost = parallel::device_fault();
  if (lost.empty()) return failure;
  return Failure(Exit::hang, "the GPU is lost: {} ({}){}", lost, caught.what(), parallel::kAfterLoss);
}

parallel::Departure departure_of(const parallel::World& world, const std::exception& caught) {
  const Failure failure = failure_of(world, caught);
  return {static_cast<int>(failure.code()), failure.what()};
}

std::string first_word(const parallel::World& world, const std::string& mine) {
  for (const std::string& text : world.all_gather(mine)) {
    if (!text.empty()) return text;
  }
  return "";
}

void require_same(parallel::World& world, const std::string& mine, const std::string& what) {
  const auto all = world.all_gather(mine);
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& text) { return text != all[0]; });
  if (other == all.end()) return;
  const auto rank = static_cast<std::size_t>(other - all.begin());
  world.fail(Failure(Exit::files, "rank {} on {} {}", rank, world.places()[rank].host, what));
}

}  // namespace tessera::jobs
