/// The bench.step job: whole optimizer steps of the deck's model.
///
/// Steps are queued as in training: while one runs, the next is already enqueued. `step_ms` is the time from the end of
/// one step to the end of the next on rank 0, `device_ms` the same by the device's clock, and the phases are its parts;
/// head and loss belong to the backward phase, which fuses their two passes. `forward_ms` is a separate pass over as
/// many sequences, head and loss included, without gradients, run after the steps. `peak_mib` is the GPU memory that
/// the process has taken since the job began, libraries and captured graphs included; `planned_mib` is the layout's.
///
/// With bench.phase = "forward" there are no steps: the same passes run in an arena without gradients, optimizer or
/// anything that is kept for backward (train/forward.hpp). `planned_mib` and `peak_mib` are then those of inference,
/// and what only steps have is missing (NaN).
///
/// step_timing.hpp defines which steps count: with bench.warmup = 0 the first step counts, its one-time costs included;
/// `cold_steps` is the number of counted steps with such costs (StepNumbers::was_cold).
///
/// MFU is defined in mfu.hpp. bench.profile adds a list of the kernels of one more step, by time.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "io/answer.hpp"
#include "lab/bench_result.hpp"
#include "jobs/mfu.hpp"
#include "lab/step_rows.hpp"
#include "lab/step_timing.hpp"
#include "kernels/core/kernel_timer.hpp"
#include "train/choices.hpp"

namespace tessera::lab {
namespace {

struct Row {
  std::string attention;
  double parameters = NAN, flop = NAN, planned_bytes = NAN, peak_bytes = NAN;
  std::optional<StepTiming> steps;
  Timing forward;
};

std::string attention_text(const kernels::AttentionChoice& choice) {
  if (choice.kind != kernels::AttentionKind::flash2) return std::string(name_of(choice.kind));
  const std::string forward = train::forward_text(choice), backward(name_of(choice.backward));
  return forward == backward ? forward : forward + "+" + backward;
}

/// Runs one step launch by launch and prints its kernels by time, with their sums by kind.
void print_profile(const config::Settings& settings, train::Trainer& trainer, const data::Sampler& sampler,
                   parallel::World& world) {
  const auto watch = world.watch("a profiled step");
  kernels::KernelTimer timer;
  timer.start();
  trainer.start(settings.train.batch_size, sampler, true);
  trainer.collect();
  timer.stop();
  if (world.rank() != 0) return;
  double gemm_s = 0, attention_s = 0, other_s = 0;
  for (const kernels::KernelTimer::Row& row : timer.rows()) {
    const bool is_gemm = row.label.find("::gemm::") != std::string::npos;
    const bool is_attention = row.label.find("::attention::") != std::string::npos;
    (is_gemm ? gemm_s : is_attention ? attention_s : other_s) += row.total_s;
    io::answer(fmt::format("  {:>9.3f} ms {:>6} x {:>9.2f} us  {}\n", 1e3 * row.total_s, row.calls,
                           1e6 * row.total_s / static_cast<double>(row.calls), row.label));
  }
  io::answer(fmt::format(
      "  {:>9.3f} ms of kernels: products {:.3f}, attention {:.3f}, the rest {:.3f}; {} launches, {} fences, {} "
      "allocations\n",
      1e3 * (gemm_s + attention_s + other_s), 1e3 * gemm_s, 1e3 * attention_s, 1e3 * other_s, timer.counts().launches,
      timer.counts().fences, timer.counts().allocations));
}

/// Forward passes alone, in memory for them alone.
void measure_forward(const config::Settings& settings, parallel::World& world, StepRows& rows, StepRow& run, Row& row) {
  const auto note_plan = [&](const train::ForwardPlan& plan) {
    row.parameters = static_cast<double>(plan.table.parameter_count());
    row.planned_bytes = static_cast<double>(plan.layout.total_bytes());
    row.attention = attention_text(plan.options.attention);
  };
  rows.prepare_forward(settings, note_plan, run);
  row.forward = time_forward(settings, *run.forward, *run.sampler, world);
  row.peak_bytes = rows.taken_bytes();
}

void measure(const config::Settings& settings, parallel::World& world, StepRows& rows, StepRow& run, Row& row) {
  if (settings.section<Bench>().phase == "forward") return measure_forward(settings, world, rows, run, row);
  const auto note_plan = [&](const train::Plan& plan) {
    row.parameters = static_cast<double>(plan.table.parameter_count());
    row.flop = train::step_flop(plan);
    row.planned_bytes = static_cast<double>(plan.layout.total_bytes());
    row.attention = attention_text(plan.options.attention);
  };
  rows.prepare(settings, note_plan, run);
  row.steps = summarize(run_steps(settings, *run.trainer, *run.sampler, world));
  row.peak_bytes = rows.taken_bytes();
  if (settings.section<Bench>().profile) print_profile(settings, *run.trainer, *run.sampler, world);
  row.forward = time_forward(settings, *run.trainer, *run.sampler, world);
}

std::vector<BenchTable::Cell> cells_of(const Row& row, const config::Settings& settings, int ranks, const Mfu& mfu) {
  const double tokens = static_cast<double>(settings.train.batch_size * settings.model.context_length);
  const StepTiming steps = row.steps.value_or(StepTiming{});
  const double step_s = steps.step.median_s;
  using T = BenchTable;
  const auto ms = [](const char* column, double seconds) { return T::number(column, "ms", 1e3 * seconds); };
  const auto ms_detail = [](const char* column, double seconds) { return T::detail(column, "ms", 1e3 * seconds); };
  return {T::text("size", settings.model.size),
          T::text("variant", settings.train.graph   ? "graph"
                             : settings.train.fused ? "fused"
                                                    : "plain"),
          T::text("phase", settings.section<Bench>().phase, "forward"),
          T::text("compute", format_of(settings.precision.compute)),
          T::text("attention", row.attention, "portable+wgmma"),
          T::count("ranks", ranks),
          T::detail("parameters", "1", row.parameters),
          T::detail("tokens", "tokens", tokens),
          ms("forward_ms", row.forward.median_s),
          ms_detail("forward_mean_ms", row.forward.mean_s),
          ms_detail("forward_std_ms", row.forward.std_s),
          ms_detail("forward_first_ms", row.forward.first_s),
          ms_detail("forward_phase_ms", steps.forward.median_s),
          ms_detail("backward_phase_ms", steps.backward.median_s),
          ms("forward_backward_ms", steps.forward_backward.median_s),
          ms_detail("forward_backward_mean_ms", steps.forward_backward.mean_s),
          ms_detail("forward_backward_std_ms", steps.forward_backward.std_s),
          ms("exposed_ms", steps.exposed.median_s),
          ms("optimizer_ms", steps.optimizer.median_s),
          ms_detail("device_ms", steps.device.median_s),
          ms("step_ms", step_s),
          ms_detail("step_mean_ms", steps.step.mean_s),
          ms("step_std_ms", steps.step.std_s),
          ms_detail("step_first_ms", steps.step.first_s),
          T::count("cold_steps", row.steps ? static_cast<double>(steps.cold_steps) : NAN),
          T::number("tokens_per_s", "tokens/s", tokens / step_s),
          T::detail("gflop_per_s", "Gflop/s", 1e-9 * row.flop / step_s),
          T::number("mfu", "1", mfu.of(row.flop, step_s)),
          T::number("planned_mib", "MiB", row.planned_bytes / 1048576),
          T::number("peak_mib", "MiB", row.peak_bytes / 1048576)};
}

}  // namespace

Exit bench_step(const Context& context) {
  const config::Settings& settings = context.settings();
  parallel::World& world = context.world;
  SharedBenchResult result(context);
  StepRows rows(context);
  const Mfu mfu(settings, world);
  Row row;
  rows.run([&](StepRow& run) { measure(settings, world, rows, run, row); });
  result.add(cells_of(row, settings, world.size(), mfu));
  if (world.rank() == 0 && !mfu.formula().empty()) io::answer(mfu.formula() + "\n");
  result.publish();
  return Exit::finished;
}

}  // namespace tessera::lab
