/// The bench.strategies job: time, communication and memory of whole optimizer steps under parallel.shard and
/// parallel.gradient_sync.
///
/// Steps are timed as in bench.step (step_timing.hpp). Communication is measured in bench.repeats further steps, each
/// launched kernel by kernel after a barrier, so that every transfer is reported: `communication_ms` is the sum over
/// transfers, `under_way_ms` counts concurrent ones once, and `exposed_ms` is the time in which the rank only waited.
/// `/timeline` of the file has the phases, passes by unit and transfers of the last of these steps. Memory, by category
/// in the file, is where the model computes: `initial`, also the state after an update; `before_update`, the largest
/// sum in the passes; and `in_update`. `host_mib` is the plan's other host memory. All figures are rank 0's. A single
/// rank is rejected.

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "io/answer.hpp"
#include "io/table.hpp"
#include "jobs/placement.hpp"
#include "lab/step_events.hpp"
#include "lab/step_timing.hpp"
#include "lab/unit_times.hpp"
#include "train/plan.hpp"

namespace tessera::lab {
namespace {

/// Something in a step, timed from the beginning of its forward pass.
struct Span {
  std::string lane, label;
  double start_ms, end_ms;
};
const io::Column<Span> kTimeline[] = {
    {"lane", {"1", "compute, unit or communication"}, &Span::lane},
    {"label", {"1", "the phase, pass and unit, or what crossed"}, &Span::label},
    {"start_ms", {"ms", "start, since the step began"}, &Span::start_ms},
    {"end_ms", {"ms", "end, since the step began"}, &Span::end_ms},
};

std::vector<Span> timeline_of(const train::StepNumbers& step, const std::vector<UnitTime>& times,
                              const model::ParamTable& table, const StepCommunication& communication) {
  std::vector<Span> timeline;
  const auto add = [&](const char* lane, std::string label, double start_s, double end_s) {
    timeline.push_back({lane, std::move(label), 1e3 * start_s, 1e3 * end_s});
  };
  double now_s = 0;
  for (const auto& [label, seconds] :
       {std::pair{"forward", step.forward_s}, std::pair{"backward", step.backward_s},
        std::pair{"exposed", step.exposed_comm_s}, std::pair{"optimizer", step.optimizer_s}}) {
    add("compute", label, now_s, now_s + seconds);
    now_s += seconds;
  }
  for (const UnitTime& time : times) {
    add("unit", std::string(model::name_of(time.pass)) + "/" + table.units()[time.unit].label,
        time.start_s - communication.begin_s, time.end_s - communication.begin_s);
  }
  for (const StepTransfer& transfer : communication.each) {
    add("communication", transfer.label, transfer.start_s - communication.begin_s,
        transfer.end_s - communication.begin_s);
  }
  return timeline;
}

/// Communication of steps that are launched one by one.
struct Communication {
  Timing total, under_way, exposed;
  StepCommunication last;
};

Communication measure_communication(const config::Settings& settings, StepRow& run, UnitTimes& times,
                                    parallel::World& world, StepEvents& events, std::vector<Span>& timeline) {
  std::vector<StepCommunication> steps;
  std::int64_t sample = 0;
  for (std::int64_t i = 0; i < settings.section<Bench>().repeats; ++i, sample += settings.train.batch_size) {
    const auto watch = world.watch("a step launched one by one", world.patience_over(settings.train.batch_size));
    times.follow(*run.trainer, *run.plan);
    world.barrier();
    events.take_communication();
    const train::StepNumbers numbers = run.trainer->run(sample, *run.sampler, true);
    steps.push_back(events.take_communication());
    timeline = timeline_of(numbers, times.take(), run.plan->table, steps.back());
  }
  const auto of = [&](double StepCommunication::*part) { return summarize(io::column(steps, part)); };
  return {of(&StepCommunication::total_s), of(&StepCommunication::under_way_s), of(&StepCommunication::exposed_s),
          steps.back()};
}

/// NaN where no tensor began in that part of the step.
void add_memory(const std::string& moment, const LiveBytes& live, BenchRow& cells) {
  using T = Cell;
  const auto known = [&](std::int64_t bytes) { return live.total() > 0 ? static_cast<double>(bytes) : NAN; };
  cells.push_back(T::number(moment + "_mib", "MiB", known(live.total()) / 1048576));
  for (int i = 0; i < memory::kCategories; ++i) {
    const auto category = static_cast<memory::Category>(i);
    cells.push_back(
        T::detail(fmt::format("{}_{}_bytes", moment, memory::name_of(category)), "B", known(live.by_category[i])));
  }
}

/// The word of parallel.shard or, if nothing is sharded, of parallel.gradient_sync.
std::string strategy_of(const config::Settings& settings) {
  const bool is_sharded = settings.parallel.shard != config::Shard::none;
  return word_of(is_sharded ? "parallel.shard" : "parallel.gradient_sync", settings);
}

BenchRow measure(const Context& context, StepRow& run, UnitTimes& times, std::vector<Span>& timeline) {
  const config::Settings& settings = context.settings();
  parallel::World& world = context.world;
  StepEvents events;
  prepare(context, run, &times);
  const StepTiming steps = summarize(run_steps(settings, *run.trainer, *run.sampler, world));
  const Communication communication = measure_communication(settings, run, times, world, events, timeline);
  const memory::Layout& layout = run.plan->layout;
  const double tokens = static_cast<double>(settings.train.batch_size * settings.model.context_length);
  using T = Cell;
  BenchRow cells{T::text("size", settings.model.size),
                 T::text("strategy", strategy_of(settings), "per_parameter"),
                 T::text("compute", word_of("precision.compute", settings)),
                 T::count("ranks", world.size()),
                 T::detail("parameters", "1", static_cast<double>(run.plan->table.parameter_count())),
                 T::detail("tokens", "tokens", tokens),
                 T::ms("step_mean_ms", steps.step.mean_s),
                 T::ms("step_std_ms", steps.step.std_s),
                 T::ms_detail("step_ms", steps.step.median_s),
                 T::ms_detail("step_min_ms", steps.step.min_s),
                 T::ms_detail("step_first_ms", steps.step.first_s),
                 T::detail("cold_steps", "1", static_cast<double>(steps.cold_steps)),
                 T::ms("communication_ms", communication.total.mean_s),
                 T::ms_detail("communication_std_ms", communication.total.std_s),
                 T::ms("under_way_ms", communication.under_way.mean_s),
                 T::ms("exposed_ms", communication.exposed.mean_s),
                 T::ms_detail("exposed_std_ms", communication.exposed.std_s),
                 T::count("transfers", static_cast<double>(communication.last.transfers)),
                 T::detail("message_bytes", "B", static_cast<double>(communication.last.bytes)),
                 T::number("tokens_per_s", "tokens/s", tokens / steps.step.mean_s),
                 T::detail("planned_bytes", "B", static_cast<double>(layout.total_bytes()))};
  add_memory("initial", events.initial(), cells);
  add_memory("before_update", events.before_update(), cells);
  add_memory("in_update", events.in_update(), cells);
  const auto host_bytes = static_cast<double>(layout.total_bytes(memory::Space::host));
  cells.push_back(T::number("host_mib", "MiB", host_bytes / 1048576));
  return cells;
}

}  // namespace

Exit bench_strategies(const Context& context) {
  parallel::World& world = context.world;
  require_several_ranks(world, "bench.strategies measures how ranks share a step");
  std::vector<Span> timeline;
  const auto measure_row = [&] {
    const std::string note = note_on_groups(world, context.settings().parallel);
    if (world.rank() == 0 && !note.empty()) io::answer(note);
    BenchRow row;
    UnitTimes times;
    run_steps_row(world, [&](StepRow& run) { row = measure(context, run, times, timeline); });
    return row;
  };
  return bench_together(context, measure_row, [&](io::h5::File& file) {
    io::Table(file, "timeline", "event", io::numbers_up_to(timeline.size()),
              {"1", "phase, pass in a unit or transfer of one step"})
        .add(kTimeline, timeline);
  });
}

}  // namespace tessera::lab
