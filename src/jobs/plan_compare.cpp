#include "jobs/plan_compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <sstream>

#include "config/availability.hpp"
#include "config/deck.hpp"
#include "errors.hpp"
#include "io/h5.hpp"
#include "kernels/core/words.hpp"
#include "train/plan_time.hpp"

namespace tessera::jobs {
namespace {

/// The ranks of each host of "node1: 4 ranks, node2: 4 ranks".
std::vector<int> ranks_of(const std::string& hosts, const std::string& where) {
  std::vector<int> ranks;
  std::istringstream words(hosts);
  for (std::string word, before; words >> word; before = word) {
    if (word.starts_with("rank") && std::atoi(before.c_str()) > 0) ranks.push_back(std::atoi(before.c_str()));
  }
  if (!ranks.empty()) return ranks;
  throw Failure(Exit::files,
                fmt::format("{}: hosts = \"{}\" names no ranks. Give the run.h5 of a training run.", where, hosts));
}

/// The rows of a run's latest start, to which its ranks and its deck belong; older files have no other.
class LatestStart {
 public:
  explicit LatestStart(const io::h5::Group& steps) : steps_(steps) {
    if (!steps.has("attempt")) return;
    const auto attempts = steps.dataset("attempt").values<std::int64_t>();
    first_ = std::find(attempts.begin(), attempts.end(), attempts.empty() ? 0 : attempts.back()) - attempts.begin();
  }

  std::vector<double> column(const std::string& name) const {
    std::vector<double> values = steps_.dataset(name).values<double>();
    values.erase(values.begin(), values.begin() + std::min(first_, std::ssize(values)));
    return values;
  }
  double median(const std::string& name) const { return median_after(column(name), kWarmupSteps); }
  bool is_resumed() const { return first_ > 0; }

 private:
  const io::h5::Group& steps_;
  std::ptrdiff_t first_ = 0;
};

/// The value of plan.device for the GPU that a run names; empty if there is none.
std::optional<config::PlanDevice> device_named(const std::string& devices) {
  using config::PlanDevice;
  if (devices.empty()) return PlanDevice::cpu;
  for (const auto& [name, device] :
       {std::pair{"H200", PlanDevice::h200}, {"H100", PlanDevice::h100}, {"A100", PlanDevice::a100}}) {
    if (devices.find(name) != std::string::npos) return device;
  }
  return std::nullopt;
}

config::Deck deck_of(const config::CommandLine& line, const RunFigures& run) {
  if (!line.deck.empty()) return config::load_deck(line.deck, line.overrides);
  return config::parse_deck(run.deck, *line.compare, line.overrides);
}

std::string row_text(const char* what, const std::string& predicted, const std::string& measured, double difference) {
  return fmt::format("  {:<24}{:>18}{:>18}{:>12}\n", what, predicted, measured,
                     std::isfinite(difference) ? fmt::format("{:+.1f} %", 100 * difference) : "-");
}

std::string ms_row(const char* what, double predicted_s, double measured_s) {
  const auto text = [](double seconds) {
    return std::isnan(seconds) ? std::string("-") : fmt::format("{:.4g} ms", 1e3 * seconds);
  };
  return row_text(what, text(predicted_s), text(measured_s), measured_s / predicted_s - 1);
}

}  // namespace

double median_after(std::vector<double> values, std::size_t skipped) {
  values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(std::min(skipped, values.size())));
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return NAN;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

RunFigures read_run(const std::filesystem::path& path) {
  const io::h5::File file = io::h5::File::open(path);
  const bool is_run = file.has("info") && file.group("info").has_attribute("format") &&
                      file.group("info").text("format") == "tessera run";
  if (!is_run) {
    throw Failure(Exit::files, fmt::format("{}: /info does not say that a training run wrote it (format \"tessera "
                                           "run\"). Give the run.h5 of a job.kind = \"train\".",
                                           path.string()));
  }
  const io::h5::Group info = file.group("info"), steps = file.group("steps");
  RunFigures run;
  run.deck = info.text("deck");
  run.devices = info.text("devices");
  const std::vector<int> on_hosts = ranks_of(info.text("hosts"), info.where());
  run.ranks = std::accumulate(on_hosts.begin(), on_hosts.end(), 0);
  run.hosts = static_cast<int>(on_hosts.size());
  run.ranks_per_host = on_hosts.front();
  const LatestStart rows(steps);
  run.is_resumed = rows.is_resumed();
  const std::vector<double> times = rows.column("step_time");
  for (std::size_t i = kWarmupSteps; i < times.size(); ++i) run.timed_steps += std::isnan(times[i]) ? 0 : 1;
  if (run.timed_steps == 0) {
    throw Failure(Exit::files, fmt::format("{}: /steps/step_time has no step that counts: {} recorded{}, the first {} "
                                           "warm up, profiled ones have no time. Give a longer run.",
                                           path.string(), counted(static_cast<std::int64_t>(times.size()), "step"),
                                           run.is_resumed ? " since the last resume" : "", kWarmupSteps));
  }
  run.step_s = rows.median("step_time");
  run.forward_s = rows.median("forward");
  run.backward_s = rows.median("backward");
  run.exposed_s = rows.median("exposed_comm");
  run.optimizer_s = rows.median("optimizer");
  run.peak_bytes = NAN;
  for (const double bytes : rows.column("peak_bytes")) run.peak_bytes = std::fmax(run.peak_bytes, bytes);
  return run;
}

std::string compare_text(const config::CommandLine& line) {
  const std::filesystem::path path = *line.compare;
  const RunFigures run = read_run(path);
  config::Settings settings = deck_of(line, run).settings;
  if (settings.job.kind != config::JobKind::train) {
    throw Failure(Exit::usage, fmt::format("{}: job.kind is not \"train\", and {} is a training run's: give the deck "
                                           "that it trained, or none",
                                           line.deck, path.string()));
  }
  if (settings.parallel.ranks != 0 && settings.parallel.ranks != run.ranks) {
    throw Failure(Exit::usage, fmt::format("parallel.ranks = {}, but {} was made by {}: leave parallel.ranks out",
                                           settings.parallel.ranks, path.string(), counted(run.ranks, "rank")));
  }
  if (settings.plan.device == config::PlanDevice::here) {
    const std::optional<config::PlanDevice> device = device_named(run.devices);
    const bool runs_there = !train::machine_of(settings.plan, run.ranks).target.is_host;
    if (device) {
      settings.plan.device = *device;
    } else if (!runs_there) {
      throw Failure(Exit::usage, fmt::format("{} ran on {}, which --plan does not know: compare it with a build for "
                                             "that GPU, or name the nearest as plan.device",
                                             path.string(), run.devices));
    }
  }
  if (settings.plan.ranks_per_node == 0 && run.hosts > 1) settings.plan.ranks_per_node = run.ranks_per_host;
  const train::Machine machine = train::machine_of(settings.plan, run.ranks);
  config::check_build(settings, {.cuda = !machine.target.is_host, .nccl = machine.has_nccl, .name = machine.build});
  const train::Plan plan =
      train::plan_training(settings, train::dtype_of(settings.precision.compute), run.ranks, machine);
  const train::Rates rates = train::rates_of(settings, plan, machine);
  const train::Spread spread = train::spread_of(plan, settings.plan);
  train::StepTime time{NAN, NAN, NAN, NAN, NAN};
  if (train::missing_rates(plan, rates, spread).empty() && train::offloaded_bytes(plan) == 0) {
    time = train::predict_step(plan, settings.parallel, rates, spread);
  }
  const auto arena = static_cast<double>(plan.layout.arena_bytes());
  const auto bytes_text = [](double bytes) { return std::isnan(bytes) ? "-" : fmt::format("{:.0f} B", bytes); };
  std::string text = fmt::format(
      "compare    {}: {}, medians of {}{} after {} of warm-up\n  {:<24}{:>18}{:>18}{:>12}\n", path.string(),
      counted(run.ranks, "rank"), counted(static_cast<std::int64_t>(run.timed_steps), "step"),
      run.is_resumed ? " since the last resume" : "", kWarmupSteps, "", "predicted", "measured", "difference");
  text += row_text("arena of a rank", bytes_text(arena), bytes_text(run.peak_bytes), run.peak_bytes / arena - 1);
  text += ms_row("step", time.step_s(), run.step_s) + ms_row("  forward", time.forward_s, run.forward_s) +
          ms_row("  backward", time.backward_s, run.backward_s) +
          ms_row("  exposed communication", time.exposed_s, run.exposed_s) +
          ms_row("  optimizer", time.optimizer_s, run.optimizer_s);
  return text + train::describe_time(plan, settings, machine);
}

}  // namespace tessera::jobs
