#include "lab/experiment_file.hpp"  // the contract is there; here is how

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "config/job_traits.hpp"
#include "config/keys.hpp"
#include "io/checkpoint.hpp"
#include "io/table.hpp"
#include "jobs/directory.hpp"
#include "kernels/core/events.hpp"

namespace tessera::lab {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kFormatVersion = 2;  // 1: no axis `round`, and nothing in /relative
constexpr double kFlushShare = 100;         // flushes are at least 100 times the duration of one apart
constexpr const char* kEveryColumn = "";    // stands for the entries of a file that could not be opened

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

/// Numbers of a dataset [row(, round)(, entry)], of version 1 or later, by measurement.
void restore(const io::h5::File& file, const std::string& entry, std::vector<EarlierRow>& rows) {
  const io::h5::Dataset dataset = file.dataset("record/" + entry);
  Quantity quantity{dataset.text("units"), dataset.text("description"), dataset.type() == io::h5::Type::text, {}, {}};
  if (quantity.is_text) {
    const std::vector<std::string> texts = dataset.strings();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      quantity.texts = {texts.at(i)};
      if (!texts[i].empty()) rows[i].rounds.back().record.quantities.emplace(entry, quantity);
    }
    return;
  }
  const std::vector<double> numbers = dataset.values<double>();
  const std::size_t rounds = file.has("round") ? static_cast<std::size_t>(file.dataset("round").size()) : 1;
  const std::size_t width = numbers.size() / rows.size() / rounds;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t round = 0; round < rows[i].rounds.size(); ++round) {
      const auto first = numbers.begin() + static_cast<std::ptrdiff_t>((i * rounds + round) * width);
      quantity.numbers.assign(first, first + static_cast<std::ptrdiff_t>(width));
      const bool is_there =
          !std::all_of(quantity.numbers.begin(), quantity.numbers.end(), [](double x) { return std::isnan(x); });
      if (is_there) rows[i].rounds[round].record.quantities.emplace(entry, quantity);
    }
  }
}

/// Writes the rows that were measured.
class Contents {
 public:
  Contents(const jobs::Context& context, const std::vector<Rounds>& measured, io::h5::File& file)
      : context_(context),
        experiment_(context.settings().section<Experiment>()),
        deck_rows_(context.deck.rows),
        measured_(measured),
        rounds_(static_cast<std::size_t>(experiment_.rounds)),
        file_(file) {
    for (std::size_t i = 0; i < measured.size(); ++i) {
      if (!measured[i].empty()) rows_.push_back(i);
      rounds_ = std::max(rounds_, measured[i].size());
    }
  }

  void write(const std::string& created, const std::vector<std::size_t>& baselines,
             const std::vector<std::string>& other_builds) {
    write_info(created, other_builds);
    write_outcomes();
    for (const std::string& key : varied_keys(experiment_)) write_key(key);
    for (const std::string& entry : entries()) write_record(entry, baselines);
  }

 private:
  /// The entries to write: those that experiment.record names, or else all that rows have.
  std::set<std::string> entries() const {
    std::set<std::string> found(experiment_.record.begin(), experiment_.record.end());
    if (!found.empty()) return found;
    for (const Rounds& rounds : measured_) {
      for (const Measurement& measurement : rounds) {
        for (const auto& [entry, quantity] : measurement.record.quantities) found.insert(entry);
      }
    }
    return found;
  }

  const Quantity* quantity(std::size_t row, std::size_t round, const std::string& entry) const {
    if (round >= measured_[row].size()) return nullptr;
    const auto& quantities = measured_[row][round].record.quantities;
    const auto found = quantities.find(entry);
    return found == quantities.end() ? nullptr : &found->second;
  }

  void write_info(const std::string& created, const std::vector<std::string>& other_builds) {
    io::h5::Group info = file_.make_group("info");
    info.set_attribute("format", jobs::kExperimentFormat);
    info.set_attribute("format_version", kFormatVersion);
    io::write_origin(info, jobs::origin_of(context_));
    info.set_attribute("question", experiment_.question);
    info.set_attribute("rows", std::int64_t{std::ssize(deck_rows_)});
    info.set_attribute("created", created);
    if (!other_builds.empty()) info.set_attribute("other_builds", other_builds);
  }

  void write_outcomes() {
    std::vector<std::int64_t> numbers, codes;
    std::vector<std::string> names, reasons, decks;
    std::vector<std::vector<double>> seconds;
    for (const std::size_t i : rows_) {
      const Outcome& last = measured_[i].back().outcome;
      numbers.push_back(static_cast<std::int64_t>(i) + 1);
      codes.push_back(static_cast<std::int64_t>(last.code));
      names.push_back(deck_rows_[i].name);
      reasons.push_back(last.reason);
      decks.push_back(deck_rows_[i].resolved);
      for (std::size_t round = 0; round < rounds_; ++round)
        seconds.push_back({round < measured_[i].size() ? measured_[i][round].outcome.seconds : NAN});
    }
    io::h5::Dataset row = file_.write("row", numbers, {"1", "number of the row, as in the name of its folder"});
    row.make_scale("row");
    if (rounds_ > 1) {
      std::vector<std::int64_t> rounds(rounds_);
      std::iota(rounds.begin(), rounds.end(), 1);
      file_.write("round", rounds, {"1", "number of the round"}).make_scale("round");
    }
    file_.write("name", names, {"1", "name of the row"}).attach_scale(row, 0);
    file_.write("exit_code", codes, {"1", "exit code of the row's job"}).attach_scale(row, 0);
    file_.write("reason", reasons, {"1", "why the row failed"}).attach_scale(row, 0);
    write_numbers("seconds", seconds, {"s", "wall time of the row"});
    file_.write("resolved_deck", decks, {"1", "every key of the row, as TOML"}).attach_scale(row, 0);
  }

  void write_key(const std::string& name) {
    const config::Key& key = *config::find_key(name);
    std::vector<std::string> texts;
    std::vector<double> numbers;
    for (const std::size_t i : rows_) {
      const auto given = deck_rows_[i].given.find(name);  // "small" stays that, whatever else the row sets of its size
      texts.push_back(plain_text(given != deck_rows_[i].given.end() ? given->second
                                                                    : config::value_text(key, deck_rows_[i].settings)));
      if (const auto number = number_of(texts.back())) numbers.push_back(*number);
    }
    const std::string path = "keys/" + name;
    const std::string_view description = key.meaning.substr(0, key.meaning.find(". "));
    const io::h5::Meaning meaning{key.unit == "-" ? "1" : key.unit, description};
    io::h5::Dataset dataset =
        numbers.size() == texts.size() ? file_.write(path, numbers, meaning) : file_.write(path, texts, meaning);
    dataset.attach_scale(file_.dataset("row"), 0);
  }

  void write_record(const std::string& entry, const std::vector<std::size_t>& baselines) {
    const std::string path = "record/" + entry;
    const Quantity* known = nullptr;
    std::vector<std::vector<double>> cells;
    std::vector<std::string> texts;
    for (const std::size_t i : rows_) {
      texts.emplace_back();
      for (std::size_t round = 0; round < rounds_; ++round) {
        cells.emplace_back();
        const Quantity* found = quantity(i, round, entry);
        if (found == nullptr) continue;
        known = found;
        cells.back() = found->numbers;
        texts.back() = fmt::format("{}", fmt::join(found->texts, ", "));
      }
    }
    if (known == nullptr) return write_numbers(path, cells, {"1", "no row has it"});
    const io::h5::Meaning meaning{known->units, known->description};
    if (known->is_text) return file_.write(path, texts, meaning).attach_scale(file_.dataset("row"), 0);
    write_numbers(path, cells, meaning);
    const bool is_deviation = entry.ends_with(":std") || entry.find("_std_") != std::string::npos;
    if (!baselines.empty() && !is_deviation) write_relative(entry, known->units, baselines);
  }

  void write_relative(const std::string& entry, const std::string& units, const std::vector<std::size_t>& baselines) {
    if (comparison_of(units) == Comparison::none) return;
    std::vector<std::vector<double>> cells;
    for (const std::size_t i : rows_) {
      for (std::size_t round = 0; round < rounds_; ++round) {
        cells.emplace_back();
        const Quantity *own = quantity(i, round, entry), *other = quantity(baselines[i], round, entry);
        if (own == nullptr || other == nullptr) continue;
        for (std::size_t n = 0; n < std::min(own->numbers.size(), other->numbers.size()); ++n)
          cells.back().push_back(compared(units, own->numbers[n], other->numbers[n]));
      }
    }
    const std::string description =
        comparison_of(units) == Comparison::saved
            ? fmt::format("saved: 1 - {} / that of the row of {}", entry, experiment_.baseline)
            : fmt::format("speed-up by {}: how many times as fast as the row of {}", entry, experiment_.baseline);
    write_numbers("relative/" + entry, cells, {"1", description});
  }

  /// `cells` are those of a row's rounds, row by row; the axes `round` and `entry` are there if they are longer than 1.
  void write_numbers(const std::string& path, const std::vector<std::vector<double>>& cells,
                     const io::h5::Meaning& meaning) {
    std::size_t width = 1;
    for (const std::vector<double>& cell : cells) width = std::max(width, cell.size());
    std::vector<double> numbers;
    for (const std::vector<double>& cell : cells) {
      numbers.insert(numbers.end(), cell.begin(), cell.end());
      numbers.resize(numbers.size() + width - cell.size(), NAN);
    }
    io::h5::Shape shape{std::ssize(rows_)};
    if (rounds_ > 1) shape.push_back(static_cast<std::int64_t>(rounds_));
    if (width > 1) shape.push_back(static_cast<std::int64_t>(width));
    io::h5::Dataset dataset = file_.write(path, shape, std::span<const double>(numbers), meaning);
    dataset.attach_scale(file_.dataset("row"), 0);
    if (rounds_ > 1) dataset.attach_scale(file_.dataset("round"), 1);
    if (width > 1) dataset.attach_scale(entry_scale(width), static_cast<int>(shape.size()) - 1);
  }

  /// The scale of axes of `width` entries: /entry_WIDTH, since quantities differ in their numbers of entries.
  io::h5::Dataset entry_scale(std::size_t width) {
    const std::string name = fmt::format("entry_{}", width);
    if (file_.has(name)) return file_.dataset(name);
    io::h5::Dataset scale = file_.write(name, io::numbers_up_to(width), {"1", "number of the entry"});
    scale.make_scale(name);
    return scale;
  }

  const jobs::Context& context_;
  const Experiment& experiment_;
  const std::vector<config::DeckRow>& deck_rows_;
  const std::vector<Rounds>& measured_;  // by row
  std::size_t rounds_;
  std::vector<std::size_t> rows_;  // that were measured
  io::h5::File& file_;
};

}  // namespace

bool EarlierRow::has_result() const {
  return std::any_of(rounds.begin(), rounds.end(), [](const Measurement& m) { return has_run(m.outcome); }) ||
         (rounds.back().outcome.code == Exit::stopped && io::newest_checkpoint(folder));
}

ExperimentFile::ExperimentFile(const jobs::Context& context)
    : context_(context),
      settings_(context.settings()),
      rows_(context.deck.rows),
      path_((fs::path(settings_.job.directory) / jobs::kExperimentFile).string()),
      created_(fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))),
      baselines_(baselines_of(settings_.section<Experiment>(), expand(settings_.section<Experiment>())).rows),
      measured_(rows_.size()) {}

ExperimentFile::~ExperimentFile() {
  try {
    if (has_unwritten_) flush();
  } catch (const std::exception&) {
    // the exception that ends the experiment is the one to report
  }
}

// --- an earlier start ------------------------------------------------------------------------------------------------

std::optional<std::int64_t> ExperimentFile::read_ranks() const {
  const io::h5::File file = io::h5::File::open(path_);  // whose groups end with it
  const io::h5::Group info = file.group("info");
  return info.has_attribute("ranks") ? std::optional(info.integer("ranks")) : std::nullopt;
}

std::vector<std::string> ExperimentFile::read_other_builds() const {
  const io::h5::File file = io::h5::File::open(path_);
  const io::h5::Group info = file.group("info");
  using Texts = std::vector<std::string>;
  Texts others = info.has_attribute("other_builds") ? info.texts("other_builds") : Texts{};
  const std::string build = info.has_attribute("build") ? info.text("build") : "an older version";
  const Texts gpus = info.has_attribute("gpu_models") ? info.texts("gpu_models") : Texts{};
  const io::Origin now = jobs::origin_of(context_);
  if (build != now.build || gpus != now.launch.gpu_models)
    others.push_back(gpus.empty() ? build : fmt::format("{} on {}", build, fmt::join(gpus, ", ")));
  return others;
}

std::vector<EarlierRow> ExperimentFile::read_rows() const {
  const io::h5::File file = io::h5::File::open(path_);
  const bool is_one = file.format() == jobs::kExperimentFormat;
  const std::int64_t version = is_one ? file.group("info").integer("format_version") : 0;
  if (version < 1 || version > kFormatVersion) {
    throw Failure(Exit::files, "{} is not an experiment of this version: use another job.directory", path_);
  }
  const auto names = file.dataset("name").strings(), decks = file.dataset("resolved_deck").strings(),
             reasons = file.dataset("reason").strings();
  const auto numbers = file.dataset("row").values<std::int64_t>();
  const auto codes = file.dataset("exit_code").values<std::int64_t>();
  const auto seconds = file.dataset("seconds").values<double>();
  if (names.empty()) return {};
  const std::size_t axis = seconds.size() / names.size();
  std::vector<EarlierRow> rows;
  for (std::size_t i = 0; i < names.size(); ++i) {
    EarlierRow row{names[i],
                   what_is_computed(decks[i]),
                   fs::path(settings_.job.directory) / "rows" / config::row_folder(numbers[i], names[i]),
                   {}};
    for (std::size_t round = 0; round < axis && std::isfinite(seconds[i * axis + round]); ++round) {
      row.rounds.push_back({{Exit::finished, "", seconds[i * axis + round]}});
    }
    if (row.rounds.empty()) row.rounds.emplace_back();  // no file of this program has such a row
    Outcome& last = row.rounds.back().outcome;
    last.code = static_cast<Exit>(codes[i]);
    last.reason = reasons[i];
    rows.push_back(std::move(row));
  }
  if (file.has("record")) {
    for (const std::string& entry : file.group("record").dataset_paths()) restore(file, entry, rows);
  }
  return rows;
}

void ExperimentFile::keep(std::size_t row, Rounds rounds) {
  Measurement& last = rounds.back();
  std::map<std::string, Quantity>& known = last.record.quantities;
  const std::vector<std::string>& asked = settings_.section<Experiment>().record;
  const bool has_all =
      !known.empty() && std::ranges::all_of(asked, [&](const std::string& entry) { return known.contains(entry); });
  if (!has_all || fs::exists(result_of(row))) {
    RowRecord of_file = read_results(row, last.outcome);
    for (const auto& [entry, quantity] : known) of_file.lacking.erase(entry);
    known.merge(of_file.quantities);
    last.record.lacking = std::move(of_file.lacking);
  }
  measured_[row] = std::move(rounds);
  has_unwritten_ = true;
}

// --- measurements ----------------------------------------------------------------------------------------------------

void ExperimentFile::add(std::size_t row, std::int64_t round, Outcome outcome) {
  Rounds& rounds = measured_[row];
  rounds.resize(static_cast<std::size_t>(round));
  rounds.back() = {std::move(outcome)};
  rounds.back().record = read_results(row, rounds.back().outcome);
  has_unwritten_ = true;
}

fs::path ExperimentFile::result_of(std::size_t row) const {
  const config::Job& job = rows_[row].settings.job;
  return fs::path(job.directory) / config::traits_of(job.kind).file;
}

RowRecord ExperimentFile::read_results(std::size_t row, const Outcome& outcome) const {
  const config::JobKind kind = rows_[row].settings.job.kind;
  const fs::path result = result_of(row);
  const bool has_finished = outcome.code == Exit::finished;
  if (!result.has_filename() || (!has_finished && !fs::exists(result))) return {};
  const std::vector<std::string>& asked = settings_.section<Experiment>().record;
  if (asked.empty() && kind == config::JobKind::train) return {};  // its columns are steps
  RowRecord record;
  try {
    record = read_record(result, asked);
  } catch (const Failure& failure) {
    if (failure.code() != Exit::files) throw;
    record.lacking.emplace(kEveryColumn, failure.what());
  }
  if (!has_finished) record.lacking.clear();
  return record;
}

std::string ExperimentFile::missing() const {
  std::vector<std::string> asked = settings_.section<Experiment>().record;
  asked.insert(asked.begin(), kEveryColumn);
  const bool jobs_differ = std::any_of(rows_.begin(), rows_.end(), [this](const config::DeckRow& row) {
    return row.settings.job.kind != rows_.front().settings.job.kind;
  });
  const bool all_have_run =
      std::all_of(measured_.begin(), measured_.end(), [](const Rounds& rounds) { return !rounds.empty(); });
  for (const std::string& entry : asked) {
    std::string why;
    bool has_any = false;
    for (const Rounds& rounds : measured_) {
      if (rounds.empty()) continue;
      const RowRecord& record = rounds.back().record;
      const auto lacks = record.lacking.find(entry);
      if (why.empty() && lacks != record.lacking.end()) why = lacks->second;
      has_any = has_any || record.quantities.contains(entry);
    }
    // One kind of job may have what others lack.
    const bool is_sure = entry == kEveryColumn || !jobs_differ || (!has_any && all_have_run);
    if (!why.empty() && is_sure)
      return fmt::format("{}\nThe rows that have run are in {}: --resume auto keeps them", why, path_);
  }
  return "";
}

// --- the file --------------------------------------------------------------------------------------------------------

void ExperimentFile::flush_if_due() {
  if (has_unwritten_ && events::now_s() - last_flush_s_ >= kFlushShare * last_flush_took_s_) flush();
}

void ExperimentFile::flush() {
  const auto is_measured = [](const Rounds& rounds) { return !rounds.empty(); };
  if (std::none_of(measured_.begin(), measured_.end(), is_measured)) return;
  const double start_s = events::now_s();
  has_unwritten_ = false;  // a failure is reported once
  jobs::replace_file(path_, [&](io::h5::File& file) {
    Contents(context_, measured_, file).write(created_, baselines_, other_builds_);
  });
  last_flush_s_ = events::now_s();
  last_flush_took_s_ = last_flush_s_ - start_s;
}

}  // namespace tessera::lab
