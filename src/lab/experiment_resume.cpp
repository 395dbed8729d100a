#include "lab/experiment_resume.hpp"  // the contract is there; here is how

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "io/checkpoint.hpp"
#include "io/h5.hpp"
#include "kernels/core/words.hpp"
#include "lab/experiment_rows.hpp"

namespace tessera::lab {

namespace fs = std::filesystem;
using jobs::Context, jobs::Note;

namespace {

/// Gives a row's folder its name of now; whether it had another. No two rows have the same name, so none is in the
/// way of another.
bool move_row(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (from == to || !fs::exists(from, error)) return false;
  if (fs::exists(to, error)) {
    throw Failure(Exit::files, fmt::format("{}: the results of {} belong there: move it away, or use another "
                                           "job.directory",
                                           to.string(), from.string()));
  }
  fs::rename(from, to, error);
  if (error) {
    throw Failure(Exit::files,
                  fmt::format("{}: cannot be renamed to {}: {}", from.string(), to.string(), error.message()));
  }
  return true;
}

/// Whether the row's folder holds a training that a signal stopped: of this row, as it stands in the deck.
bool has_checkpoint(const config::DeckRow& row, const std::optional<Outcome>& outcome, const Note& note) {
  const fs::path folder = row.settings.job.directory;
  if (!outcome || outcome->code != Exit::stopped || row.settings.job.kind != config::JobKind::train ||
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

}  // namespace

Outcomes earlier_outcomes(const Context& context, ExperimentFile& file) {
  const std::vector<config::DeckRow>& rows = context.deck.rows;
  Outcomes outcomes(rows.size());
  std::error_code error;
  if (!fs::exists(file.path(), error)) return outcomes;
  std::vector<const EarlierRow*> kept(rows.size(), nullptr);
  std::vector<std::string> lost;
  const std::vector<EarlierRow> earlier = file.read_rows();
  for (const EarlierRow& row : earlier) {
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
    throw Failure(
        Exit::files,
        fmt::format("{} has {} that {} of this deck and its overrides as they stand (another name, other keys, "
                    "another version): {}. --resume auto would lose what ran: use another directory "
                    "(job.directory=..., of scripts/experiment --output), or allow it (job.overwrite=true)",
                    file.path(), counted(std::ssize(lost), "row"), lost.size() == 1 ? "is no row" : "are no rows",
                    fmt::join(lost, " ")));
  }
  bool has_moved = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!kept[i]) continue;
    outcomes[i] = kept[i]->outcome;
    has_moved = move_row(kept[i]->folder, rows[i].settings.job.directory) || has_moved;
  }
  if (has_moved) file.write(outcomes);
  return outcomes;
}

std::vector<Action> actions_of(const Context& context, const Outcomes& outcomes, const Note& note) {
  std::vector<Action> actions;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const bool is_kept = outcomes[i] && is_final(*outcomes[i]);
    actions.push_back(is_kept                                                   ? Action::keep
                      : has_checkpoint(context.deck.rows[i], outcomes[i], note) ? Action::go_on
                                                                                : Action::run);
  }
  return actions;
}

}  // namespace tessera::lab
