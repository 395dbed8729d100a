/// The experiment job: runs each row that [experiment] describes as a job of its own, in this process, one by one.
///
/// A row has the folder rows/NNNN_<name> of job.directory, where its job writes what it always writes. A row that fails
/// (out of memory, numbers, files, what this build or these ranks cannot do) keeps its exit code and reason, its memory
/// is free again, and the next one runs. After each row experiment.h5 is written anew:
///
///   /info             attributes: format, version, git_hash, build, hosts, devices, transport, question, command,
///                     deck, created
///   /row              number of the row, that of its folder; the dimension scale of all others
///   /name /exit_code /reason /seconds /resolved_deck    [row]; reason "" where the exit code is 0
///   /keys/<key>       [row]  every key that rows set: numbers where all are, else text
///   /record/<entry>   [row] what experiment.record names, or [row,entry] where it has several values; NaN or "" where
///                     a row has none
///
/// A signal ends the experiment with exit code 75, after the row under way: a training row stops at its next step, a
/// benchmark between its rows. experiment.time_limit_s lets the row under way finish, and ends the experiment so if
/// further rows are to run.
///
/// --resume auto keeps the outcome of every row of the same name that has run with the same keys, and runs the others.
/// job.directory, job.overwrite and job.progress may change, and so may a row's number: its folder is then renamed. Of
/// those that ran, it runs again the ones that a signal stopped and those that failed for their files or the machine
/// (exit codes 75, 6 and 3); their last outcome stays in experiment.h5 until then, also where experiment.only leaves
/// them out. A training row that a signal stopped goes on from its checkpoint; one that its own train.time_limit_s
/// stopped has run. Where a row that is none of these has run, or has a checkpoint, --resume auto is refused (exit 6)
/// unless job.overwrite is set: its result would be lost.
///
/// A row that lacks what experiment.record names is kept nevertheless; the experiment says so at its end and exits with
/// code 6.

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "build_info.hpp"
#include "config/availability.hpp"
#include "config/job_traits.hpp"
#include "config/keys.hpp"
#include "io/answer.hpp"
#include "jobs/directory.hpp"
#include "jobs/jobs.hpp"
#include "jobs/stop.hpp"
#include "jobs/together.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/words.hpp"
#include "lab/experiment_record.hpp"
#include "lab/experiment_rows.hpp"
#include "parallel/collectives/collective.hpp"
#include "train/plan.hpp"

namespace tessera::lab {

using namespace jobs;

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kFormatVersion = 1;

/// How a row ended.
struct Outcome {
  Exit code = Exit::finished;
  std::string reason;  // the message of its failure
  double seconds = NAN;
};

constexpr const char* kStoppedByItsLimit = "stopped by its train.time_limit_s";  // a reason with Exit::stopped

/// Whether a row that ended so has a result.
bool has_run(const Outcome& outcome) {
  return outcome.code == Exit::finished || (outcome.code == Exit::stopped && outcome.reason == kStoppedByItsLimit);
}

/// Whether a resumed experiment keeps a row that ended so.
bool is_final(const Outcome& outcome) {
  if (outcome.code == Exit::stopped) return has_run(outcome);
  return outcome.code != Exit::files && outcome.code != Exit::environment;
}

/// What is to be done with a row.
enum class Action : char { keep = 'k', go_on = 'g', run = 'r' };  // go_on: from its checkpoint

/// A value without quotes and the brackets of a list of one: what a table shows.
std::string plain_text(std::string text) {
  const auto strip = [&](char first, char last) {
    if (text.size() >= 2 && text.front() == first && text.back() == last) text = text.substr(1, text.size() - 2);
  };
  if (text.find(',') == std::string::npos) strip('[', ']');
  if (std::count(text.begin(), text.end(), '"') == 2) strip('"', '"');
  return text;
}

std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

class ExperimentRun {
 public:
  explicit ExperimentRun(const Context& context)
      : context_(context),
        settings_(context.settings()),
        rows_(context.deck.rows),
        world_(context.world),
        stop_(settings_.section<Experiment>().time_limit_s, "experiment.time_limit_s") {}

  Exit run() {
    if (context_.resume && *context_.resume != "auto") {
      fail_together(world_, Exit::usage, "an experiment goes on in its own job.directory: type --resume auto");
    }
    const std::vector<Action> actions = set_up();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (!rows_[i].is_chosen) continue;
      const std::string title = fmt::format("row {} of {}", i + 1, rows_.size());
      if (actions[i] == Action::keep) {
        note(fmt::format("--- {}: {} has run\n", title, rows_[i].name));
        continue;
      }
      if (const std::string reason = agreed(stop_.reason()); !reason.empty()) {
        return stopped(fmt::format("{} before {}", reason, title));
      }
      note(fmt::format("--- {}: {}{}\n", title, rows_[i].name, actions[i] == Action::go_on ? ", goes on" : ""));
      run_row(i, actions[i]);
      save();
    }
    if (const std::string signal = agreed(arrived_signal()); !signal.empty()) {
      return stopped(fmt::format("{} after the last row", signal));
    }
    if (world_.rank() == 0) io::answer(summary());
    save();  // with --resume also what experiment.record has gained
    if (const std::string missing = world_.broadcast(missing_); !missing.empty()) {
      fail_together(world_, Exit::files, missing);
    }
    return Exit::finished;
  }

 private:
  /// What is to be done with each row.
  std::vector<Action> set_up() {
    const auto watch = world_.watch("the experiment's folder", kPatience);
    directory_.emplace(context_, context_.resume.has_value(), note_);
    outcomes_.resize(rows_.size());
    on_root(world_, [&] { context_.resume ? read_outcomes() : directory_->clear(note_); });
    return agreed_actions();
  }

  std::string path() const { return (fs::path(settings_.job.directory) / kExperimentFile).string(); }

  void note(const std::string& text) const {
    if (world_.rank() == 0) io::answer(text);
  }

  // --- rows ----------------------------------------------------------------------------------------------------------

  /// The same on every rank: the first of their reasons to stop that is not "".
  std::string agreed(const std::string& mine) {
    const auto watch = world_.watch("the exchange between rows", kPatience);
    for (const std::string& reason : world_.all_gather(mine)) {
      if (!reason.empty()) return reason;
    }
    return "";
  }

  Exit stopped(const std::string& how) {
    save();
    if (!missing_.empty()) note(missing_ + "\n");
    note(fmt::format("stopped by {}: go on with --resume auto\n", how));
    return Exit::stopped;
  }

  /// On every rank, what rank 0 has decided after the outcomes of an earlier start.
  std::vector<Action> agreed_actions() {
    std::string letters;
    on_root(world_, [&] {
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        const bool is_kept = outcomes_[i] && is_final(*outcomes_[i]);
        letters += static_cast<char>(is_kept ? Action::keep : has_checkpoint(i) ? Action::go_on : Action::run);
      }
    });
    letters = world_.broadcast(letters);
    std::vector<Action> actions;
    for (const char letter : letters) actions.push_back(static_cast<Action>(letter));
    return actions;
  }

  /// Whether the row's folder holds a training that a signal stopped: of this row, as it stands in the deck.
  bool has_checkpoint(std::size_t i) const {
    const fs::path folder = rows_[i].settings.job.directory;
    if (!outcomes_[i] || outcomes_[i]->code != Exit::stopped || rows_[i].settings.job.kind != config::JobKind::train ||
        !io::newest_checkpoint(folder)) {
      return false;
    }
    try {
      const std::string deck = io::h5::File::open(folder / "run.h5").group("info").text("deck");
      return what_is_computed(deck) == what_is_computed(rows_[i].resolved);
    } catch (const Failure& failure) {
      note(fmt::format("{}: row {} starts anew\n", failure.what(), rows_[i].name));
      return false;
    }
  }

  void run_row(std::size_t i, Action action) {
    const double earlier_s = action == Action::go_on && outcomes_[i] ? outcomes_[i]->seconds : 0;
    if (action == Action::run) {
      const auto watch = world_.watch("the folder of a row", kPatience);
      on_root(world_, [&] { clear_row(rows_[i].settings.job.directory, note_); });
    }
    outcomes_[i] = outcome_of(rows_[i], action == Action::go_on ? std::optional<std::string>("auto") : std::nullopt);
    outcomes_[i]->seconds += earlier_s;
    note(outcomes_[i]->code == Exit::finished
             ? fmt::format("--- row {} took {:.1f} s\n", i + 1, outcomes_[i]->seconds)
             : fmt::format("--- row {} ended with exit code {}: {}\n", i + 1, static_cast<int>(outcomes_[i]->code),
                           outcomes_[i]->reason));
  }

  Outcome outcome_of(const config::DeckRow& row, const std::optional<std::string>& resume) {
    Outcome outcome;
    const double start_s = events::now_s();
    try {
      config::Deck deck{row.settings, row.resolved, context_.deck.path, {}};
      deck.settings.job.overwrite = true;  // of results nothing is left, and other files stay
      {
        const auto watch = world_.watch("the start of a row");
        together(world_, [&] { config::check_build(row.settings, train::this_build()); });
      }
      outcome.code = run_job({deck, resume, context_.command, world_});
      if (outcome.code == Exit::stopped) {
        const std::string signal = agreed(arrived_signal());
        outcome.reason = signal.empty() ? kStoppedByItsLimit : "stopped by " + signal;
      }
    } catch (const std::exception& caught) {
      const Failure failure = failure_of(world_, caught);
      const bool is_common = world_.size() == 1 || dynamic_cast<const CollectiveFailure*>(&caught) != nullptr;
      if (!is_common || failure.code() == Exit::hang) {
        leave_with(world_, caught);
        throw;
      }
      outcome.code = failure.code();
      outcome.reason = failure.what();
    }
    {
      const auto watch = world_.watch("the end of a row", kPatience);
      world_.stay();
    }
    Kokkos::fence();
    outcome.seconds = events::now_s() - start_s;
    return outcome;
  }

  std::string summary() const {
    std::map<Exit, std::vector<std::string>> failed;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (outcomes_[i] && outcomes_[i]->code != Exit::finished) failed[outcomes_[i]->code].push_back(rows_[i].name);
    }
    const auto ran = std::count_if(outcomes_.begin(), outcomes_.end(), [](const auto& o) { return o.has_value(); });
    std::string text = fmt::format("{} of {}, in {}\n", ran, counted(std::ssize(rows_), "row"), path());
    for (const auto& [code, names] : failed) {
      text += fmt::format("exit code {}: {}\n", static_cast<int>(code), fmt::join(names, " "));
    }
    return text;
  }

  // --- the file ------------------------------------------------------------------------------------------------------

  /// A row that experiment.h5 holds.
  struct EarlierRow {
    std::string name, computed;  // what its resolved deck computes
    fs::path folder;
    Outcome outcome;

    bool has_result() const {
      return has_run(outcome) || (outcome.code == Exit::stopped && io::newest_checkpoint(folder));
    }
  };

  std::vector<EarlierRow> read_rows() const {
    const io::h5::File file = io::h5::File::open(path());
    if (file.format() != kExperimentFormat || file.group("info").integer("format_version") != kFormatVersion) {
      throw Failure(Exit::files,
                    fmt::format("{} is not an experiment of this version: use another job.directory", path()));
    }
    const auto names = file.dataset("name").strings(), decks = file.dataset("resolved_deck").strings(),
               reasons = file.dataset("reason").strings();
    const auto numbers = file.dataset("row").values<std::int64_t>();
    const auto codes = file.dataset("exit_code").values<std::int64_t>();
    const auto seconds = file.dataset("seconds").values<double>();
    std::vector<EarlierRow> rows;
    for (std::size_t i = 0; i < names.size(); ++i) {
      rows.push_back({names[i],
                      what_is_computed(decks[i]),
                      fs::path(settings_.job.directory) / "rows" / config::row_folder(numbers[i], names[i]),
                      {static_cast<Exit>(codes[i]), reasons[i], seconds[i]}});
    }
    return rows;
  }

  /// The outcomes of rows that an earlier start has run with the same keys; their folders get their numbers. For
  /// rank 0.
  void read_outcomes() {
    std::error_code error;
    if (!fs::exists(path(), error)) return;
    std::vector<const EarlierRow*> kept(rows_.size(), nullptr);
    std::vector<std::string> lost;
    const std::vector<EarlierRow> earlier = read_rows();
    for (const EarlierRow& row : earlier) {
      const auto same = std::find_if(rows_.begin(), rows_.end(), [&](const config::DeckRow& now) {
        return now.name == row.name && what_is_computed(now.resolved) == row.computed;
      });
      if (same != rows_.end()) {
        kept[static_cast<std::size_t>(same - rows_.begin())] = &row;
      } else if (row.has_result()) {
        lost.push_back(row.name);
      }
    }
    if (!lost.empty() && !settings_.job.overwrite) {
      throw Failure(
          Exit::files,
          fmt::format("{} has {} that {} of this deck and its overrides as they stand (another name, other keys, "
                      "another version): {}. --resume auto would lose what ran: use another directory "
                      "(job.directory=..., of scripts/experiment --output), or allow it (job.overwrite=true)",
                      path(), counted(std::ssize(lost), "row"), lost.size() == 1 ? "is no row" : "are no rows",
                      fmt::join(lost, " ")));
    }
    bool has_moved = false;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (!kept[i]) continue;
      outcomes_[i] = kept[i]->outcome;
      has_moved = move_row(kept[i]->folder, rows_[i].settings.job.directory) || has_moved;
    }
    if (has_moved) write();
  }

  /// Gives a row's folder its name of now; whether it had another. No two rows have the same name, so none is in the
  /// way of another.
  static bool move_row(const fs::path& from, const fs::path& to) {
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

  void save() {
    const auto watch = world_.watch("the file of the experiment", kPatience);
    on_root(world_, [&] { write(); });
  }

  /// Writes the rows that have run, and notes what they lack. Nothing if none has. For rank 0.
  void write() {
    missing_.clear();
    std::vector<std::size_t> ran;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (outcomes_[i]) ran.push_back(i);
    }
    if (ran.empty()) return;
    replace_file(path(), [&](io::h5::File& file) {
      write_info(file);
      std::vector<std::int64_t> numbers, codes;
      std::vector<std::string> names, reasons, decks;
      std::vector<double> seconds;
      for (const std::size_t i : ran) {
        numbers.push_back(static_cast<std::int64_t>(i) + 1);
        codes.push_back(static_cast<std::int64_t>(outcomes_[i]->code));
        names.push_back(rows_[i].name);
        reasons.push_back(outcomes_[i]->reason);
        decks.push_back(rows_[i].resolved);
        seconds.push_back(outcomes_[i]->seconds);
      }
      io::h5::Dataset row = file.write("row", numbers, {"1", "number of the row, as in the name of its folder"});
      row.make_scale("row");
      file.write("name", names, {"1", "name of the row"}).attach_scale(row, 0);
      file.write("exit_code", codes, {"1", "exit code of the row's job"}).attach_scale(row, 0);
      file.write("reason", reasons, {"1", "why the row failed"}).attach_scale(row, 0);
      file.write("seconds", seconds, {"s", "wall time of the row"}).attach_scale(row, 0);
      file.write("resolved_deck", decks, {"1", "every key of the row, as TOML"}).attach_scale(row, 0);
      for (const std::string& key : varied_keys(settings_.section<Experiment>())) write_key(file, row, key, ran);
      for (const std::string& entry : settings_.section<Experiment>().record) write_record(file, row, entry, ran);
    });
  }

  void write_info(io::h5::File& file) const {
    io::h5::Group info = file.make_group("info");
    info.set_attribute("format", kExperimentFormat);
    info.set_attribute("format_version", kFormatVersion);
    info.set_attribute("version", build_info::version());
    info.set_attribute("git_hash", build_info::git_hash() + (build_info::is_dirty() ? "-dirty" : ""));
    info.set_attribute("build", build_info::summary() + ", " + build_info::flags());
    info.set_attribute("hosts", world_.hosts());
    info.set_attribute("devices", world_.devices());
    info.set_attribute("ranks", std::int64_t{world_.size()});
    info.set_attribute("transport", world_.size() > 1 ? world_.collectives().description() : "");
    info.set_attribute("question", settings_.section<Experiment>().question);
    info.set_attribute("rows", std::int64_t{std::ssize(rows_)});
    info.set_attribute("command", context_.command);
    info.set_attribute("deck", context_.deck.resolved);
    info.set_attribute("created", created_);
  }

  void write_key(io::h5::File& file, const io::h5::Dataset& row, const std::string& name,
                 const std::vector<std::size_t>& ran) const {
    const config::Key& key = *config::find_key(name);
    std::vector<std::string> texts;
    std::vector<double> numbers;
    for (const std::size_t i : ran) {
      const auto given = rows_[i].given.find(name);  // "small" stays that, whatever else the row sets of its size
      texts.push_back(
          plain_text(given != rows_[i].given.end() ? given->second : config::value_text(key, rows_[i].settings)));
      if (const auto number = number_of(texts.back())) numbers.push_back(*number);
    }
    const std::string path = "keys/" + name;
    const std::string_view description = key.meaning.substr(0, key.meaning.find(". "));
    const io::h5::Meaning meaning{key.unit == "-" ? "1" : key.unit, description};
    if (numbers.size() == texts.size()) {
      file.write(path, numbers, meaning).attach_scale(row, 0);
    } else {
      file.write(path, texts, meaning).attach_scale(row, 0);
    }
  }

  void write_record(io::h5::File& file, const io::h5::Dataset& row, const std::string& entry,
                    const std::vector<std::size_t>& ran) {
    const Recorded recorded = *parse_recorded(entry);
    std::vector<Quantity> quantities(ran.size());
    std::size_t width = 1;
    const Quantity* known = nullptr;
    std::string why;       // the first row that finished lacks it
    bool is_sure = false;  // that it should have it
    for (std::size_t n = 0; n < ran.size(); ++n) {
      const config::Job& job = rows_[ran[n]].settings.job;
      const std::string_view name = config::traits_of(job.kind).file;
      if (name.empty()) continue;
      const fs::path result = fs::path(job.directory) / name;
      const bool has_finished = outcomes_[ran[n]]->code == Exit::finished;
      if (!has_finished && !fs::exists(result)) continue;
      try {
        quantities[n] = read_quantity(result, recorded);
      } catch (const Failure& failure) {
        if (failure.code() != Exit::files) throw;
        if (has_finished && why.empty()) why = failure.what();
        is_sure = is_sure || !jobs_differ_ || !fs::exists(result);
        continue;
      }
      known = &quantities[n];
      width = std::max({width, quantities[n].numbers.size(), quantities[n].texts.size()});
    }
    // Of several kinds of jobs one may have what the others lack.
    if (!why.empty() && missing_.empty() && (is_sure || (known == nullptr && ran.size() == rows_.size()))) {
      missing_ = fmt::format("{}\nThe rows that have run are in {}: --resume auto keeps them", why, path());
    }
    const bool is_text = known != nullptr && known->is_text;
    const std::string units = known != nullptr ? known->units : "1";
    const std::string description = known != nullptr ? known->description : "no row has it";
    const std::string path = "record/" + entry;
    if (is_text) {
      std::vector<std::string> texts;
      for (const Quantity& quantity : quantities) texts.push_back(fmt::format("{}", fmt::join(quantity.texts, ", ")));
      file.write(path, texts, {units, description}).attach_scale(row, 0);
      return;
    }
    std::vector<double> numbers;
    for (const Quantity& quantity : quantities) {
      numbers.insert(numbers.end(), quantity.numbers.begin(), quantity.numbers.end());
      numbers.resize(numbers.size() + width - quantity.numbers.size(), NAN);
    }
    io::h5::Shape shape{std::ssize(ran)};
    if (width > 1) shape.push_back(static_cast<std::int64_t>(width));
    io::h5::Dataset dataset = file.write(path, shape, std::span<const double>(numbers), {units, description});
    dataset.attach_scale(row, 0);
    if (width > 1) dataset.set_label(1, "entry");
  }

  const Context& context_;
  const config::Settings& settings_;
  const std::vector<config::DeckRow>& rows_;
  parallel::World& world_;
  StopRequest stop_;
  const std::string created_ = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  const bool jobs_differ_ = std::any_of(rows_.begin(), rows_.end(), [this](const config::DeckRow& row) {
    return row.settings.job.kind != rows_.front().settings.job.kind;
  });
  const Note note_ = [this](const std::string& text) { note(text); };
  std::optional<RunDirectory> directory_;
  std::vector<std::optional<Outcome>> outcomes_;  // of each row, once it has one; those of an earlier start on rank 0
  std::string missing_;                           // what a row that finished lacks of experiment.record; rank 0
};

}  // namespace

Exit experiment(const Context& context) { return ExperimentRun(context).run(); }

}  // namespace tessera::lab
