/// What --plan --compare RUN.h5 prints: a training run's measurements beside what --plan predicts of it.
///
///   arena          peak_bytes of /steps, beside the layout's: equal to the byte where the same build made both
///   categories     largest live bytes in /memory/events, which the step reports as its tensors begin and end
///   GPU            what rank 0 took of its GPU's memory in the first steps, libraries included (/info)
///   transfers      bytes that a rank sends in a step, by /comm of the first one
///   link           to offloaded state, bytes/s as the run measured it (/info): used to predict the step's time unless
///                  the command line gives plan.host_link_gbyte_per_s
///   times          medians over /steps, of the rows after the first kWarmupSteps; profiled steps have no times
///
/// All measurements are from the run's latest start. The prediction is for the run's stored deck, or another one, on
/// the run's number of ranks, device and hosts, unless plan.device and plan.ranks_per_node say otherwise.
///
/// Throws  Failure(Exit::files) with what is missing, for a file that is no run.h5 or has too few timed steps;
///         Exit::usage for a deck of another job or another number of ranks; what plan_training throws.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "config/availability.hpp"
#include "config/command_line.hpp"
#include "config/deck.hpp"
#include "errors.hpp"
#include "io/table.hpp"
#include "io/trace.hpp"  // kRunFormat
#include "jobs/statistics.hpp"
#include "kernels/core/words.hpp"
#include "lab/lab.hpp"
#include "parallel/collectives/collective.hpp"
#include "train/plan_time.hpp"
#include "train/exchange.hpp"

namespace tessera::lab {
namespace {

using jobs::kWarmupSteps;

/// A run's figures from its run.h5. NaN: not measured.
struct RunFigures {
  std::string deck;  // resolved, as TOML
  io::Launch launch;
  std::size_t timed_steps = 0;  // that count
  bool is_resumed = false;  // then all figures are those since the last resume: before it all may have been different
  double peak_bytes, step_s, forward_s, backward_s, exposed_s, optimizer_s;
  double taken_bytes, host_link;                   // of rank 0's GPU; [bytes/s]
  std::map<std::string, double> live_bytes, sent;  // at most, by category; in a step, by operation: "all_reduce"
};

/// The rows of a table from the run's latest start, like its ranks and deck, and of the lowest rank that has some; all
/// rows if the table does not say.
class LatestStart {
 public:
  LatestStart(const io::h5::Group& table, std::int64_t attempts) : table_(table) {
    if (!table.has("attempt")) return;
    for (const auto attempt : table.dataset("attempt").values<std::int64_t>())
      keeps_.push_back(attempt == attempts - 1);
    if (!table.has("rank")) return;
    const auto ranks = table.dataset("rank").values<std::int64_t>();
    std::int64_t lowest = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (keeps_.at(i)) lowest = std::min(lowest, ranks[i]);
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) keeps_[i] = keeps_[i] && ranks[i] == lowest;
  }

  template <class T = double>
  std::vector<T> column(const std::string& name) const {
    std::vector<T> values = io::values_of<T>(table_.dataset(name));
    if (keeps_.empty()) return values;
    std::vector<T> kept;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (keeps_.at(i)) kept.push_back(std::move(values[i]));
    }
    return kept;
  }
  double median(const std::string& name) const { return jobs::median_of_steps(column(name)); }

 private:
  const io::h5::Group& table_;
  std::vector<bool> keeps_;
};

std::map<std::string, double> largest_live_bytes(const LatestStart& events) {
  const auto categories = events.column<std::string>("category");
  const auto bytes = events.column<std::int64_t>("bytes"), begins = events.column<std::int64_t>("begin");
  std::map<std::string, double> live, most;
  for (std::size_t i = 0; i < categories.size(); ++i) {
    double& now = live[categories[i]];
    now += static_cast<double>(begins.at(i) != 0 ? bytes.at(i) : -bytes.at(i));
    most[categories[i]] = std::max(most[categories[i]], now);
  }
  return most;
}

/// Bytes of messages in the first recorded step by operation, without those of the gradients' norm.
std::map<std::string, double> messages_of_a_step(const LatestStart& calls) {
  const auto operations = calls.column<std::string>("operation"), labels = calls.column<std::string>("label");
  const auto steps = calls.column<std::int64_t>("step"), bytes = calls.column<std::int64_t>("bytes");
  std::map<std::string, double> moved;
  for (std::size_t i = 0; i < operations.size() && steps.at(i) == steps.at(0); ++i) {
    if (labels.at(i) == train::kNormLabel) continue;
    moved[std::string(parallel::word_in_label(operations[i]))] += static_cast<double>(bytes.at(i));
  }
  return moved;
}

config::Deck deck_of(const config::CommandLine& line, const RunFigures& run) {
  if (!line.deck.empty()) return config::load_deck(line.deck, line.overrides);
  return config::parse_stored_deck(run.deck, *line.compare, line.overrides);
}

/// Appends rows of predictions beside measurements; NaN, which prints as "-", where there is none.
class Rows {
 public:
  void add_bytes(const std::string& what, double predicted, double measured) {
    add(what, predicted, measured, [](double bytes) { return fmt::format("{:.0f} B", bytes); });
  }
  void add_time(const std::string& what, double predicted_s, double measured_s) {
    add(what, predicted_s, measured_s, [](double seconds) { return fmt::format("{:.4g} ms", 1e3 * seconds); });
  }
  const std::string& text() const { return text_; }

 private:
  template <class Format>
  void add(const std::string& what, double predicted, double measured, const Format& format) {
    const auto word = [&](double value) { return std::isnan(value) ? std::string("-") : format(value); };
    const double difference = measured / predicted - 1;
    text_ += fmt::format("  {:<24}{:>18}{:>18}{:>12}\n", what, word(predicted), word(measured),
                         std::isfinite(difference) ? fmt::format("{:+.1f} %", 100 * difference) : "-");
  }

  std::string text_;
};

/// Memory of rank 0: the arena, its categories (whose peaks occur at different times), and the whole GPU's.
void add_memory(const train::Plan& plan, const RunFigures& run, bool is_on_gpu, Rows& rows) {
  rows.add_bytes("arena of a rank", static_cast<double>(plan.layout.arena_bytes()), run.peak_bytes);
  const std::vector<std::int64_t> peaks = plan.layout.peak_by_category();
  for (int i = 0; i < memory::kCategories && !run.live_bytes.empty(); ++i) {
    const std::string name(memory::name_of(static_cast<memory::Category>(i)));
    const auto live = run.live_bytes.find(name);
    if (live == run.live_bytes.end() && peaks[i] == 0) continue;
    rows.add_bytes("  " + name, static_cast<double>(peaks[i]), live == run.live_bytes.end() ? 0 : live->second);
  }
  if (is_on_gpu) rows.add_bytes("taken of its GPU", static_cast<double>(plan.layout.total_bytes()), run.taken_bytes);
}

void add_transfers(const train::Plan& plan, const RunFigures& run, Rows& rows) {
  const train::NetworkBytes bytes = train::network_bytes(plan);
  const auto add = [&](const char* what, const char* operation, double predicted) {
    const auto sent = run.sent.find(operation);
    const bool is_there = sent != run.sent.end();
    if (predicted == 0 && !is_there) return;
    rows.add_bytes(what, predicted, is_there ? sent->second : run.sent.empty() ? NAN : 0);
  };
  add("sent by all-reduce", "all_reduce", bytes.all_reduce);
  add("sent by reduce-scatter", "reduce_scatter", bytes.reduce_scatter);
  add("sent by all-gather", "all_gather", bytes.all_gather);
}

void add_times(const train::Plan& plan, const config::Settings& settings, const train::Machine& machine,
               const RunFigures& run, Rows& rows) {
  const train::StepTime time = train::predict_step(plan, settings, machine);
  const bool is_offloaded = train::offloaded_bytes(plan) > 0;  // beside the phases, which have no times of their own
  rows.add_time("step", time.step_s, run.step_s);
  if (is_offloaded) rows.add_time("  its link to the host", time.streams_s, NAN);
  const auto add = [&](const char* phase, double predicted_s, double measured_s) {
    rows.add_time(phase, is_offloaded ? NAN : predicted_s, measured_s);
  };
  add("  forward", time.forward_s, run.forward_s);
  add("  backward", time.backward_s, run.backward_s);
  add("  exposed communication", time.exposed_s, run.exposed_s);
  add("  optimizer", time.optimizer_s, run.optimizer_s);
}

RunFigures read_run(const std::filesystem::path& path) {
  const io::h5::File file = io::h5::File::open(path);
  if (file.format() != io::kRunFormat) {
    throw Failure(Exit::files,
                  "{}: /info does not say that a training run wrote it (format \"tessera run\"). Give the run.h5 of a "
                  "job.kind = \"train\".",
                  path.string());
  }
  const io::h5::Group info = file.group("info"), steps = file.group("steps");
  RunFigures run;
  run.deck = info.text("deck");
  run.launch = io::read_launch(info);
  const std::int64_t attempts = info.has_attribute("attempts") ? info.integer("attempts") : 1;
  const LatestStart rows(steps, attempts);
  run.is_resumed = attempts > 1 && steps.has("attempt");
  const std::vector<double> times = rows.column("step_time");
  for (std::size_t i = kWarmupSteps; i < times.size(); ++i) run.timed_steps += std::isnan(times[i]) ? 0 : 1;
  if (run.timed_steps == 0) {
    throw Failure(Exit::files,
                  "{}: /steps/step_time has no step that counts: {} recorded{}, the first {} warm up, profiled ones "
                  "have no time. Give a longer run.",
                  path.string(), counted(static_cast<std::int64_t>(times.size()), "step"),
                  run.is_resumed ? " since the last resume" : "", kWarmupSteps);
  }
  run.step_s = rows.median("step_time");
  run.forward_s = rows.median("forward");
  run.backward_s = rows.median("backward");
  run.exposed_s = rows.median("exposed_comm");
  run.optimizer_s = rows.median("optimizer");
  run.peak_bytes = NAN;
  for (const double bytes : rows.column("peak_bytes")) run.peak_bytes = std::fmax(run.peak_bytes, bytes);
  const auto number = [&](const char* name) { return info.has_attribute(name) ? info.number(name) : NAN; };
  run.taken_bytes = number("taken_bytes");
  run.host_link = number("host_link");
  if (file.has("memory/events/category")) {
    const io::h5::Group events = file.group("memory/events");
    run.live_bytes = largest_live_bytes(LatestStart(events, attempts));
  }
  if (file.has("comm/step")) {
    const io::h5::Group calls = file.group("comm");
    const config::Parallel sharing = config::parse_stored_deck(run.deck, path.string()).settings.parallel;
    const int ranks = static_cast<int>(run.launch.ranks), shards = train::shards_of(sharing, ranks);
    run.sent = messages_of_a_step(LatestStart(calls, attempts));
    for (auto& [operation, bytes] : run.sent) {
      const int together = operation == "all_reduce" ? ranks / shards : shards;
      bytes *= (operation == "all_reduce" ? 2.0 : 1.0) * (together - 1) / together;
    }
  }
  return run;
}

}  // namespace

std::string compare_text(const config::CommandLine& line) {
  const std::filesystem::path path = *line.compare;
  const RunFigures run = read_run(path);
  config::Settings settings = deck_of(line, run).settings;
  if (settings.job.kind != config::JobKind::train) {
    throw Failure(Exit::usage,
                  "{}: job.kind is not \"train\", and {} is a training run's: give the deck that it trained, or none",
                  line.deck, path.string());
  }
  const int ranks = static_cast<int>(run.launch.ranks);
  if (settings.parallel.ranks != 0 && settings.parallel.ranks != ranks) {
    throw Failure(Exit::usage, "parallel.ranks = {}, but {} was made by {}: leave parallel.ranks out",
                  settings.parallel.ranks, path.string(), counted(ranks, "rank"));
  }
  settings.plan = train::keys_of_run(settings.plan, run.launch.gpu_models,
                                     run.launch.host_count > 1 ? run.launch.ranks_per_host : 0);
  const bool is_link_given = std::any_of(line.overrides.begin(), line.overrides.end(), [](const std::string& text) {
    return text.starts_with("plan.host_link_gbyte_per_s");
  });
  if (std::isfinite(run.host_link) && !is_link_given) settings.plan.host_link_gbyte_per_s = 1e-9 * run.host_link;
  const train::Machine machine = train::machine_of(settings.plan, ranks);
  if (settings.plan.device == config::PlanDevice::here && machine.target.is_host) {
    throw Failure(Exit::usage,
                  "{} ran on {}, which --plan does not know: compare it with a build for that GPU, or name the nearest "
                  "as plan.device",
                  path.string(), run.launch.devices);
  }
  config::check_build(settings,
                      {.cuda = machine.target.has_vendor_parts(), .nccl = machine.has_nccl, .name = machine.build});
  const train::Plan plan = train::plan_training(settings, train::dtype_of(settings.precision.compute), ranks, machine);
  Rows rows;
  add_memory(plan, run, !machine.target.is_host, rows);
  add_transfers(plan, run, rows);
  add_times(plan, settings, machine, run, rows);
  return fmt::format("compare    {}: {}, medians of {}{} after {} of warm-up\n  {:<24}{:>18}{:>18}{:>12}\n",
                     path.string(), counted(ranks, "rank"), counted(static_cast<std::int64_t>(run.timed_steps), "step"),
                     run.is_resumed ? " since the last resume" : "", kWarmupSteps, "", "predicted", "measured",
                     "difference") +
         rows.text() + train::describe_time(plan, settings, machine);
}

}  // namespace tessera::lab
