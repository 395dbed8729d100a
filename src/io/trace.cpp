#include "io/trace.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <random>
#include <stdexcept>
#include <utility>

#include "io/files.hpp"
#include "io/table.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr double kFlushShare = 200;  // flushes are at least 200 times the duration of one apart

constexpr const char* kRunning = "running";
constexpr const char* kWallClock = "seconds since 1970-01-01 00:00:00";  // CF conventions: xarray makes dates of it

const h5::Meaning kStep{"1", "optimizer step in progress"};
const h5::Meaning kRank{"1", "MPI rank that reported it"};
const h5::Meaning kAttempt{"1", "which start of the run: 0 the first, one more at each resume; times count from it"};

const Column<StepRecord> kStepColumns[] = {
    {"loss", {"nat", "training loss per token, mean over the global batch"}, &StepRecord::loss},
    {"validation_loss", {"nat", "loss per token on the validation part"}, &StepRecord::validation_loss},
    {"grad_norm", {"1", "global gradient norm before clipping"}, &StepRecord::grad_norm},
    {"learning_rate", {"1", "learning rate of this step"}, &StepRecord::learning_rate},
    {"tokens", {"token", "tokens trained on since step 0, over all ranks"}, &StepRecord::tokens},
    {"step_time",
     {"s", "from the end of the previous step, or from the start if that came later, to the end"},
     &StepRecord::step_time_s},
    {"forward", {"s", "time of the forward pass, waits for communication excepted"}, &StepRecord::forward_s},
    {"backward", {"s", "time of the backward pass, waits for communication excepted"}, &StepRecord::backward_s},
    {"exposed_comm", {"s", "time in which the rank only waited for communication"}, &StepRecord::exposed_comm_s},
    {"optimizer", {"s", "time of clipping and update"}, &StepRecord::optimizer_s},
    {"tokens_per_second", {"token/s", "training throughput over all ranks"}, &StepRecord::tokens_per_second},
    {"mfu", {"1", "model flop rate as a fraction of the dense peak: attribute mfu of /info"}, &StepRecord::mfu},
    {"peak_bytes", {"byte", "rank 0's arena, which all tensors of a step share"}, &StepRecord::peak_bytes},
    {"loss_scale", {"1", "factor on the loss (fp16 only)"}, &StepRecord::loss_scale},
    {"wall_time", {kWallClock, "when the step had ended, UTC"}, &StepRecord::wall_time_s},
    {"first_sample", {"1", "number of the first sample of its batch"}, &StepRecord::first_sample},
    {"bad", {"1", "1: loss or gradients not finite, 2: a spike of the norm; no weights changed"}, &StepRecord::bad},
    {"attempt", kAttempt, &StepRecord::attempt},
};
const Column<RankPlace> kPlaceColumns[] = {
    {"host", {"1", "its host"}, &RankPlace::host},
    {"local_rank", {"1", "number among the ranks of its host"}, &RankPlace::local_rank},
    {"gpu", {"1", "model of its GPU; empty on CPUs"}, &RankPlace::gpu},
    {"bus_id", {"1", "PCI address of its GPU; empty on CPUs"}, &RankPlace::bus_id},
    {"uuid", {"1", "identifier of its GPU; empty on CPUs"}, &RankPlace::uuid},
    {"numa_node", {"1", "that has all its cores; -1: of several, or unknown"}, &RankPlace::numa_node},
    {"cores", {"1", "cores that it may use"}, &RankPlace::cores},
    {"check", {"s", "time that the check of its device took at the start"}, &RankPlace::check_s},
    {"memory_rate", {"byte/s", "of copies in its GPU's memory in that check, both ways"}, &RankPlace::memory_rate},
};
const Column<Attempt> kAttemptColumns[] = {
    {"start", {kWallClock, "when the start opened this file, UTC"}, &Attempt::start_s},
    {"end", {kWallClock, "when it last wrote this file, UTC"}, &Attempt::end_s},
    {"reason", {"1", "how it ended"}, &Attempt::reason},
    {"from_step", {"1", "optimizer steps done when it started"}, &Attempt::from_step},
    {"hosts", {"1", "hosts, each with its ranks"}, &Attempt::hosts},
    {"ranks", {"1", "ranks of the launch; 0: not recorded"}, &Attempt::ranks},
    {"job", {"1", "number of the Slurm job; empty without Slurm"}, &Attempt::job},
    {"commit", {"1", "git commit of the program"}, &Attempt::commit},
};
const Column<KernelRow> kKernelColumns[] = {
    {"calls", {"1", "launches during the profiled steps"}, &KernelRow::calls},
    {"total", {"s", "time of all launches"}, &KernelRow::total_s},
    {"min", {"s", "shortest launch"}, &KernelRow::min_s},
    {"max", {"s", "longest launch"}, &KernelRow::max_s},
};
const Column<RegionRow> kRegionColumns[] = {
    {"label", {"1", "phase, unit or kernel"}, &RegionRow::label},
    {"start", {"s", "begin, since the program started; on a GPU when enqueued, unless profiled"}, &RegionRow::start_s},
    {"end", {"s", "end, since the program started; on a GPU when enqueued, unless profiled"}, &RegionRow::end_s},
    {"rank", kRank, &RegionRow::rank, true},
    {"stream", {"1", "compute or communication"}, &RegionRow::stream},
    {"step", kStep, &RegionRow::step, true},
    {"attempt", kAttempt, &RegionRow::attempt, true},
};
const Column<MemoryRow> kMemoryColumns[] = {
    {"time",
     {"s", "since the program started; on a GPU when enqueued, unless the step was profiled"},
     &MemoryRow::time_s},
    {"label", {"1", "tensor that becomes live or dead"}, &MemoryRow::label},
    {"bytes", {"byte", "its size"}, &MemoryRow::bytes},
    {"begin", {"1", "1: becomes live, 0: becomes dead"}, &MemoryRow::is_begin},
    {"live_bytes", {"byte", "all live bytes afterwards"}, &MemoryRow::live_bytes},
    {"phase", {"1", "phase of the step"}, &MemoryRow::phase},
    {"category", {"1", "parameters, gradients, activations, ..."}, &MemoryRow::category},
    {"dtype", {"1", "number format of its elements"}, &MemoryRow::dtype, true},
    {"rank", kRank, &MemoryRow::rank, true},
    {"step", kStep, &MemoryRow::step, true},
    {"attempt", kAttempt, &MemoryRow::attempt, true},
};
const Column<CommRow> kCommColumns[] = {
    {"operation", {"1", "collective"}, &CommRow::operation},
    {"label", {"1", "what it moved"}, &CommRow::label},
    {"bytes", {"byte", "size of the buffer on one rank"}, &CommRow::bytes},
    {"start", {"s", "enqueued, since the program started"}, &CommRow::start_s},
    {"end", {"s", "complete, since the program started"}, &CommRow::end_s},
    {"exposed", {"s", "time in which the rank only waited for it"}, &CommRow::exposed_s},
    {"rank", kRank, &CommRow::rank, true},
    {"step", kStep, &CommRow::step, true},
    {"attempt", kAttempt, &CommRow::attempt, true},
};

/// The run.h5 in `run_directory`; none where that is missing, a link, or of another program. Throws Failure if it is no
/// HDF5 file.
std::optional<h5::File> open_run(const std::filesystem::path& run_directory) {
  const std::filesystem::path path = run_directory / "run.h5";
  std::error_code error;
  if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path, error))) return {};
  auto file = h5::File::open(path);
  if (file.format() != kRunFormat) return {};
  return file;
}

std::string new_run_id() {
  std::random_device bits;
  return fmt::format("{:08x}{:08x}", bits(), bits());
}

}  // namespace

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<Attempt> load_attempts(const h5::Group& file, std::int64_t count) {
  if (!file.has("attempts")) return std::vector<Attempt>(static_cast<std::size_t>(count), {.reason = "not recorded"});
  std::vector<Attempt> attempts = load_rows(file.group("attempts"), "reason", kAttemptColumns);
  if (std::ssize(attempts) < count) throw std::out_of_range("attempts");
  attempts.resize(static_cast<std::size_t>(count));
  for (Attempt& attempt : attempts) {
    if (attempt.reason == kRunning) attempt.reason = "killed";
  }
  return attempts;
}

std::string run_id_in(const std::filesystem::path& run_directory) {
  try {
    const auto file = open_run(run_directory);
    if (!file) return "";
    const auto info = file->group("info");
    return info.has_attribute("run_id") ? info.text("run_id") : "";
  } catch (const Failure&) {  // no HDF5 file
    return "";
  }
}

std::optional<RunEnd> end_of_run(const std::filesystem::path& run_directory) {
  try {
    const auto file = open_run(run_directory);
    if (!file) return {};
    const auto steps = file->dataset("steps/step").values<std::int64_t>();
    const auto attempts = load_attempts(*file, file->group("info").integer("attempts"));
    return RunEnd{steps.empty() ? 0 : steps.back(), attempts.empty() ? "" : attempts.back().reason};
  } catch (const Failure& fault) {
    if (fault.code() != Exit::files) throw;
  } catch (const std::out_of_range&) {  // columns that differ in length
  }
  return {};  // a damaged file: what continues it says so
}

Trace::Trace(std::filesystem::path path, RunInfo info, double flush_s, std::optional<std::int64_t> resumed_step,
             std::function<void()> require_place)
    : path_(std::move(path)),
      require_place_(std::move(require_place)),
      info_(std::move(info)),
      flush_s_(flush_s),
      log_(resumed_step.value_or(0) + 1) {
  created_ = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  const bool continues = resumed_step && std::filesystem::exists(path_);
  if (continues) {
    const auto resume_without = [this](const std::string& fault) {
      return Failure(Exit::files, "{} To resume without its rows, which no checkpoint needs, move it away: mv {} {}",
                     fault, shell_word(path_), shell_word(path_.string() + ".old"));
    };
    try {
      load(*resumed_step);
    } catch (const Failure& fault) {
      if (fault.code() != Exit::files) throw;  // memory that ran out is no fault of the file
      throw resume_without(fault.what());
    } catch (const std::out_of_range&) {
      throw resume_without(path_.string() + ": its columns differ in length.");
    }
    last_flush_s_ = events::now_s();
  }
  if (info_.run_id.empty()) info_.run_id = new_run_id();
  attempts_.push_back({.start_s = wall_clock_s(),
                       .reason = kRunning,
                       .from_step = resumed_step.value_or(0),
                       .hosts = info_.origin.launch.hosts,
                       .ranks = info_.origin.launch.ranks,
                       .job = info_.job,
                       .commit = info_.origin.git_hash});
  if (!continues) {
    flush();  // reports a path that cannot be written before the first step
  }
}

Trace::~Trace() {
  try {
    if (has_unwritten_ || log_.has_rows()) flush();  // a job that ends by an exception keeps its last rows
  } catch (...) {                                    // that exception is the one to report
  }
}

void Trace::add(const StepRecord& record) {
  steps_.push_back(record);
  steps_.back().attempt = attempt_;
  log_.set_step(record.step + 1);
  has_unwritten_ = true;
}

void Trace::cut(std::int64_t step) {
  const std::vector<std::int64_t> kept = kept_steps();
  kept_ = std::upper_bound(kept.begin(), kept.end(), step) - kept.begin();
  std::erase_if(steps_, [&](const StepRecord& row) { return row.step > step; });
  rank_steps_.resize(kept_ + std::ssize(steps_));
  events_.cut(attempt_, step);
  log_.set_step(step + 1);
  has_unwritten_ = true;
}

void Trace::add(EventRows rows, std::int32_t rank) {
  has_unwritten_ = has_unwritten_ || !rows.is_empty();
  events_.append(std::move(rows), attempt_, rank);
}

void Trace::set_kernels(std::vector<KernelRow> kernels) {
  kernels_ = std::move(kernels);
  has_unwritten_ = true;
}

void Trace::set_sample(std::span<const int> prompt, std::span<const int> generated, std::int64_t step) {
  sample_step_ = step;
  sample_.assign(prompt.begin(), prompt.end());
  sample_.insert(sample_.end(), generated.begin(), generated.end());
  is_prompt_.assign(sample_.size(), 0);
  std::fill_n(is_prompt_.begin(), prompt.size(), std::uint8_t{1});
  has_unwritten_ = true;
}

bool Trace::is_flush_due() const {
  return (has_unwritten_ || log_.has_rows()) &&
         events::now_s() - last_flush_s_ >= std::max(flush_s_, kFlushShare * last_flush_took_s_);
}

void Trace::set_end(std::string reason) {
  attempts_.back().reason = std::move(reason);
  has_unwritten_ = true;
}

void Trace::flush() {
  require_place_();
  const double start_s = events::now_s();
  attempts_.back().end_s = wall_clock_s();
  has_unwritten_ = has_unwritten_ || log_.has_rows();
  events_.append(log_.take(), attempt_, 0);
  const auto temporary = std::filesystem::path(path_) += ".tmp";
  try {
    write(temporary);
    sync_file(temporary);
    auto written = h5::File::open(temporary);
    publish(temporary, path_);
    earlier_.emplace(std::move(written));
  } catch (const Failure&) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  kept_ += std::ssize(steps_);
  steps_.clear();
  rank_steps_.set_written();
  last_flush_s_ = events::now_s();
  last_flush_took_s_ = last_flush_s_ - start_s;
  has_unwritten_ = false;
}

// --- the file -------------------------------------------------------------------------------------------------------

std::vector<std::int64_t> Trace::kept_steps() const {
  std::vector<std::int64_t> step(static_cast<std::size_t>(kept_));
  if (kept_ > 0) earlier_->dataset("steps/step").read_from(0, std::span<std::int64_t>(step));
  return step;
}

void Trace::write(const std::filesystem::path& path) const {
  const h5::Lock lock;  // over thousands of calls, between which a checkpoint may be written
  auto file = h5::File::create(path);

  auto info = file.make_group("info");
  info.set_attribute("format", kRunFormat);
  info.set_attribute("format_version", kVersion);
  info.set_attribute("run_id", info_.run_id);
  write_origin(info, info_.origin);
  info.set_attribute("mfu", info_.mfu);
  info.set_attribute("created", created_);
  info.set_attribute("job", info_.job);
  info.set_attribute("attempts", std::int64_t{attempt_} + 1);
  if (std::isfinite(info_.dense_peak)) info.set_attribute("dense_peak", info_.dense_peak);
  if (std::isfinite(info_.host_link)) info.set_attribute("host_link", info_.host_link);
  if (std::isfinite(info_.taken_bytes)) info.set_attribute("taken_bytes", info_.taken_bytes);

  std::vector<std::int64_t> step = kept_steps();
  for (const StepRecord& row : steps_) step.push_back(row.step);
  std::optional<h5::Group> earlier;
  if (earlier_) earlier.emplace(earlier_->group("steps"));
  Table steps(file, "steps", "step", step, {"1", "optimizer steps done, over all resumes"});
  steps.add(kStepColumns, earlier ? &*earlier : nullptr, kept_, steps_);
  rank_steps_.write(steps.group(), step, info_.origin.launch.ranks, earlier ? &*earlier : nullptr);
  Table(file, "ranks", "rank", numbers_up_to(info_.ranks.size()), {"1", "MPI rank, of the latest start"})
      .add(kPlaceColumns, info_.ranks);
  Table(file, "attempts", "attempt", numbers_up_to(attempts_.size()),
        {"1", "starts of the run: 0 the first, one more at each resume"})
      .add(kAttemptColumns, attempts_);
  Table(file, "kernels", "label", column(kernels_, &KernelRow::label), {"1", "Kokkos label of the kernel"})
      .add(kKernelColumns, kernels_);
  const h5::Meaning row_number{"1", "row number"};
  Table(file, "events", "event", numbers_up_to(events_.regions.size()), row_number)
      .add(kRegionColumns, events_.regions);
  Table(file, "memory/events", "event", numbers_up_to(events_.memory.size()), row_number)
      .add(kMemoryColumns, events_.memory);

  std::vector<std::int64_t> peaks;
  for (const auto& row : log_.peaks()) peaks.insert(peaks.end(), row.begin(), row.end());
  auto group = file.group("memory");
  auto phase = group.write("phase", log_.phases(), {"1", "phase of the step"});
  auto category = group.write("category", log_.categories(), {"1", "category; total is the peak of the sum"});
  phase.make_scale("phase");
  category.make_scale("category");
  const h5::Shape shape = {std::ssize(log_.phases()), std::ssize(log_.categories())};
  auto peak = group.write("peaks", shape, std::span<const std::int64_t>(peaks),
                          {"byte", "largest live bytes by phase and category, rank 0"});
  peak.attach_scale(phase, 0);
  peak.attach_scale(category, 1);

  Table(file, "comm", "call", numbers_up_to(events_.comm.size()), row_number).add(kCommColumns, events_.comm);
  Table sample(file, "sample", "position", numbers_up_to(sample_.size()), {"1", "position in the sequence"});
  sample.add("token", sample_, {"1", "number of the token"});
  sample.add("is_prompt", is_prompt_, {"1", "1: of the prompt, 0: generated"});
  if (sample_step_ >= 0) sample.group().set_attribute("step", sample_step_);  // of the model

  file.close();
}

void Trace::load(std::int64_t resumed_step) {
  const h5::File& file = earlier_.emplace(h5::File::open(path_));
  const auto info = file.group("info");
  const auto version = info.has_attribute("format_version") ? info.integer("format_version") : 0;
  if (version != kVersion) {
    throw Failure(Exit::files, "{}: format version {} where {} is expected. Use the program that wrote it.",
                  path_.string(), version, kVersion);
  }
  created_ = info.text("created");
  if (info.has_attribute("run_id")) info_.run_id = info.text("run_id");
  attempt_ = static_cast<std::int32_t>(info.integer("attempts"));

  const auto steps = file.group("steps");
  kept_ = steps.dataset("step").size();
  for (const auto& c : kStepColumns) {
    if (steps.has(c.name) && steps.dataset(c.name).size() != kept_) throw std::out_of_range(c.name);
  }
  rank_steps_.load(steps, kept_);
  cut(resumed_step);
  has_unwritten_ = false;
  attempts_ = load_attempts(file, attempt_);

  const auto kernels = file.group("kernels");
  kernels_ = load_rows(kernels, "label", kKernelColumns);
  const auto labels = kernels.dataset("label").strings();
  for (std::size_t i = 0; i < labels.size(); ++i) kernels_[i].label = labels[i];
  events_.regions = load_rows(file.group("events"), "label", kRegionColumns);
  events_.memory = load_rows(file.group("memory/events"), "label", kMemoryColumns);
  events_.comm = load_rows(file.group("comm"), "operation", kCommColumns);

  const auto categories = file.dataset("memory/category").strings(), phases = file.dataset("memory/phase").strings();
  const auto peaks = file.dataset("memory/peaks").values<std::int64_t>();
  for (std::size_t i = 0; i < peaks.size(); ++i)
    log_.set_peak(phases.at(i / categories.size()), categories[i % categories.size()], peaks[i]);

  if (file.has("sample")) {  // absent from older files
    const auto sample = file.group("sample");
    if (sample.has_attribute("step")) sample_step_ = sample.integer("step");
    sample_ = file.dataset("sample/token").values<std::int32_t>();
    is_prompt_ = file.dataset("sample/is_prompt").values<std::uint8_t>();
  }
}

}  // namespace tessera::io
