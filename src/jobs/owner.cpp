#include "jobs/owner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <utility>

#include "config/text.hpp"  // toml_string, toml_number
#include "errors.hpp"
#include "io/files.hpp"

namespace tessera::jobs {

namespace fs = std::filesystem;

namespace {

/// Of a job that neither runs nor will go on.
constexpr std::array kEnded{"BOOT_FAIL", "CANCELLED",     "COMPLETED", "DEADLINE", "FAILED",
                            "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",  "TIMEOUT"};

bool is_job(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || c == '_'; });
}

/// Asks Slurm's controller, for 20 s at most.
Owner::Answer ask_squeue(const std::string& job) {
  const std::string command = fmt::format(
      "command -v squeue > /dev/null || exit 127; timeout 20 squeue --noheader --states=all --jobs={} --format=%T 2>&1 "
      "|| "
      "echo squeue ended with $?",
      job);
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {.text = "it could not be started"};
  Owner::Answer answer;
  std::array<char, 256> part;
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) answer.text += part.data();
  answer.is_there = ::pclose(pipe) == 0;
  return answer;
}

}  // namespace

std::string slurm_job(const Owner::Environment& environment) {
  const auto variable = [&](const char* name) {
    const char* const value = environment(name);
    return value != nullptr && is_job(value) ? std::string(value) : std::string();
  };
  const std::string array = variable("SLURM_ARRAY_JOB_ID"), task = variable("SLURM_ARRAY_TASK_ID");
  return array.empty() || task.empty() ? variable("SLURM_JOB_ID") : array + "_" + task;
}

Owner::Owner(fs::path directory)
    : Owner(
          std::move(directory), [](const char* name) { return std::getenv(name); }, ask_squeue) {}

Owner::Owner(fs::path directory, Environment environment, Squeue squeue)
    : path_(std::move(directory) / kName), environment_(std::move(environment)), squeue_(std::move(squeue)) {}

std::string Owner::variable(const char* name) const {
  const char* const value = environment_(name);
  return value == nullptr ? "" : value;
}

void Owner::require_free(const Note& note) const {
  const State last = read();
  if (last.job.empty() || last.job == slurm_job(environment_)) return;
  const std::string cluster = variable("SLURM_CLUSTER_NAME");
  if (!cluster.empty() && !last.cluster.empty() && cluster != last.cluster) {
    note(fmt::format("{}: job {} of the cluster {} worked here last: make sure that it has ended\n",
                     path_.parent_path().string(), last.job, last.cluster));
    return;
  }
  const Answer answer = squeue_(last.job);
  if (!answer.is_there || answer.text.empty() || answer.text.find("Invalid job id") != std::string::npos) return;
  const std::string state = answer.text.substr(0, answer.text.find('\n'));
  if (std::find(kEnded.begin(), kEnded.end(), state) != kEnded.end()) return;
  if (state.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != std::string::npos) {
    note(fmt::format("{}: whether job {}, which worked here last, has ended is not known (squeue: {})\n",
                     path_.parent_path().string(), last.job, state));
    return;
  }
  throw Failure(Exit::files,
                "{0}: job {1} of Slurm works here ({2}) and will go on after a requeue: wait for its end, end it "
                "(scancel {1}), or use another directory (job.directory=...)",
                path_.parent_path().string(), last.job, state);
}

void Owner::begin(std::optional<std::int64_t> step, bool continues) {
  const State last = continues ? read() : State();
  own_ = {.job = slurm_job(environment_),
          .step = step,
          .starts = 1,
          .longest_checkpoint_s = last.longest_checkpoint_s,
          .longest_step_s = last.longest_step_s};
  if (own_.job.empty()) {
    if (std::error_code error; fs::exists(path_, error)) write();  // no job owns it
    return;
  }
  own_.cluster = variable("SLURM_CLUSTER_NAME");
  own_.submission = variable("TESSERA_SUBMISSION");
  if (own_.submission.empty() && !variable("SLURM_RESTART_COUNT").empty()) own_.submission = own_.job;
  const bool is_same = !own_.submission.empty() && last.submission == own_.submission;
  if (step && is_same && last.step == step) own_.starts = last.starts + 1;
  if (own_.starts > kFruitlessStarts) {
    throw Failure(Exit::environment,
                  "{}: the last {} starts of this submission began at step {}, too, and ended without a step of "
                  "progress, the last of them as job {}: its output says why. Submit again once that is mended",
                  path_.parent_path().string(), last.starts, *step, last.job);
  }
  write();
}

void Owner::release() {
  own_.job.clear();
  std::error_code ignored;
  if (!fs::exists(path_, ignored)) return;
  try {
    write();
  } catch (const Failure&) {
  }
}

void Owner::step_took(double seconds) {
  if (seconds <= own_.longest_step_s) return;
  own_.longest_step_s = seconds;
  has_new_step_ = true;
}

std::string Owner::checkpoint_took(double seconds, bool in_background) {
  if (seconds > own_.longest_checkpoint_s || has_new_step_) {
    own_.longest_checkpoint_s = std::max(seconds, own_.longest_checkpoint_s);
    has_new_step_ = false;
    write();
  }
  const double margin_s = std::atof(variable("TESSERA_MARGIN_S").c_str());
  if (margin_s <= 0 || has_warned_ || own_.longest_step_s + (in_background ? 2 : 1) * seconds <= margin_s) return "";
  has_warned_ = true;
  return fmt::format(
      "warning    a checkpoint took {:.1f} s{}, a step with its validation up to {:.1f} s, and the job ends {:.0f} s "
      "after the signal to stop (TESSERA_MARGIN_S): submit again, with a margin that fits (scripts/slurm/submit)\n",
      seconds, in_background ? " (a stop may wait for two)" : "", own_.longest_step_s, margin_s);
}

Owner::State Owner::read() const {
  State state;
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    const auto equals = line.find(" = ");
    if (equals == std::string::npos) continue;
    const std::string key = line.substr(0, equals), value = line.substr(equals + 3);
    const std::string text = value.size() > 1 && value.front() == '"' ? value.substr(1, value.size() - 2) : value;
    if (key == "job" && is_job(text)) state.job = text;
    if (key == "cluster") state.cluster = text;
    if (key == "submission") state.submission = text;
    if (key == "step") state.step = std::atoll(text.c_str());
    if (key == "starts") state.starts = std::atoi(text.c_str());
    if (key == "longest_step_s") state.longest_step_s = std::atof(text.c_str());
    if (key == "longest_checkpoint_s") state.longest_checkpoint_s = std::atof(text.c_str());
  }
  return state;
}

void Owner::write() const {
  std::string text;
  if (!own_.job.empty()) {
    text = fmt::format("job = {}\ncluster = {}\nsubmission = {}\n", config::toml_string(own_.job),
                       config::toml_string(own_.cluster), config::toml_string(own_.submission));
    if (own_.step) text += fmt::format("step = {}\nstarts = {}\n", *own_.step, own_.starts);
  }
  for (const auto& [name, seconds] :
       {std::pair("longest_checkpoint_s", own_.longest_checkpoint_s), {"longest_step_s", own_.longest_step_s}}) {
    if (seconds > 0) text += fmt::format("{} = {}\n", name, config::toml_number(seconds));
  }
  io::write_text(path_, text);
}

}  // namespace tessera::jobs
