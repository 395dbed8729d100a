/// The experiment job: runs each row that [experiment] describes as a job of its own, one by one in this process, and
/// all of them experiment.rounds times: odd rounds in the order of the deck, even rounds in reverse.
///
/// A row's job writes its usual files to rows/NNNN_<name> in job.directory; each round replaces them, and
/// experiment.h5 (experiment_file.hpp) has the results of all. If a row fails, its exit code and reason are kept, its
/// memory is freed, and the next row runs.
///
/// After a signal the experiment ends with exit code 75: a training row stops at its next step, a benchmark between
/// its rows, a rest at once. After experiment.time_limit_s it ends likewise before the next row.
///
/// --resume auto keeps the measurements of rows that have run under the same name with the same keys, and runs the rest
/// of experiment.rounds; failed rows are not measured in further rounds. job.directory, job.overwrite, job.progress and
/// a row's number may change. Rows that a signal stopped, or that failed for their files or the machine (exit codes 75,
/// 6 and 3), run again, a training that a signal stopped from its checkpoint; until then experiment.h5 has their last
/// outcome, even if experiment.only leaves them out. A row stopped by its own train.time_limit_s counts as run. If any
/// other row has run or has a checkpoint, --resume auto is refused (exit 6) unless job.overwrite is set: its result
/// would be lost. It is refused, too, on another number of ranks than that of rows that have run. Rows of another
/// build, or of other GPUs, are kept, and /info names what measured them (other_builds).
///
/// A row that lacks an entry of experiment.record is kept; the experiment says so at its end and exits with code 6.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "config/availability.hpp"
#include "io/answer.hpp"
#include "io/checkpoint.hpp"
#include "jobs/directory.hpp"
#include "jobs/jobs.hpp"
#include "jobs/memory.hpp"
#include "jobs/owner.hpp"
#include "jobs/stop.hpp"
#include "jobs/failure.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/words.hpp"
#include "lab/bench_keys.hpp"
#include "lab/experiment_file.hpp"
#include "train/plan.hpp"

namespace tessera::lab {

using namespace jobs;
namespace fs = std::filesystem;

namespace {

/// The same on every rank: the first of their reasons to stop.
std::string agreed(parallel::World& world, const std::string& mine) {
  const auto watch = world.watch("the exchange between rows", parallel::kPatience);
  return first_word(world, mine);
}

/// Runs a row's job; `resume` as in Context. Returns a failure as its outcome, unless this rank fails alone.
Outcome outcome_of(const Context& experiment, const config::DeckRow& row, const std::optional<std::string>& resume) {
  parallel::World& world = experiment.world;
  Outcome outcome;
  const double start_s = events::now_s();
  try {
    config::Deck deck{row.settings, row.resolved, experiment.deck.path, {}};
    deck.settings.job.overwrite = true;  // of results nothing is left, and other files stay
    {
      const auto watch = world.watch("the start of a row");
      world.agree([&] { config::check_build(row.settings, train::this_build()); });
    }
    outcome.code = run_job({deck, resume, experiment.command, world});
    if (outcome.code == Exit::stopped) {
      const std::string signal = agreed(world, arrived_signal());
      outcome.reason = signal.empty() ? kStoppedByItsLimit : "stopped by " + signal;
    }
  } catch (const std::exception& caught) {
    const Failure failure = failure_of(world, caught);
    const bool is_common = world.size() == 1 || dynamic_cast<const parallel::AgreedError*>(&caught) != nullptr;
    if (!is_common || failure.code() == Exit::hang) {
      world.leave(caught);
      throw;
    }
    outcome.code = failure.code();
    outcome.reason = failure.what();
  }
  {
    const auto watch = world.watch("the end of a row", parallel::kPatience);
    world.stay();
  }
  Kokkos::fence();
  outcome.seconds = events::now_s() - start_s;
  return outcome;
}

std::string summary(const std::vector<config::DeckRow>& rows, const ExperimentFile& file) {
  std::map<Exit, std::vector<std::string>> failed;
  std::int64_t ran = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (file.rounds(i).empty()) continue;
    const Exit code = file.rounds(i).back().outcome.code;
    if (code != Exit::finished) failed[code].push_back(rows[i].name);
    ++ran;
  }
  std::string text = fmt::format("{} of {}, in {}\n", ran, counted(std::ssize(rows), "row"), file.path());
  for (const auto& [code, names] : failed) {
    text += fmt::format("exit code {}: {}\n", static_cast<int>(code), fmt::join(names, " "));
  }
  return text;
}

/// Renames a row's folder to its current name; returns whether it had another. Names differ, so no rows collide.
bool move_row(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (from == to || !fs::exists(from, error)) return false;
  if (fs::exists(to, error)) {
    throw Failure(Exit::files, "{}: the results of {} belong there: move it away, or use another job.directory",
                  to.string(), from.string());
  }
  fs::rename(from, to, error);
  if (error) {
    throw Failure(Exit::files, "{}: cannot be renamed to {}: {}", from.string(), to.string(), error.message());
  }
  return true;
}

/// Whether the row's folder holds a training of this very row that a signal stopped.
bool has_checkpoint(const config::DeckRow& row, const Outcome& outcome, const Note& note) {
  const fs::path folder = row.settings.job.directory;
  if (outcome.code != Exit::stopped || row.settings.job.kind != config::JobKind::train ||
      !io::newest_checkpoint(folder)) {
    return false;
  }
  try {
    const std::string deck = io::h5::File::open(folder / "run.h5").group("info").text("deck");
    return what_is_computed(deck) == what_is_computed(row.resolved);
  } catch (const Failure& failure) {
    note(fmt::format("{}: row {} starts anew\n", failure.what(), row.name));
    return false;
  }
}

/// Passes to the file the measurements of rows that an earlier start has run with the same keys, and renumbers their
/// folders.
void keep_earlier(const Context& context, ExperimentFile& file) {
  const std::vector<config::DeckRow>& rows = context.deck.rows;
  std::error_code error;
  if (!fs::exists(file.path(), error)) return;
  std::vector<EarlierRow*> kept(rows.size(), nullptr);
  std::vector<std::string> lost;
  std::vector<EarlierRow> earlier = file.read_rows();
  for (EarlierRow& row : earlier) {
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const config::DeckRow& now) {
      return now.name == row.name && what_is_computed(now.resolved) == row.computed;
    });
    if (same != rows.end()) {
      kept[static_cast<std::size_t>(same - rows.begin())] = &row;
    } else if (row.has_result()) {
      lost.push_back(row.name);
    }
  }
  if (!lost.empty() && !context.settings().job.overwrite) {
    throw Failure(Exit::files,
                  "{} has {} that this deck, with its overrides, does not describe (another name, other keys, another "
                  "version): {}. --resume auto would lose what ran: use another directory (job.directory=..., of "
                  "scripts/experiment --output), or allow it (job.overwrite=true)",
                  file.path(), counted(std::ssize(lost), "row"), fmt::join(lost, " "));
  }
  const auto is_result = [](const EarlierRow* row) { return row && row->has_result(); };
  if (std::any_of(kept.begin(), kept.end(), is_result)) {
    if (const auto ranks = file.read_ranks(); ranks && *ranks != context.world.size()) {
      throw Failure(Exit::files,
                    "{}: its rows have run on {}, not on {}: start it on as many, or use another directory "
                    "(job.directory=..., of scripts/experiment --output)",
                    file.path(), counted(*ranks, "rank"), context.world.size());
    }
    file.keep_other_builds(file.read_other_builds());
  }
  bool has_moved = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!kept[i]) continue;
    has_moved = move_row(kept[i]->folder, rows[i].settings.job.directory) || has_moved;
    file.keep(i, std::move(kept[i]->rounds));
  }
  if (has_moved) file.flush();
}

/// A row's progress.
struct Progress {
  std::int64_t next = 1;  // the round in which it is measured next; kNever behind a failure
  bool goes_on = false;   // from its checkpoint
};
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

Progress progress_of(const config::DeckRow& row, const Rounds& rounds, const Note& note) {
  if (rounds.empty()) return {};
  const Outcome& last = rounds.back().outcome;
  const std::int64_t next = std::ssize(rounds) + (is_final(last) ? 1 : 0);
  return {is_final(last) && !has_run(last) ? kNever : next, !is_final(last) && has_checkpoint(row, last, note)};
}

/// The order of rows in a round: odd rounds as in the deck, even rounds in reverse.
std::vector<std::size_t> order_of(std::int64_t round, std::size_t rows) {
  std::vector<std::size_t> order(rows);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (round % 2 == 0) std::reverse(order.begin(), order.end());
  return order;
}

/// Waits, at most until a signal arrives.
void rest(double rest_ms) {
  const double end_s = events::now_s() + 1e-3 * rest_ms;
  for (double left_s = 0; (left_s = end_s - events::now_s()) > 0 && arrived_signal().empty();)
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left_s, 0.05)));
}

class ExperimentRun {
 public:
  explicit ExperimentRun(const Context& context)
      : context_(context),
        keys_(context.settings().section<Experiment>()),
        rows_(context.deck.rows),
        world_(context.world),
        stop_(keys_.time_limit_s, "experiment.time_limit_s"),
        file_(context) {}

  Exit run() {
    if (context_.resume && *context_.resume != "auto") {
      world_.fail(Failure(Exit::usage, "an experiment continues in its own job.directory: use --resume auto"));
    }
    set_up();
    for (std::int64_t round = 1; round <= keys_.rounds; ++round) {
      for (const std::size_t i : order_of(round, rows_.size())) {
        if (!rows_[i].is_chosen) continue;
        if (const std::string reason = measure(i, round); !reason.empty()) {
          return stopped(fmt::format("{} before {}", reason, title(i, round)));
        }
      }
    }
    if (const std::string signal = agreed(world_, arrived_signal()); !signal.empty()) {
      return stopped(fmt::format("{} after the last row", signal));
    }
    note_(summary(rows_, file_));
    flush();  // with --resume also what experiment.record has gained
    if (const std::string missing = world_.broadcast(file_.missing()); !missing.empty()) {
      world_.fail(Failure(Exit::files, missing));
    }
    return Exit::finished;
  }

 private:
  /// Takes the folder, and determines each row's progress.
  void set_up() {
    const auto watch = world_.watch("the experiment's folder", parallel::kPatience);
    free_at_start(world_);  // noted: what rows take counts from here
    directory_.emplace(context_, context_.resume.has_value(), note_);
    std::string progress;
    world_.agree_on_root([&] {
      if (context_.resume)
        keep_earlier(context_, file_);
      else
        directory_->clear(note_);
      if (const auto& others = file_.other_builds(); !others.empty())
        note_(fmt::format("note: rows that have run are of other builds or GPUs: {}\n", fmt::join(others, "; ")));
      jobs::Owner(context_.settings().job.directory).begin(std::nullopt, context_.resume.has_value());
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        const auto [next, goes_on] = progress_of(rows_[i], file_.rounds(i), note_);
        progress += fmt::format("{} {} ", next, int{goes_on});
        kept_.push_back(std::ssize(file_.rounds(i)));
      }
    });
    std::istringstream words(world_.broadcast(progress));
    for (Progress row; words >> row.next >> row.goes_on;) progress_.push_back(row);
  }

  std::string title(std::size_t i, std::int64_t round) const {
    const std::string row = fmt::format("row {} of {}", i + 1, rows_.size());
    return keys_.rounds > 1 ? fmt::format("round {}, {}", round, row) : row;
  }

  /// Measures a row unless this round already has. Returns a reason to stop instead, or "".
  std::string measure(std::size_t i, std::int64_t round) {
    const Progress& progress = progress_[i];
    if (round < progress.next) {
      if (world_.rank() == 0 && round <= kept_[i])
        note_(fmt::format("--- {}: {} has run\n", title(i, round), rows_[i].name));
      return "";
    }
    if (keys_.rounds > 1 && has_measured_) rest(rows_[i].settings.section<Bench>().rest_ms);
    if (const std::string reason = agreed(world_, stop_.reason()); !reason.empty()) return reason;
    note_(fmt::format("--- {}: {}{}\n", title(i, round), rows_[i].name, progress.goes_on ? ", continued" : ""));
    run_row(i, round);
    has_measured_ = true;
    return "";
  }

  void run_row(std::size_t i, std::int64_t round) {
    Progress& progress = progress_[i];
    double earlier_s = 0;
    std::optional<std::string> resume;
    if (progress.goes_on) {
      resume = "auto";
      if (world_.rank() == 0) earlier_s = file_.rounds(i).back().outcome.seconds;
    } else {
      const auto watch = world_.watch("the folder of a row", parallel::kPatience);
      world_.agree_on_root([&] { clear_row(rows_[i].settings.job.directory, note_); });
    }
    Outcome outcome = outcome_of(context_, rows_[i], resume);
    outcome.seconds += earlier_s;
    note_(outcome.code == Exit::finished ? fmt::format("--- row {} took {:.1f} s\n", i + 1, outcome.seconds)
                                         : fmt::format("--- row {} ended with exit code {}: {}\n", i + 1,
                                                       static_cast<int>(outcome.code), outcome.reason));
    progress = {.next = has_run(outcome) ? round + 1 : kNever};
    const auto watch = world_.watch("the file of the experiment", parallel::kPatience);
    world_.agree_on_root([&] {
      directory_->require_in_place();
      file_.add(i, round, std::move(outcome));
      file_.flush_if_due();
    });
  }

  void flush() {
    const auto watch = world_.watch("the file of the experiment", parallel::kPatience);
    world_.agree_on_root([&] {
      directory_->require_in_place();
      file_.flush();
    });
  }

  Exit stopped(const std::string& how) {
    flush();
    if (const std::string missing = file_.missing(); !missing.empty()) note_(missing + "\n");
    note_(fmt::format("stopped by {}: continue with --resume auto\n", how));
    return Exit::stopped;
  }

  const Context& context_;
  const Experiment& keys_;
  const std::vector<config::DeckRow>& rows_;
  parallel::World& world_;
  const Note note_ = [this](const std::string& text) {
    if (world_.rank() == 0) io::answer(text);
  };
  StopRequest stop_;
  std::optional<RunDirectory> directory_;
  ExperimentFile file_;
  std::vector<Progress> progress_;  // by row, the same on every rank
  std::vector<std::int64_t> kept_;  // by row, on rank 0: rounds that an earlier start has measured
  bool has_measured_ = false;
};

}  // namespace

Exit experiment(const Context& context) { return ExperimentRun(context).run(); }

}  // namespace tessera::lab
