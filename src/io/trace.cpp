#include "io/trace.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "io/files.hpp"
#include "io/h5.hpp"
#include "io/table.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr double kFlushShare = 100;  // flushes are at least 100 times the duration of one apart

/// The columns of /steps besides `step`; the one list that writing and loading share.
struct StepColumn {
  using Member = double StepRecord::*;
  const char* name;
  h5::Meaning meaning;
  Member member;
};
const StepColumn kStepColumns[] = {
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
};

std::vector<std::int64_t> numbers_up_to(std::size_t count) {
  std::vector<std::int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

const h5::Meaning kStep{"1", "optimizer step in progress"};
const h5::Meaning kRank{"1", "MPI rank that reported it"};
const h5::Meaning kAttempt{"1", "which start of the run: 0 the first, one more at each resume; times count from it"};

std::string new_run_id() {
  std::random_device bits;
  return fmt::format("{:08x}{:08x}", bits(), bits());
}

}  // namespace

std::string run_id_in(const std::filesystem::path& run_directory) {
  const std::filesystem::path path = run_directory / "run.h5";
  std::error_code error;
  if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path, error))) return "";
  try {
    const auto file = h5::File::open(path);
    if (file.format() != kRunFormat) return "";
    const auto info = file.group("info");
    return info.has_attribute("run_id") ? info.text("run_id") : "";
  } catch (const Failure&) {  // no HDF5 file
    return "";
  }
}

Trace::Trace(std::filesystem::path path, RunInfo info, double flush_s, std::optional<std::int64_t> resumed_step)
    : path_(std::move(path)), info_(std::move(info)), flush_s_(flush_s), log_(resumed_step.value_or(0) + 1) {
  created_ = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  const bool continues = resumed_step && std::filesystem::exists(path_);
  if (continues) {
    const auto resume_without = [this](const std::string& fault) {
      return Failure(Exit::files,
                     fmt::format("{0} To resume without its rows, which no checkpoint needs, move it away: "
                                 "mv \"{1}\" \"{1}.old\"",
                                 fault, path_.string()));
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
                       .hosts = info_.launch.hosts,
                       .ranks = info_.launch.ranks,
                       .job = info_.job,
                       .commit = info_.git_hash});
  if (!continues) {
    flush();  // reports a path that cannot be written before the first step
  }
}

Trace::~Trace() {
  try {
    if (has_unwritten_ || log_.has_rows()) flush();  // a job that ends by an exception keeps its last rows
  } catch (const Failure&) {
    // that exception is the one to report
  }
}

void Trace::add(const StepRecord& record) {
  steps_.push_back(record);
  step_attempts_.push_back(attempt_);
  log_.set_step(record.step + 1);
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

void Trace::set_sample(std::span<const int> prompt, std::span<const int> generated) {
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
  const double start_s = events::now_s();
  attempts_.back().end_s = wall_clock_s();
  has_unwritten_ = has_unwritten_ || log_.has_rows();
  events_.append(log_.take(), attempt_, 0);
  const auto temporary = std::filesystem::path(path_) += ".tmp";
  try {
    write(temporary);
    sync_file(temporary);
    publish(temporary, path_);
  } catch (const Failure&) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  last_flush_s_ = events::now_s();
  last_flush_took_s_ = last_flush_s_ - start_s;
  has_unwritten_ = false;
}

// --- the file -------------------------------------------------------------------------------------------------------

void Trace::write(const std::filesystem::path& path) const {
  auto file = h5::File::create(path);

  auto info = file.make_group("info");
  info.set_attribute("format", kRunFormat);
  info.set_attribute("format_version", kVersion);
  info.set_attribute("run_id", info_.run_id);
  info.set_attribute("version", info_.version);
  info.set_attribute("git_hash", info_.git_hash);
  info.set_attribute("build", info_.build);
  write_launch(info, info_.launch);
  info.set_attribute("transport", info_.transport);
  info.set_attribute("mfu", info_.mfu);
  info.set_attribute("command", info_.command);
  info.set_attribute("deck", info_.deck);
  info.set_attribute("created", created_);
  info.set_attribute("job", info_.job);
  info.set_attribute("attempts", std::int64_t{attempt_} + 1);
  if (std::isfinite(info_.dense_peak)) info.set_attribute("dense_peak", info_.dense_peak);
  if (std::isfinite(info_.host_link)) info.set_attribute("host_link", info_.host_link);
  if (std::isfinite(info_.taken_bytes)) info.set_attribute("taken_bytes", info_.taken_bytes);

  Table steps(file, "steps", "step", column(steps_, &StepRecord::step),
              {"1", "optimizer steps done, over all resumes"});
  for (const StepColumn& c : kStepColumns) steps.add(c.name, column(steps_, c.member), c.meaning);
  steps.add("attempt", step_attempts_, kAttempt);
  rank_steps_.write(steps.group(), column(steps_, &StepRecord::step), info_.launch.ranks);
  write_rank_places(file, info_.ranks);
  write_attempts(file, attempts_);

  Table kernels(file, "kernels", "label", column(kernels_, &KernelRow::label), {"1", "Kokkos label of the kernel"});
  kernels.add("calls", column(kernels_, &KernelRow::calls), {"1", "launches during the profiled steps"});
  kernels.add("total", column(kernels_, &KernelRow::total_s), {"s", "time of all launches"});
  kernels.add("min", column(kernels_, &KernelRow::min_s), {"s", "shortest launch"});
  kernels.add("max", column(kernels_, &KernelRow::max_s), {"s", "longest launch"});

  Table regions(file, "events", "event", numbers_up_to(events_.regions.size()), {"1", "row number"});
  regions.add("label", column(events_.regions, &RegionRow::label), {"1", "phase, unit or kernel"});
  regions.add("start", column(events_.regions, &RegionRow::start_s),
              {"s", "begin, since the program started; on a GPU when enqueued, unless profiled"});
  regions.add("end", column(events_.regions, &RegionRow::end_s),
              {"s", "end, since the program started; on a GPU when enqueued, unless profiled"});
  regions.add("rank", column(events_.regions, &RegionRow::rank), kRank);
  regions.add("stream", column(events_.regions, &RegionRow::stream), {"1", "compute or communication"});
  regions.add("step", column(events_.regions, &RegionRow::step), kStep);
  regions.add("attempt", column(events_.regions, &RegionRow::attempt), kAttempt);

  Table memory(file, "memory/events", "event", numbers_up_to(events_.memory.size()), {"1", "row number"});
  memory.add("time", column(events_.memory, &MemoryRow::time_s),
             {"s", "since the program started; on a GPU when enqueued, unless the step was profiled"});
  memory.add("label", column(events_.memory, &MemoryRow::label), {"1", "tensor that becomes live or dead"});
  memory.add("bytes", column(events_.memory, &MemoryRow::bytes), {"byte", "its size"});
  memory.add("begin", column(events_.memory, &MemoryRow::is_begin), {"1", "1: becomes live, 0: becomes dead"});
  memory.add("live_bytes", column(events_.memory, &MemoryRow::live_bytes), {"byte", "all live bytes afterwards"});
  memory.add("phase", column(events_.memory, &MemoryRow::phase), {"1", "phase of the step"});
  memory.add("category", column(events_.memory, &MemoryRow::category),
             {"1", "parameters, gradients, activations, ..."});
  memory.add("dtype", column(events_.memory, &MemoryRow::dtype), {"1", "number format of its elements"});
  memory.add("rank", column(events_.memory, &MemoryRow::rank), kRank);
  memory.add("step", column(events_.memory, &MemoryRow::step), kStep);
  memory.add("attempt", column(events_.memory, &MemoryRow::attempt), kAttempt);

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

  Table comm(file, "comm", "call", numbers_up_to(events_.comm.size()), {"1", "row number"});
  comm.add("operation", column(events_.comm, &CommRow::operation), {"1", "collective"});
  comm.add("label", column(events_.comm, &CommRow::label), {"1", "what it moved"});
  comm.add("bytes", column(events_.comm, &CommRow::bytes), {"byte", "size of the buffer on one rank"});
  comm.add("start", column(events_.comm, &CommRow::start_s), {"s", "enqueued, since the program started"});
  comm.add("end", column(events_.comm, &CommRow::end_s), {"s", "complete, since the program started"});
  comm.add("exposed", column(events_.comm, &CommRow::exposed_s), {"s", "time in which the rank only waited for it"});
  comm.add("rank", column(events_.comm, &CommRow::rank), kRank);
  comm.add("step", column(events_.comm, &CommRow::step), kStep);
  comm.add("attempt", column(events_.comm, &CommRow::attempt), kAttempt);

  Table sample(file, "sample", "position", numbers_up_to(sample_.size()), {"1", "position in the sequence"});
  sample.add("token", sample_, {"1", "number of the token"});
  sample.add("is_prompt", is_prompt_, {"1", "1: of the prompt, 0: generated"});

  file.close();
}

void Trace::load(std::int64_t resumed_step) {
  const auto file = h5::File::open(path_);
  const auto info = file.group("info");
  const auto version = info.has_attribute("format_version") ? info.integer("format_version") : 0;
  if (version != kVersion) {
    throw Failure(Exit::files, fmt::format("{}: format version {} where {} is expected. Use the program that wrote it.",
                                           path_.string(), version, kVersion));
  }
  created_ = info.text("created");
  if (info.has_attribute("run_id")) info_.run_id = info.text("run_id");
  attempt_ = static_cast<std::int32_t>(info.integer("attempts"));

  const auto steps = file.group("steps");
  const auto step = steps.dataset("step").values<std::int64_t>();
  steps_.resize(step.size());
  for (std::size_t i = 0; i < step.size(); ++i) steps_[i].step = step[i];
  for (const StepColumn& c : kStepColumns) {
    const auto values = load_column<double>(steps, c.name, step.size(), kNotMeasured);
    for (std::size_t i = 0; i < step.size(); ++i) steps_[i].*c.member = values.at(i);
  }
  step_attempts_ = load_column<std::int32_t>(steps, "attempt", step.size(), 0);
  if (step_attempts_.size() != step.size()) throw std::out_of_range("attempt");
  std::erase_if(steps_, [&](const StepRecord& row) { return row.step > resumed_step; });
  step_attempts_.resize(steps_.size());
  rank_steps_.load(steps, step.size());
  rank_steps_.resize(steps_.size());
  attempts_ = load_attempts(file, attempt_);

  const auto kernels = file.group("kernels");
  const auto kernel = kernels.dataset("label").strings();
  const auto calls = kernels.dataset("calls").values<std::int64_t>();
  const auto total = kernels.dataset("total").values<double>(), min = kernels.dataset("min").values<double>(),
             max = kernels.dataset("max").values<double>();
  for (std::size_t i = 0; i < kernel.size(); ++i)
    kernels_.push_back({kernel[i], calls.at(i), total.at(i), min.at(i), max.at(i)});

  const auto regions = file.group("events");
  const auto label = regions.dataset("label").strings(), stream = regions.dataset("stream").strings();
  const auto start = regions.dataset("start").values<double>(), end = regions.dataset("end").values<double>();
  const auto region_step = load_column<std::int64_t>(regions, "step", label.size(), 0);
  const auto attempt = load_column<std::int32_t>(regions, "attempt", label.size(), 0);
  const auto rank = load_column<std::int32_t>(regions, "rank", label.size(), 0);
  for (std::size_t i = 0; i < label.size(); ++i) {
    events_.regions.push_back(
        {label[i], stream.at(i), start.at(i), end.at(i), region_step.at(i), attempt.at(i), rank.at(i)});
  }

  const auto memory = file.group("memory/events");
  const auto tensor = memory.dataset("label").strings(), phase = memory.dataset("phase").strings(),
             category = memory.dataset("category").strings();
  const auto dtype = memory.has("dtype") ? memory.dataset("dtype").strings() : std::vector<std::string>(tensor.size());
  const auto time = memory.dataset("time").values<double>();
  const auto bytes = memory.dataset("bytes").values<std::int64_t>(),
             live = memory.dataset("live_bytes").values<std::int64_t>();
  const auto begin = memory.dataset("begin").values<std::uint8_t>();
  const auto memory_step = load_column<std::int64_t>(memory, "step", tensor.size(), 0);
  const auto memory_attempt = load_column<std::int32_t>(memory, "attempt", tensor.size(), 0);
  const auto memory_rank = load_column<std::int32_t>(memory, "rank", tensor.size(), 0);
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    events_.memory.push_back({tensor[i], phase.at(i), category.at(i), dtype.at(i), time.at(i), bytes.at(i), live.at(i),
                              begin.at(i), memory_step.at(i), memory_attempt.at(i), memory_rank.at(i)});
  }

  const auto categories = file.dataset("memory/category").strings(), phases = file.dataset("memory/phase").strings();
  const auto peaks = file.dataset("memory/peaks").values<std::int64_t>();
  for (std::size_t i = 0; i < peaks.size(); ++i)
    log_.set_peak(phases.at(i / categories.size()), categories[i % categories.size()], peaks[i]);

  const auto comm = file.group("comm");
  const auto operation = comm.dataset("operation").strings(), moved = comm.dataset("label").strings();
  const auto comm_bytes = comm.dataset("bytes").values<std::int64_t>();
  const auto comm_start = comm.dataset("start").values<double>(), comm_end = comm.dataset("end").values<double>(),
             exposed = comm.dataset("exposed").values<double>();
  const auto comm_step = load_column<std::int64_t>(comm, "step", operation.size(), 0);
  const auto comm_attempt = load_column<std::int32_t>(comm, "attempt", operation.size(), 0);
  const auto comm_rank = load_column<std::int32_t>(comm, "rank", operation.size(), 0);
  for (std::size_t i = 0; i < operation.size(); ++i) {
    events_.comm.push_back({operation[i], moved.at(i), comm_bytes.at(i), comm_start.at(i), comm_end.at(i),
                            exposed.at(i), comm_step.at(i), comm_attempt.at(i), comm_rank.at(i)});
  }

  if (file.has("sample")) {  // absent from older files
    sample_ = file.dataset("sample/token").values<std::int32_t>();
    is_prompt_ = file.dataset("sample/is_prompt").values<std::uint8_t>();
  }
}

}  // namespace tessera::io
