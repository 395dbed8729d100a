#include "lab/experiment_file.hpp"  // the contract is there; here is how

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <optional>

#include "build_info.hpp"
#include "config/job_traits.hpp"
#include "config/keys.hpp"
#include "io/checkpoint.hpp"
#include "jobs/directory.hpp"
#include "jobs/placement.hpp"
#include "lab/experiment_record.hpp"
#include "lab/experiment_rows.hpp"
#include "parallel/collectives/collective.hpp"

namespace tessera::lab {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kFormatVersion = 1;

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

}  // namespace

bool EarlierRow::has_result() const {
  return has_run(outcome) || (outcome.code == Exit::stopped && io::newest_checkpoint(folder));
}

ExperimentFile::ExperimentFile(const jobs::Context& context)
    : context_(context),
      settings_(context.settings()),
      rows_(context.deck.rows),
      world_(context.world),
      path_((fs::path(settings_.job.directory) / jobs::kExperimentFile).string()),
      created_(fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))),
      jobs_differ_(std::any_of(rows_.begin(), rows_.end(), [this](const config::DeckRow& row) {
        return row.settings.job.kind != rows_.front().settings.job.kind;
      })) {}

std::vector<EarlierRow> ExperimentFile::read_rows() const {
  const io::h5::File file = io::h5::File::open(path_);
  if (file.format() != jobs::kExperimentFormat || file.group("info").integer("format_version") != kFormatVersion) {
    throw Failure(Exit::files,
                  fmt::format("{} is not an experiment of this version: use another job.directory", path_));
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

std::string ExperimentFile::write(const Outcomes& outcomes) {
  missing_.clear();
  std::vector<std::size_t> ran;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (outcomes[i]) ran.push_back(i);
  }
  if (ran.empty()) return missing_;
  jobs::replace_file(path_, [&](io::h5::File& file) {
    write_info(file);
    std::vector<std::int64_t> numbers, codes;
    std::vector<std::string> names, reasons, decks;
    std::vector<double> seconds;
    for (const std::size_t i : ran) {
      numbers.push_back(static_cast<std::int64_t>(i) + 1);
      codes.push_back(static_cast<std::int64_t>(outcomes[i]->code));
      names.push_back(rows_[i].name);
      reasons.push_back(outcomes[i]->reason);
      decks.push_back(rows_[i].resolved);
      seconds.push_back(outcomes[i]->seconds);
    }
    io::h5::Dataset row = file.write("row", numbers, {"1", "number of the row, as in the name of its folder"});
    row.make_scale("row");
    file.write("name", names, {"1", "name of the row"}).attach_scale(row, 0);
    file.write("exit_code", codes, {"1", "exit code of the row's job"}).attach_scale(row, 0);
    file.write("reason", reasons, {"1", "why the row failed"}).attach_scale(row, 0);
    file.write("seconds", seconds, {"s", "wall time of the row"}).attach_scale(row, 0);
    file.write("resolved_deck", decks, {"1", "every key of the row, as TOML"}).attach_scale(row, 0);
    for (const std::string& key : varied_keys(settings_.section<Experiment>())) write_key(file, row, key, ran);
    for (const std::string& entry : settings_.section<Experiment>().record)
      write_record(file, row, entry, ran, outcomes);
  });
  return missing_;
}

void ExperimentFile::write_info(io::h5::File& file) const {
  io::h5::Group info = file.make_group("info");
  info.set_attribute("format", jobs::kExperimentFormat);
  info.set_attribute("format_version", kFormatVersion);
  info.set_attribute("version", build_info::version());
  info.set_attribute("git_hash", build_info::git_hash() + (build_info::is_dirty() ? "-dirty" : ""));
  info.set_attribute("build", build_info::summary() + ", " + build_info::flags());
  io::write_launch(info, jobs::launch_of(world_));
  info.set_attribute("transport", world_.size() > 1 ? world_.collectives().description() : "");
  info.set_attribute("question", settings_.section<Experiment>().question);
  info.set_attribute("rows", std::int64_t{std::ssize(rows_)});
  info.set_attribute("command", context_.command);
  info.set_attribute("deck", context_.deck.resolved);
  info.set_attribute("created", created_);
}

void ExperimentFile::write_key(io::h5::File& file, const io::h5::Dataset& row, const std::string& name,
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
  const std::string entry = "keys/" + name;
  const std::string_view description = key.meaning.substr(0, key.meaning.find(". "));
  const io::h5::Meaning meaning{key.unit == "-" ? "1" : key.unit, description};
  if (numbers.size() == texts.size()) {
    file.write(entry, numbers, meaning).attach_scale(row, 0);
  } else {
    file.write(entry, texts, meaning).attach_scale(row, 0);
  }
}

void ExperimentFile::write_record(io::h5::File& file, const io::h5::Dataset& row, const std::string& entry,
                                  const std::vector<std::size_t>& ran, const Outcomes& outcomes) {
  const Recorded recorded = *parse_recorded(entry);
  std::vector<Quantity> quantities(ran.size());
  std::size_t width = 1;
  const Quantity* known = nullptr;
  std::string why;       // the first row that finished lacks it
  bool is_sure = false;  // that it should have it
  for (std::size_t n = 0; n < ran.size(); ++n) {
    const config::Job& job = rows_[ran[n]].settings.job;
    const std::string_view own = config::traits_of(job.kind).file;
    if (own.empty()) continue;
    const fs::path result = fs::path(job.directory) / own;
    const bool has_finished = outcomes[ran[n]]->code == Exit::finished;
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
    missing_ = fmt::format("{}\nThe rows that have run are in {}: --resume auto keeps them", why, path_);
  }
  const bool is_text = known != nullptr && known->is_text;
  const std::string units = known != nullptr ? known->units : "1";
  const std::string description = known != nullptr ? known->description : "no row has it";
  const std::string name = "record/" + entry;
  if (is_text) {
    std::vector<std::string> texts;
    for (const Quantity& quantity : quantities) texts.push_back(fmt::format("{}", fmt::join(quantity.texts, ", ")));
    file.write(name, texts, {units, description}).attach_scale(row, 0);
    return;
  }
  std::vector<double> numbers;
  for (const Quantity& quantity : quantities) {
    numbers.insert(numbers.end(), quantity.numbers.begin(), quantity.numbers.end());
    numbers.resize(numbers.size() + width - quantity.numbers.size(), NAN);
  }
  io::h5::Shape shape{std::ssize(ran)};
  if (width > 1) shape.push_back(static_cast<std::int64_t>(width));
  io::h5::Dataset dataset = file.write(name, shape, std::span<const double>(numbers), {units, description});
  dataset.attach_scale(row, 0);
  if (width > 1) dataset.set_label(1, "entry");
}

}  // namespace tessera::lab
