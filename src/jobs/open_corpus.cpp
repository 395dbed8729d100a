#include "jobs/open_corpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "jobs/together.hpp"
#include "kernels/core/events.hpp"

namespace tessera::jobs {
namespace {

/// How long a round should last: long beside the exchange that ends it, and not long for who waits after a signal. The
/// ranks' pieces grow or shrink until it does so, within a factor of two.
constexpr double kRound_s = 0.2;

/// Where a rank stands after its piece. The greatest of all ranks decides what they do next.
enum Standing : int { kDone, kGoingOn, kStopping, kFailed };

/// Every rank fails with the first failure of its host: what one of them has found, each would have found.
void fail_by_hosts(parallel::World& world, const std::optional<Failure>& mine) {
  const std::vector<std::string> hosts = world.all_gather(world.host());
  const std::vector<std::string> problems = world.all_gather(mine ? encoded(*mine) : "");
  together(world, [&] {
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      if (hosts[rank] == world.host() && !problems[rank].empty()) throw decoded_failure(problems[rank]);
    }
  });
}

[[noreturn]] void stop_together(parallel::World& world, const std::string& mine, const std::string& name) {
  const std::vector<std::string> reasons = world.all_gather(mine);
  const auto reason =
      std::find_if(reasons.begin(), reasons.end(), [](const std::string& text) { return !text.empty(); });
  fail_together(world, Exit::stopped,
                fmt::format("stopped by {} while the tokens of {} were checked; nothing was changed: resume with "
                            "--resume auto",
                            *reason, name));
}

}  // namespace

data::Corpus open_corpus(parallel::World& world, const config::Settings& settings,
                         const std::function<std::string()>& stop_reason, io::Console& console) {
  std::optional<data::Corpus> corpus;
  together(world, [&] {
    corpus.emplace(data::Corpus::open_unchecked(settings.data.source, settings.data.path, settings.model.vocab_size,
                                                settings.job.seed));
  });
  const std::int64_t size = corpus->needs_check() ? corpus->size() : 0;  // hosts may differ: that is told later
  io::Progress progress(console, fmt::format("data       {} tokens checked", size));
  int all = world.max(size > 0 ? kGoingOn : kDone);
  std::int64_t checked = 0, piece = data::kReported;  // tokens: by all ranks of this host; by each of them in a round
  while (all == kGoingOn) {
    const double start_s = events::now_s();
    std::optional<Failure> failure;
    const std::int64_t first = std::min(size, checked + piece * world.local_rank());
    try {
      corpus->check(first, std::min(piece, size - first));
    } catch (const std::exception& caught) {
      failure = failure_of(world, caught);
    }
    checked = std::min(size, checked + piece * world.local_size());
    const std::string reason = stop_reason();
    const Standing mine = failure ? kFailed : checked == size ? kDone : !reason.empty() ? kStopping : kGoingOn;
    const std::vector<double> agreed = world.max({static_cast<double>(mine), events::now_s() - start_s});
    all = static_cast<int>(agreed[0]);
    if (all == kFailed) fail_by_hosts(world, failure);
    if (all == kStopping) stop_together(world, reason, corpus->name());
    if (agreed[1] < kRound_s / 2) piece *= 2;
    if (agreed[1] > kRound_s * 2) piece = std::max(piece / 2, data::kReported);
    if (size > 0) progress.at(static_cast<double>(checked) / static_cast<double>(size));
  }
  return std::move(*corpus);
}

}  // namespace tessera::jobs
