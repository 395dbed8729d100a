/// run.h5: what a run measured, for h5py, xarray and scripts/plot_run.
///
///   /info            attributes: format, run_id, those of io/origin.hpp, mfu, created, attempts; dense_peak [flop/s]
///                    of all GPUs, where it is known; host_link [byte/s] of a run with offloaded state; taken_bytes,
///                    on GPUs from the first steps on; job, of Slurm. All but run_id, created and attempts are of the
///                    latest start
///   /ranks/*         host, local_rank, gpu, bus_id, uuid, numa_node, cores, check, memory_rate [rank]: where each of
///                    the latest start runs, and what the check of its device measured
///   /attempts/*      start, end, reason, from_step, hosts, ranks, job, commit [attempt]: every start, also those whose
///                    steps a later one has rewound. `reason` is "running", "finished", "stopped by ...",
///                    "failed: exit N"; `end` of a start that is running or was killed is when it last wrote the file
///   /steps/*         one column per quantity, and attempt [step]; `step` is the dimension scale
///   /steps/by_rank/* the same of every rank: io/rank_steps.hpp; /steps/over_ranks of more than 16 ranks
///   /kernels/*       label, calls, total, min, max [label]: sums over the profiled steps
///   /events/*        label, start, end, rank, stream, step, attempt [event]
///   /memory/events/* time, label, bytes, begin, live_bytes, phase, category, dtype, rank, step, attempt [event]
///   /memory/peaks    [phase, category] largest live bytes; category "total" is the peak of the sum
///   /comm/*          operation, label, bytes, start, end, exposed, rank, step, attempt [call]
///   /sample/*        token, is_prompt [position]: what the trained model generated last (train.sample_tokens)
///
/// Columns, not compounds; `units` and `description` on every dataset; every axis has a dimension scale.
/// `step` is the optimizer step in progress, the one after the last added record. /events, /memory/events and /comm
/// have rows of trace.profile_ranks, in rank 0's time, as exactly as the clocks of hosts agree. On a GPU the times of
/// /events and /memory/events are when the host enqueued the work, except in profiled steps, where it waits for every
/// kernel; those of /comm and /steps are measured on the GPU.
/// `attempt` is 0 for the first start of a run and grows by one at each resume: times count from each start.
///
/// Robustness  A flush writes run.h5.tmp, syncs it and renames it over run.h5, so a kill at any instant leaves the
///             previous file. It is due after flush_s and 200 times the duration of the last: about 0.5 % of the run.
/// Memory      Rows of /steps are in memory until the next flush, which copies earlier ones from run.h5, kept open, in
///             pieces. 100,000 steps take 18 MB of a file, of 16 ranks 54 MB.
/// Throws      Failure(Exit::files) with the path and the next action; run.h5 is then the previous one.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/event_log.hpp"
#include "io/h5.hpp"
#include "io/origin.hpp"
#include "io/rank_steps.hpp"
#include "io/step_record.hpp"

namespace tessera::io {

constexpr std::string_view kRunFormat = "tessera run";  // its attribute /info format

/// The id in the run.h5 of `run_directory`. "" where that is missing, a link, no file of this program or older than
/// ids.
std::string run_id_in(const std::filesystem::path& run_directory);

/// The last step in that file and how the run's latest start ended (Attempt::reason); nothing where it is missing, a
/// link, damaged or no file of this program.
struct RunEnd {
  std::int64_t step = 0;
  std::string reason;
};
std::optional<RunEnd> end_of_run(const std::filesystem::path& run_directory);

/// Seconds since 1970, UTC.
double wall_clock_s();

struct RankPlace {
  std::string host;
  std::int32_t local_rank = 0;    // among the ranks of its host
  std::string gpu, bus_id, uuid;  // "NVIDIA H200", "0000:1b:00.0", "GPU-..."; empty on CPUs
  std::int32_t numa_node = -1;    // that has all its cores; -1: they are of several, or unknown
  std::string cores;              // that it may use: "0-3,8-11"
  double check_s = kNotMeasured;
  double memory_rate = kNotMeasured;  // [byte/s]; of a GPU
};

struct RunInfo {
  Origin origin;
  std::string mfu;                    // how /steps/mfu is calculated, with the peak; empty if the peak is unknown
  double dense_peak = kNotMeasured;   // that of `mfu`, of all GPUs together [flop/s]
  double host_link = kNotMeasured;    // rate of the link to offloaded state [bytes/s], in each direction at once
  double taken_bytes = kNotMeasured;  // of its GPU's memory, by this rank
  std::string run_id = {};            // "": that of the file that it continues, else a new one
  std::string job = {};               // number of the Slurm job; "" without Slurm
  std::vector<RankPlace> ranks = {};  // by rank
};

struct Attempt {
  double start_s = kNotMeasured, end_s = kNotMeasured;  // wall_clock_s
  std::string reason = {};
  std::int64_t from_step = 0;  // optimizer steps done when it started
  std::string hosts = {};
  std::int64_t ranks = 0;
  std::string job = {};     // Slurm's number of it; "" without Slurm
  std::string commit = {};  // of the program
};
/// The `count` starts of an earlier file. One that was under way was killed. Older files have only their number.
std::vector<Attempt> load_attempts(const h5::Group& file, std::int64_t count);

struct KernelRow {
  std::string label;
  std::int64_t calls = 0;
  double total_s = 0, min_s = 0, max_s = 0;
};

/// Belongs to rank 0; listens to events from construction to destruction.
class Trace {
 public:
  /// A new file, or with `resumed_step` the continuation of the existing one: its rows up to that step are kept, the
  /// next flush removes later ones. With resumed_step and no file at `path` (a run moved without it) the trace starts
  /// empty. `require_place` throws where the file must not be written any longer.
  Trace(
      std::filesystem::path path, RunInfo info, double flush_s, std::optional<std::int64_t> resumed_step = {},
      std::function<void()> require_place = [] {});
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// 16 hexadecimal digits, drawn at a run's first start and kept through resumes; its checkpoints carry them, too.
  const std::string& run_id() const { return info_.run_id; }

  void add(const StepRecord&);
  void cut(std::int64_t step);  // drops this start's rows of later steps; all ranks' rows must have been added
  RankSteps& rank_steps() { return rank_steps_; }  // of the steps added; may follow later
  void set_taken(double bytes) { info_.taken_bytes = bytes; }
  void set_kernels(std::vector<KernelRow>);  // replaces /kernels
  /// Replaces /sample: tokens that the model of `step` generated.
  void set_sample(std::span<const int> prompt, std::span<const int> generated, std::int64_t step);
  /// Whether this rank's reports become rows of /events, /memory/events and /comm: EventLog::record_events.
  void record_events(bool is_recording) { log_.record_events(is_recording); }
  /// Those of another rank.
  void add(EventRows rows, std::int32_t rank);
  bool is_flush_due() const;
  void flush();
  /// How this start ends, for /attempts: "running" until then.
  void set_end(std::string reason);

  std::span<const KernelRow> kernels() const { return kernels_; }  // of earlier starts too

 private:
  void load(std::int64_t resumed_step);
  std::vector<std::int64_t> kept_steps() const;
  void write(const std::filesystem::path&) const;

  std::filesystem::path path_;
  std::function<void()> require_place_;
  RunInfo info_;
  std::string created_;
  double flush_s_;
  double last_flush_s_ = 0, last_flush_took_s_ = 0;  // events::now_s of its end; seconds
  std::int32_t attempt_ = 0;
  bool has_unwritten_ = false;

  std::optional<h5::File> earlier_;  // what the last flush wrote
  std::int64_t kept_ = 0;            // its first rows of /steps, before those of steps_
  std::vector<StepRecord> steps_;
  RankSteps rank_steps_;
  std::vector<Attempt> attempts_;  // the last one is this start
  std::vector<KernelRow> kernels_;
  EventLog log_;                         // of this rank; its peaks are the file's
  EventRows events_;                     // of earlier flushes and other ranks
  std::vector<std::int32_t> sample_;     // tokens
  std::vector<std::uint8_t> is_prompt_;  // of sample_
  std::int64_t sample_step_ = -1;        // -1: unknown
};

}  // namespace tessera::io
