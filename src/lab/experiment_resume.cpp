#include "lab/experiment_resume.hpp"  // the contract is there; here is how

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <utility>

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

}  // namespace

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
    has_moved = move_row(kept[i]->folder, rows[i].settings.job.directory) || has_moved;
    file.keep(i, std::move(kept[i]->rounds));
  }
  if (has_moved) file.flush();
}

std::vector<Progress> progress_of(const Context& context, const ExperimentFile& file, const Note& note) {
  std::vector<Progress> all;
  for (std::size_t i = 0; i < context.deck.rows.size(); ++i) {
    const Rounds& rounds = file.rounds(i);
    Progress& row = all.emplace_back();
    if (rounds.empty()) continue;
    const Outcome& last = rounds.back().outcome;
    row.rounds = row.kept = std::ssize(rounds) - (is_final(last) ? 0 : 1);
    row.has_failed = is_final(last) && !has_run(last);
    row.goes_on = has_checkpoint(context.deck.rows[i], last, note);
  }
  return all;
}

std::string progress_text(const std::vector<Progress>& all) {
  std::string text;
  for (const Progress& row : all)
    text += fmt::format("{} {} {} {} ", row.rounds, row.kept, int{row.has_failed}, int{row.goes_on});
  return text;
}

std::vector<Progress> parse_progress(const std::string& text) {
  std::vector<Progress> all;
  std::istringstream words(text);
  for (Progress row; words >> row.rounds >> row.kept >> row.has_failed >> row.goes_on;) all.push_back(row);
  return all;
}

}  // namespace tessera::lab
