/// The experiment job: runs each row that [experiment] describes as a job of its own, in this process, one by one, and
/// all of them experiment.rounds times: in the order of the deck in odd rounds, in the opposite order in even ones.
///
/// A row has the folder rows/NNNN_<name> of job.directory, where its job writes what it always writes. A row that fails
/// (out of memory, numbers, files, what this build or these ranks cannot do) keeps its exit code and reason, its memory
/// is free again, and the next one runs. Each round replaces the files of the one before; experiment.h5
/// (experiment_file.hpp) has the results of all.
///
/// A signal ends the experiment with exit code 75, after the row under way: a training row stops at its next step, a
/// benchmark between its rows; a rest between rounds ends at once. experiment.time_limit_s lets the row under way
/// finish, and ends the experiment so if further rows are to run. --resume auto goes on (experiment_resume.hpp).
///
/// A row that lacks what experiment.record names is kept nevertheless; the experiment says so at its end and exits with
/// code 6.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "config/availability.hpp"
#include "io/answer.hpp"
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
#include "lab/experiment_measurement.hpp"
#include "lab/experiment_resume.hpp"
#include "lab/experiment_rows.hpp"
#include "train/plan.hpp"

namespace tessera::lab {

using namespace jobs;

namespace {

/// The same on every rank: the first of their reasons to stop that is not "".
std::string agreed(parallel::World& world, const std::string& mine) {
  const auto watch = world.watch("the exchange between rows", parallel::kPatience);
  for (const std::string& reason : world.all_gather(mine)) {
    if (!reason.empty()) return reason;
  }
  return "";
}

/// Runs the job of a row; `resume` as of Context. A failure is its outcome, unless this rank fails alone.
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

/// The order of rows in a round: that of the deck in odd ones, the opposite in even ones.
std::vector<std::size_t> order_of(std::int64_t round, std::size_t rows) {
  std::vector<std::size_t> order(rows);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (round % 2 == 0) std::reverse(order.begin(), order.end());
  return order;
}

/// Waits, and no longer than until a signal arrives.
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
      world_.fail(Failure(Exit::usage, "an experiment goes on in its own job.directory: type --resume auto"));
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
    note(summary(rows_, file_));
    flush();  // with --resume also what experiment.record has gained
    if (const std::string missing = world_.broadcast(file_.missing()); !missing.empty()) {
      world_.fail(Failure(Exit::files, missing));
    }
    return Exit::finished;
  }

 private:
  /// Takes the folder, and finds out how far each row has come.
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
      jobs::Owner(context_.settings().job.directory).begin(std::nullopt, context_.resume.has_value());
      progress = progress_text(progress_of(context_, file_, note_));
    });
    progress_ = parse_progress(world_.broadcast(progress));
  }

  std::string title(std::size_t i, std::int64_t round) const {
    const std::string row = fmt::format("row {} of {}", i + 1, rows_.size());
    return keys_.rounds > 1 ? fmt::format("round {}, {}", round, row) : row;
  }

  /// Measures a row unless it has been in this round. A reason to stop instead, or "".
  std::string measure(std::size_t i, std::int64_t round) {
    const Progress& progress = progress_[i];
    if (round <= progress.rounds || progress.has_failed) {
      if (round <= progress.kept) note(fmt::format("--- {}: {} has run\n", title(i, round), rows_[i].name));
      return "";
    }
    if (keys_.rounds > 1 && has_measured_) rest(rows_[i].settings.section<Bench>().rest_ms);
    if (const std::string reason = agreed(world_, stop_.reason()); !reason.empty()) return reason;
    note(fmt::format("--- {}: {}{}\n", title(i, round), rows_[i].name, progress.goes_on ? ", goes on" : ""));
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
    note(outcome.code == Exit::finished ? fmt::format("--- row {} took {:.1f} s\n", i + 1, outcome.seconds)
                                        : fmt::format("--- row {} ended with exit code {}: {}\n", i + 1,
                                                      static_cast<int>(outcome.code), outcome.reason));
    progress = {.rounds = round, .kept = progress.kept, .has_failed = !has_run(outcome), .goes_on = false};
    const auto watch = world_.watch("the file of the experiment", parallel::kPatience);
    world_.agree_on_root([&] {
      file_.add(i, round, std::move(outcome));
      file_.flush_if_due();
    });
  }

  void flush() {
    const auto watch = world_.watch("the file of the experiment", parallel::kPatience);
    world_.agree_on_root([&] { file_.flush(); });
  }

  Exit stopped(const std::string& how) {
    flush();
    if (const std::string missing = file_.missing(); !missing.empty()) note(missing + "\n");
    note(fmt::format("stopped by {}: go on with --resume auto\n", how));
    return Exit::stopped;
  }

  void note(const std::string& text) const {
    if (world_.rank() == 0) io::answer(text);
  }

  const Context& context_;
  const Experiment& keys_;
  const std::vector<config::DeckRow>& rows_;
  parallel::World& world_;
  const Note note_ = [this](const std::string& text) { note(text); };
  StopRequest stop_;
  std::optional<RunDirectory> directory_;
  ExperimentFile file_;
  std::vector<Progress> progress_;  // by row, the same on every rank
  bool has_measured_ = false;
};

}  // namespace

Exit experiment(const Context& context) { return ExperimentRun(context).run(); }

}  // namespace tessera::lab
