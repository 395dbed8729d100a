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
#include <variant>

#include "io/files.hpp"
#include "io/h5.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr double kFlushShare = 100;  // flushes are at least 100 times the duration of one apart

const h5::Meaning kStep{"1", "optimizer step in progress"};
const h5::Meaning kAttempt{"1", "which start of the run: 0 the first, one more at each resume; times count from it"};

/// A column of a table: writing and loading share the lists of them.
template <class Row>
struct Column {
  const char* name;
  h5::Meaning meaning;
  std::variant<double Row::*, std::int64_t Row::*, std::int32_t Row::*, std::uint8_t Row::*, std::string Row::*> member;
  bool is_optional = false;  // older files may lack it
};

const Column<StepRecord> kStepColumns[] = {
    {"loss", {"nat", "training loss per token, mean over the global batch"}, &StepRecord::loss, true},
    {"validation_loss", {"nat", "loss per token on the validation part"}, &StepRecord::validation_loss, true},
    {"grad_norm", {"1", "global gradient norm before clipping"}, &StepRecord::grad_norm, true},
    {"learning_rate", {"1", "learning rate of this step"}, &StepRecord::learning_rate, true},
    {"tokens", {"token", "tokens trained on since step 0, over all ranks"}, &StepRecord::tokens, true},
    {"step_time",
     {"s", "from the end of the previous step, or from the start if that came later, to the end"},
     &StepRecord::step_time_s,
     true},
    {"forward", {"s", "time of the forward pass, waits for communication excepted"}, &StepRecord::forward_s, true},
    {"backward", {"s", "time of the backward pass, waits for communication excepted"}, &StepRecord::backward_s, true},
    {"exposed_comm", {"s", "time in which the rank only waited for communication"}, &StepRecord::exposed_comm_s, true},
    {"optimizer", {"s", "time of clipping and update"}, &StepRecord::optimizer_s, true},
    {"tokens_per_second", {"token/s", "training throughput over all ranks"}, &StepRecord::tokens_per_second, true},
    {"mfu", {"1", "model flop rate as a fraction of the dense peak: attribute mfu of /info"}, &StepRecord::mfu, true},
    {"peak_bytes", {"byte", "rank 0's arena, which all tensors of a step share"}, &StepRecord::peak_bytes, true},
    {"loss_scale", {"1", "factor on the loss (fp16 only)"}, &StepRecord::loss_scale, true},
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
    {"rank", {"1", "MPI rank that reported it"}, &RegionRow::rank},
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
    {"step", kStep, &CommRow::step, true},
    {"attempt", kAttempt, &CommRow::attempt, true},
};

template <class Row, class Member>
auto column(const std::vector<Row>& rows, Member member) {
  using Value = std::remove_cvref_t<decltype(std::declval<Row>().*member)>;
  std::vector<Value> values;
  values.reserve(rows.size());
  for (const Row& row : rows) values.push_back(row.*member);
  return values;
}

/// A group of equally long columns along one axis, whose scale is written first.
class Table {
 public:
  template <class T>
  Table(h5::Group& parent, const std::string& path, const std::string& axis, const std::vector<T>& scale,
        const h5::Meaning& meaning)
      : group_(parent.make_group(path)), scale_(group_.write(axis, scale, meaning)) {
    scale_.make_scale(axis);
  }
  template <class T>
  void add(const std::string& name, const std::vector<T>& values, const h5::Meaning& meaning) {
    group_.write(name, values, meaning).attach_scale(scale_, 0);
  }
  template <class Row, std::size_t kCount>
  void add(const Column<Row> (&columns)[kCount], const std::vector<Row>& rows) {
    for (const Column<Row>& c : columns) {
      std::visit([&](auto member) { add(c.name, column(rows, member), c.meaning); }, c.member);
    }
  }

 private:
  h5::Group group_;
  h5::Dataset scale_;
};

std::vector<std::int64_t> numbers_up_to(std::size_t count) {
  std::vector<std::int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

template <class T>
std::vector<T> values_of(const h5::Dataset& dataset) {
  if constexpr (std::is_same_v<T, std::string>) {
    return dataset.strings();
  } else {
    return dataset.values<T>();
  }
}

/// As many rows as the column `longest` has, from a group of columns.
/// Throws  std::out_of_range if the others differ in length.
template <class Row, std::size_t kCount>
std::vector<Row> load_rows(const h5::Group& group, const std::string& longest, const Column<Row> (&columns)[kCount]) {
  std::vector<Row> rows(static_cast<std::size_t>(group.dataset(longest).size()));
  for (const Column<Row>& c : columns) {
    if (c.is_optional && !group.has(c.name)) continue;
    std::visit(
        [&]<class T>(T Row::*member) {
          const std::vector<T> values = values_of<T>(group.dataset(c.name));
          if (values.size() != rows.size()) throw std::out_of_range(c.name);
          for (std::size_t i = 0; i < rows.size(); ++i) rows[i].*member = values[i];
        },
        c.member);
  }
  return rows;
}

std::size_t index_of(std::vector<std::string>& names, std::string_view name) {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) return names.emplace_back(name), names.size() - 1;
  return static_cast<std::size_t>(at - names.begin());
}

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
    : path_(std::move(path)), info_(std::move(info)), flush_s_(flush_s) {
  created_ = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  category_index("total");
  step_in_progress_ = resumed_step.value_or(0) + 1;
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
  if (!continues) {
    flush();  // reports a path that cannot be written before the first step
  }
  events::add_listener(*this);
}

Trace::~Trace() {
  events::remove_listener(*this);
  try {
    if (has_unwritten_) flush();  // a job that ends by an exception keeps its last rows
  } catch (const Failure&) {
    // that exception is the one to report
  }
}

void Trace::add(const StepRecord& record) {
  steps_.push_back(record);
  step_attempts_.push_back(attempt_);
  step_in_progress_ = record.step + 1;
  has_unwritten_ = true;
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

void Trace::flush_if_due() {
  if (has_unwritten_ && events::now_s() - last_flush_s_ >= std::max(flush_s_, kFlushShare * last_flush_took_s_))
    flush();
}

void Trace::flush() {
  const double start_s = events::now_s();
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

// --- events ---------------------------------------------------------------------------------------------------------

std::size_t Trace::category_index(std::string_view category) {
  const std::size_t index = index_of(categories_, category);
  if (index == live_.size()) {
    live_.push_back(0);
    recorded_live_.push_back(0);
    for (auto& peaks : peaks_) peaks.push_back(0);
  }
  return index;
}

std::size_t Trace::phase_index(std::string_view phase) {
  const std::size_t index = index_of(phases_, phase);
  if (index == peaks_.size()) peaks_.emplace_back(categories_.size(), 0);
  return index;
}

void Trace::record_events(bool is_recording) {
  if (is_recording && !is_recording_) {
    std::int64_t total = recorded_live_[0];
    for (std::size_t c = 1; c < categories_.size(); ++c) {
      const std::int64_t change = live_[c] - std::exchange(recorded_live_[c], live_[c]);
      if (change == 0) continue;
      total += change;
      memory_.push_back({"(not recorded)", "(not recorded)", categories_[c], "", events::now_s(), std::abs(change),
                         total, change > 0, step_in_progress_, attempt_});
    }
    recorded_live_[0] = total;
  }
  is_recording_ = is_recording;
}

void Trace::on(const events::Region& region) {
  if (!is_recording_) return;
  regions_.push_back({std::string(region.label), std::string(region.stream), region.start_s, region.end_s,
                      step_in_progress_, attempt_});
  has_unwritten_ = true;
}

void Trace::on(const events::MemoryChange& change) {
  const std::size_t category = category_index(change.category), phase = phase_index(change.phase);
  const std::int64_t bytes = change.is_begin ? change.bytes : -change.bytes;
  live_[0] += bytes;
  live_[category] += bytes;
  for (std::size_t c = 0; c < live_.size(); ++c) peaks_[phase][c] = std::max(peaks_[phase][c], live_[c]);
  if (!is_recording_) return;
  recorded_live_ = live_;
  memory_.push_back({std::string(change.label), std::string(change.phase), std::string(change.category),
                     std::string(change.dtype), change.time_s, change.bytes, live_[0], change.is_begin,
                     step_in_progress_, attempt_});
  has_unwritten_ = true;
}

void Trace::on(const events::Communication& call) {
  if (!is_recording_) return;
  comm_.push_back({std::string(call.operation), std::string(call.label), call.bytes, call.start_s, call.end_s,
                   call.exposed_s, step_in_progress_, attempt_});
  has_unwritten_ = true;
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
  info.set_attribute("attempts", std::int64_t{attempt_} + 1);
  if (std::isfinite(info_.dense_peak)) info.set_attribute("dense_peak", info_.dense_peak);
  if (std::isfinite(info_.host_link)) info.set_attribute("host_link", info_.host_link);
  if (std::isfinite(info_.taken_bytes)) info.set_attribute("taken_bytes", info_.taken_bytes);

  Table steps(file, "steps", "step", column(steps_, &StepRecord::step),
              {"1", "optimizer steps done, over all resumes"});
  steps.add(kStepColumns, steps_);
  steps.add("attempt", step_attempts_, kAttempt);
  Table(file, "kernels", "label", column(kernels_, &KernelRow::label), {"1", "Kokkos label of the kernel"})
      .add(kKernelColumns, kernels_);
  const h5::Meaning row_number{"1", "row number"};
  Table(file, "events", "event", numbers_up_to(regions_.size()), row_number).add(kRegionColumns, regions_);
  Table(file, "memory/events", "event", numbers_up_to(memory_.size()), row_number).add(kMemoryColumns, memory_);

  std::vector<std::int64_t> peaks;
  for (const auto& row : peaks_) peaks.insert(peaks.end(), row.begin(), row.end());
  auto group = file.group("memory");
  auto phase = group.write("phase", phases_, {"1", "phase of the step"});
  auto category = group.write("category", categories_, {"1", "category; total is the peak of the sum"});
  phase.make_scale("phase");
  category.make_scale("category");
  const h5::Shape shape = {static_cast<std::int64_t>(phases_.size()), static_cast<std::int64_t>(categories_.size())};
  auto peak = group.write("peaks", shape, std::span<const std::int64_t>(peaks),
                          {"byte", "largest live bytes by phase and category, rank 0"});
  peak.attach_scale(phase, 0);
  peak.attach_scale(category, 1);

  Table(file, "comm", "call", numbers_up_to(comm_.size()), row_number).add(kCommColumns, comm_);
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
  steps_ = load_rows(steps, "step", kStepColumns);
  const auto step = steps.dataset("step").values<std::int64_t>();
  for (std::size_t i = 0; i < step.size(); ++i) steps_[i].step = step[i];
  step_attempts_.assign(step.size(), 0);
  if (steps.has("attempt")) step_attempts_ = steps.dataset("attempt").values<std::int32_t>();
  if (step_attempts_.size() != step.size()) throw std::out_of_range("attempt");
  std::erase_if(steps_, [&](const StepRecord& row) { return row.step > resumed_step; });
  step_attempts_.resize(steps_.size());

  const auto kernels = file.group("kernels");
  kernels_ = load_rows(kernels, "label", kKernelColumns);
  const auto labels = kernels.dataset("label").strings();
  for (std::size_t i = 0; i < labels.size(); ++i) kernels_[i].label = labels[i];
  regions_ = load_rows(file.group("events"), "label", kRegionColumns);
  memory_ = load_rows(file.group("memory/events"), "label", kMemoryColumns);
  comm_ = load_rows(file.group("comm"), "operation", kCommColumns);

  for (const auto& name : file.dataset("memory/category").strings()) category_index(name);
  for (const auto& name : file.dataset("memory/phase").strings()) phase_index(name);
  const auto peaks = file.dataset("memory/peaks").values<std::int64_t>();
  for (std::size_t i = 0; i < peaks.size(); ++i)
    peaks_.at(i / categories_.size()).at(i % categories_.size()) = peaks[i];

  if (file.has("sample")) {  // absent from older files
    sample_ = file.dataset("sample/token").values<std::int32_t>();
    is_prompt_ = file.dataset("sample/is_prompt").values<std::uint8_t>();
  }
}

}  // namespace tessera::io
