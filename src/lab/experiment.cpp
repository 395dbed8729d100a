/// The experiment job: runs each row that [experiment] describes as a job of its own, in this process, one by one.
///
/// A row has the folder rows/NNNN_<name> of job.directory, where its job writes what it always writes. A row that fails
/// (out of memory, numbers, files, what this build or these ranks cannot do) keeps its exit code and reason, its memory
/// is free again, and the next one runs. After each row experiment.h5 (experiment_file.hpp) is written anew.
///
/// A signal ends the experiment with exit code 75, after the row under way: a training row stops at its next step, a
/// benchmark between its rows. experiment.time_limit_s lets the row under way finish, and ends the experiment so if
/// further rows are to run. --resume auto goes on (experiment_resume.hpp).
///
/// A row that lacks what experiment.record names is kept nevertheless; the experiment says so at its end and exits with
/// code 6.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/availability.hpp"
#include "io/answer.hpp"
#include "io/checkpoint.hpp"
#include "jobs/directory.hpp"
#include "jobs/failure.hpp"
#include "jobs/jobs.hpp"
#include "jobs/stop.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/words.hpp"
#include "lab/experiment_file.hpp"
#include "lab/experiment_outcome.hpp"
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

std::string summary(const std::vector<config::DeckRow>& rows, const Outcomes& outcomes, const std::string& path) {
  std::map<Exit, std::vector<std::string>> failed;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (outcomes[i] && outcomes[i]->code != Exit::finished) failed[outcomes[i]->code].push_back(rows[i].name);
  }
  const auto ran = std::count_if(outcomes.begin(), outcomes.end(), [](const auto& o) { return o.has_value(); });
  std::string text = fmt::format("{} of {}, in {}\n", ran, counted(std::ssize(rows), "row"), path);
  for (const auto& [code, names] : failed) {
    text += fmt::format("exit code {}: {}\n", static_cast<int>(code), fmt::join(names, " "));
  }
  return text;
}

class ExperimentRun {
 public:
  explicit ExperimentRun(const Context& context)
      : context_(context),
        rows_(context.deck.rows),
        world_(context.world),
        stop_(context.settings().section<Experiment>().time_limit_s, "experiment.time_limit_s"),
        file_(context),
        outcomes_(rows_.size()) {}

  Exit run() {
    if (context_.resume && *context_.resume != "auto") {
      world_.agree(
          [] { throw Failure(Exit::usage, "an experiment goes on in its own job.directory: type --resume auto"); });
    }
    const std::vector<Action> actions = set_up();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (!rows_[i].is_chosen) continue;
      const std::string title = fmt::format("row {} of {}", i + 1, rows_.size());
      if (actions[i] == Action::keep) {
        note(fmt::format("--- {}: {} has run\n", title, rows_[i].name));
        continue;
      }
      if (const std::string reason = agreed(world_, stop_.reason()); !reason.empty()) {
        return stopped(fmt::format("{} before {}", reason, title));
      }
      note(fmt::format("--- {}: {}{}\n", title, rows_[i].name, actions[i] == Action::go_on ? ", goes on" : ""));
      run_row(i, actions[i]);
      save();
    }
    if (const std::string signal = agreed(world_, arrived_signal()); !signal.empty()) {
      return stopped(fmt::format("{} after the last row", signal));
    }
    note(summary(rows_, outcomes_, file_.path()));
    save();  // with --resume also what experiment.record has gained
    if (const std::string missing = world_.broadcast(missing_); !missing.empty()) {
      world_.fail(Failure(Exit::files, missing));
    }
    return Exit::finished;
  }

 private:
  /// Takes the folder; what is to be done with each row, as rank 0 decides it.
  std::vector<Action> set_up() {
    const auto watch = world_.watch("the experiment's folder", parallel::kPatience);
    directory_.emplace(context_, context_.resume.has_value(), note_);
    world_.agree_on_root([&] {
      if (context_.resume)
        outcomes_ = earlier_outcomes(context_, file_);
      else
        directory_->clear(note_);
    });
    std::string letters;
    world_.agree_on_root([&] {
      for (const Action action : actions_of(context_, outcomes_, note_)) letters += static_cast<char>(action);
    });
    letters = world_.broadcast(letters);
    std::vector<Action> actions;
    for (const char letter : letters) actions.push_back(static_cast<Action>(letter));
    return actions;
  }

  void run_row(std::size_t i, Action action) {
    const double earlier_s = action == Action::go_on && outcomes_[i] ? outcomes_[i]->seconds : 0;
    if (action == Action::run) {
      const auto watch = world_.watch("the folder of a row", parallel::kPatience);
      world_.agree_on_root([&] { clear_row(rows_[i].settings.job.directory, note_); });
    }
    outcomes_[i] =
        outcome_of(context_, rows_[i], action == Action::go_on ? std::optional<std::string>("auto") : std::nullopt);
    outcomes_[i]->seconds += earlier_s;
    note(outcomes_[i]->code == Exit::finished
             ? fmt::format("--- row {} took {:.1f} s\n", i + 1, outcomes_[i]->seconds)
             : fmt::format("--- row {} ended with exit code {}: {}\n", i + 1, static_cast<int>(outcomes_[i]->code),
                           outcomes_[i]->reason));
  }

  void save() {
    const auto watch = world_.watch("the file of the experiment", parallel::kPatience);
    world_.agree_on_root([&] { missing_ = file_.write(outcomes_); });
  }

  Exit stopped(const std::string& how) {
    save();
    if (!missing_.empty()) note(missing_ + "\n");
    note(fmt::format("stopped by {}: go on with --resume auto\n", how));
    return Exit::stopped;
  }

  void note(const std::string& text) const {
    if (world_.rank() == 0) io::answer(text);
  }

  const Context& context_;
  const std::vector<config::DeckRow>& rows_;
  parallel::World& world_;
  const Note note_ = [this](const std::string& text) { note(text); };
  StopRequest stop_;
  std::optional<RunDirectory> directory_;
  ExperimentFile file_;
  Outcomes outcomes_;    // those of an earlier start on rank 0
  std::string missing_;  // what a row that finished lacks of experiment.record; rank 0
};

}  // namespace

Exit experiment(const Context& context) { return ExperimentRun(context).run(); }

}  // namespace tessera::lab
