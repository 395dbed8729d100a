/// The bench.step job: whole optimizer steps of the deck's model.
///
/// Steps are queued as in training: while one runs, the next is already enqueued. `step_ms` is the time from the end of
/// one step to the end of the next on rank 0, `device_ms` the same by the device's clock, and the phases are its parts;
/// head and loss belong to the backward phase, which fuses their two passes. `forward_ms` is a separate pass over as
/// many sequences, head and loss included, without gradients, run after the steps. `peak_mib` is the GPU memory that
/// the process has taken since the job began, libraries and captured graphs included; `planned_mib` is the layout's.
///
/// With bench.phase = "forward" there are no steps: the same passes run in an arena without gradients, optimizer or
/// saved activations (train/forward.hpp), whose memory the row then has; columns of steps are NaN.
///
/// step_timing.hpp defines which steps count; `cold_steps` of them had one-time costs (StepNumbers::was_cold). MFU is
/// defined in mfu.hpp. bench.profile adds a list of the kernels of one more step, by time.

#include <fmt/format.h>

#include <cmath>

#include "io/answer.hpp"
#include "jobs/memory.hpp"
#include "jobs/mfu.hpp"
#include "lab/step_timing.hpp"
#include "kernels/core/kernel_timer.hpp"
#include "train/choices.hpp"

namespace tessera::lab {
namespace {

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

BenchRow measure(const Context& context, StepRow& run) {
  const config::Settings& settings = context.settings();
  parallel::World& world = context.world;
  const Mfu mfu(settings, world);
  const bool has_steps = settings.section<Bench>().phase == "step";
  StepTiming steps;
  Timing forward;
  double peak_bytes = NAN;
  if (has_steps) {
    prepare(context, run);
    steps = summarize(run_steps(settings, *run.trainer, *run.sampler, world));
    peak_bytes = taken_bytes(world);
    if (settings.section<Bench>().profile) print_profile(settings, *run.trainer, *run.sampler, world);
    forward = time_forward(settings, *run.trainer, *run.sampler, world);
  } else {
    prepare_forward(context, run);
    forward = time_forward(settings, *run.forward, *run.sampler, world);
    peak_bytes = taken_bytes(world);
  }
  if (world.rank() == 0 && !mfu.formula().empty()) io::answer(mfu.formula() + "\n");
  const model::ParamTable& table = has_steps ? run.plan->table : run.forward_plan->table;
  const memory::Layout& layout = has_steps ? run.plan->layout : run.forward_plan->layout;
  const model::ActivationOptions& options = has_steps ? run.plan->options : run.forward_plan->options;
  const double flop = has_steps ? train::step_flop(*run.plan) : NAN;
  const double tokens = static_cast<double>(settings.train.batch_size * settings.model.context_length);
  const double step_s = steps.step.median_s;
  using T = Cell;
  return {T::text("size", settings.model.size),
          T::text("variant", settings.train.graph   ? "graph"
                             : settings.train.fused ? "fused"
                                                    : "plain"),
          T::text("phase", settings.section<Bench>().phase, "forward"),
          T::text("compute", word_of("precision.compute", settings)),
          T::text("attention", attention_text(options.attention), "portable+wgmma"),
          T::count("ranks", world.size()),
          T::detail("parameters", "1", static_cast<double>(table.parameter_count())),
          T::detail("tokens", "tokens", tokens),
          T::ms("forward_ms", forward.median_s),
          T::ms_detail("forward_mean_ms", forward.mean_s),
          T::ms_detail("forward_std_ms", forward.std_s),
          T::ms_detail("forward_first_ms", forward.first_s),
          T::ms_detail("forward_phase_ms", steps.forward.median_s),
          T::ms_detail("backward_phase_ms", steps.backward.median_s),
          T::ms("forward_backward_ms", steps.forward_backward.median_s),
          T::ms_detail("forward_backward_mean_ms", steps.forward_backward.mean_s),
          T::ms_detail("forward_backward_std_ms", steps.forward_backward.std_s),
          T::ms("exposed_ms", steps.exposed.median_s),
          T::ms("optimizer_ms", steps.optimizer.median_s),
          T::ms_detail("optimizer_mean_ms", steps.optimizer.mean_s),
          T::ms_detail("optimizer_std_ms", steps.optimizer.std_s),
          T::ms_detail("device_ms", steps.device.median_s),
          T::ms("step_ms", step_s),
          T::ms_detail("step_mean_ms", steps.step.mean_s),
          T::ms("step_std_ms", steps.step.std_s),
          T::ms_detail("step_first_ms", steps.step.first_s),
          T::count("cold_steps", has_steps ? static_cast<double>(steps.cold_steps) : NAN),
          T::number("tokens_per_s", "tokens/s", tokens / step_s),
          T::detail("gflop_per_s", "Gflop/s", 1e-9 * flop / step_s),
          T::number("mfu", "1", mfu.of(flop, step_s)),
          T::number("planned_mib", "MiB", static_cast<double>(layout.total_bytes()) / 1048576),
          T::number("peak_mib", "MiB", peak_bytes / 1048576)};
}

}  // namespace

Exit bench_step(const Context& context) {
  return bench_together(context, [&] {
    BenchRow row;
    run_steps_row(context.world, [&](StepRow& run) { row = measure(context, run); });
    return row;
  });
}

}  // namespace tessera::lab
