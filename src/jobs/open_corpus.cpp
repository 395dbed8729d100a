#include "jobs/open_corpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "jobs/failure.hpp"
#include "kernels/core/events.hpp"

namespace tessera::jobs {
namespace {

/// Target duration of a round, reached within a factor of two by resizing the ranks' pieces: much longer than the
/// exchange that ends it, but a short wait after a signal.
constexpr double kRound_s = 0.2;

/// The ranks that check the same file: those of one host with the same full path.
struct Sharing {
  Sharing(const parallel::World& world, const std::string& file)
      : mine(world.host() + "\n" + file), all(world.all_gather(mine)) {
    index = std::count(all.begin(), all.begin() + world.rank(), mine);
    ranks = std::count(all.begin(), all.end(), mine);
  }
  std::string mine;
  std::vector<std::string> all;       // [rank]
  std::int64_t index = 0, ranks = 1;  // this rank's place among those with the same file, and their number
};

/// Every rank fails with the first failure in its file, whichever rank found it.
void fail_by_files(parallel::World& world, const Sharing& sharing, const std::string& mine) {
  const std::vector<std::string> problems = world.all_gather(mine);
  std::string first;
  for (std::size_t rank = 0; rank < problems.size() && first.empty(); ++rank) {
    if (sharing.all[rank] == sharing.mine) first = problems[rank];
  }
  world.agree(first);
}

}  // namespace

data::Corpus open_corpus(parallel::World& world, const config::Settings& settings,
                         const std::function<std::string()>& stop_reason, io::Console& console) {
  std::optional<data::Corpus> corpus;
  std::string file;
  std::int64_t size = 0;  // tokens to check; ranks may differ, which is reported later
  world.agree([&] {
    corpus.emplace(data::Corpus::open_unchecked(settings.data.source, settings.data.path, settings.model.vocab_size,
                                                settings.job.seed));
    if (!corpus->needs_check()) return;
    size = corpus->size();
    file = fmt::format("{}\n{}", std::filesystem::absolute(settings.data.path).string(), size);
  });
  const Sharing sharing(world, file);
  io::Progress progress(console, fmt::format("data       {} tokens checked", size));
  std::int64_t piece = data::kReported;  // tokens of each rank, one after the other in the file
  std::int64_t next = 0;                 // where the pieces after these begin
  std::int64_t at = 0, end = 0;          // the rest of this rank's piece
  std::string problem;                   // a failure: it ends the piece
  std::string reason;
  int rounds = 0;  // since the pieces began
  for (bool is_over = !world.any(size > 0); !is_over;) {
    if (rounds++ == 0) {
      at = std::min(size, next + piece * sharing.index);
      end = std::min(size, at + piece);
      next = std::min(size, next + piece * sharing.ranks);
    }
    const double start_s = events::now_s();
    if (problem.empty()) {
      problem = world.problem_of([&] {
        while (at < end && reason.empty() && events::now_s() < start_s + 2 * kRound_s) {
          const std::int64_t block = std::min(data::kReported, end - at);
          corpus->check(at, block);
          at += block;
          reason = stop_reason();
        }
      });
      if (!problem.empty()) at = end;
    }
    if (reason.empty()) reason = stop_reason();
    const std::int64_t checked = std::max(next - sharing.ranks * (end - at), std::int64_t{0});  // about
    if (size > 0) progress.at(static_cast<double>(checked) / static_cast<double>(size));

    const std::vector<double> agreed = world.max({at < end ? 1. : 0, next < size ? 1. : 0, problem.empty() ? 0. : 1,
                                                  reason.empty() ? 0. : 1, events::now_s() - start_s});
    const bool has_rest = agreed[0] > 0, has_more = agreed[1] > 0, has_failed = agreed[2] > 0;
    if (agreed[3] > 0 && (has_rest || (has_more && !has_failed))) {
      world.fail(Failure(Exit::stopped, "stopped by {} while the tokens of {} were checked: start it again as before",
                         first_word(world, reason), corpus->name()));
    }
    if (has_rest) continue;  // a failure may not be the first: another rank may find one before it
    if (has_failed) fail_by_files(world, sharing, problem);
    if (rounds == 1 && agreed[4] < kRound_s / 2) piece *= 2;
    for (; rounds > 1; rounds = (rounds + 1) / 2) piece = std::max(piece / 2, data::kReported);
    rounds = 0;
    is_over = !has_more;
  }
  return std::move(*corpus);
}

}  // namespace tessera::jobs
