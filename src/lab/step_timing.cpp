#include "lab/step_timing.hpp"  // the contract is there; here is how

#include <algorithm>
#include <cstdio>  // stderr
#include <functional>

#include "jobs/memory.hpp"
#include "jobs/open_corpus.hpp"
#include "jobs/stop.hpp"
#include "kernels/core/events.hpp"

namespace tessera::lab {
namespace {

/// Runs `work` at least `least` times, and until bench.warmup_ms have passed on every rank.
template <class Work>
void warm_up(const Bench& bench, std::int64_t least, parallel::World& world, const Work& work) {
  const double begin_s = events::now_s();
  const auto is_early = [&] {
    if (bench.warmup_ms == 0) return false;
    const auto watch = world.watch("the exchange between steps");
    return world.any(1e3 * (events::now_s() - begin_s) < bench.warmup_ms);
  };
  for (std::int64_t i = 0; i < least || is_early(); ++i) work();
}

void open_data(const Context& context, StepRow& row) {
  const config::Settings& settings = context.settings();
  io::Console console(console_style(context), 1, stderr);  // standard output is the benchmark's table
  row.corpus.emplace(open_corpus(context.world, settings, arrived_signal, console));
  context.world.agree([&] {
    row.sampler.emplace(*row.corpus, settings.model.context_length, settings.data.validation_fraction,
                        settings.job.seed);
  });
}

}  // namespace

void run_steps_row(parallel::World& world, const std::function<void(StepRow&)>& measure) {
  {
    const auto watch = world.watch("the start of the benchmark");
    if constexpr (kernels::kIsHost<kernels::Device>) world.agree(require_fast_blas);
    free_at_start(world);  // noted, before a row takes memory; an experiment has, before its first
  }
  if (const auto failure = run_row<StepRow>(world, measure)) throw parallel::AgreedError(*failure);
}

void prepare(const Context& context, StepRow& row, model::Hooks* observer) {
  const config::Settings& settings = context.settings();
  parallel::World& world = context.world;
  const auto watch = world.watch("the set-up of a row", parallel::kPatience);
  world.agree([&] {
    row.plan.emplace(train::plan_training(settings, train::dtype_of(settings.precision.compute), world.size(),
                                          train::machine_of(world)));
    require_memory(row.plan->layout, share_of_plan(world, settings), "\nsmaller batches or models need less");
    require_pinned_memory(row.plan->layout, world);
  });
  open_data(context, row);
  world.agree([&] { row.trainer = std::make_unique<train::Trainer>(*row.plan, settings, world, observer); });
  world.agree([&] { row.trainer->connect(); });
  world.agree([&] { row.trainer->initialize(settings.job.seed); });
}

void prepare_forward(const Context& context, StepRow& row) {
  const config::Settings& settings = context.settings();
  parallel::World& world = context.world;
  const auto watch = world.watch("the set-up of a row", parallel::kPatience);
  world.agree([&] {
    row.forward_plan.emplace(train::plan_forward(settings, train::dtype_of(settings.precision.compute), world.size(),
                                                 train::machine_of(world)));
    // not share_of_plan: forward passes sum nothing, so their plan has none of NCCL's buffers that earlier rows have
    // left
    require_memory(row.forward_plan->layout, share_of_memory(world), "\nsmaller batches or models need less");
  });
  open_data(context, row);
  world.agree([&] {
    if (const std::int64_t windows = row.sampler->validation_windows(); windows < settings.train.batch_size) {
      throw Failure(Exit::usage,
                    "bench.phase = \"forward\" reads train.batch_size = {} validation windows, and there are {}: raise "
                    "data.validation_fraction, or take a longer text",
                    settings.train.batch_size, windows);
    }
    row.forward = train::make_forward(*row.forward_plan, settings, world, settings.job.seed);
  });
}

StepTiming summarize(const std::vector<train::StepNumbers>& steps) {
  using Numbers = train::StepNumbers;
  const auto of = [&](const auto& part) {
    std::vector<double> seconds;
    for (const Numbers& step : steps) seconds.push_back(std::invoke(part, step));
    return summarize(std::move(seconds));
  };
  return {.step = of(&Numbers::step_s),
          .device = of(&Numbers::total_s),
          .forward = of(&Numbers::forward_s),
          .backward = of(&Numbers::backward_s),
          .forward_backward = of([](const Numbers& n) { return n.forward_s + n.backward_s; }),
          .exposed = of(&Numbers::exposed_comm_s),
          .optimizer = of(&Numbers::optimizer_s),
          .cold_steps = std::ranges::count(steps, true, &Numbers::was_cold)};
}

std::vector<train::StepNumbers> run_steps(const config::Settings& settings, train::Steps& trainer,
                                          const data::Sampler& sampler, parallel::World& world, StepOrder order) {
  const Bench& bench = settings.section<Bench>();
  const double patience = world.patience_over(settings.train.batch_size);
  std::int64_t sample = 0;
  const auto start = [&] {
    const auto watch = world.watch("a step", patience);
    trainer.start(sample, sampler);
    sample += settings.train.batch_size;
  };
  const auto collect = [&] {
    const auto watch = world.watch("the end of a step", patience);
    return trainer.collect();
  };
  const bool is_queued = order == StepOrder::queued;
  const bool leads = is_queued && (bench.warmup > 0 || bench.warmup_ms > 0);  // a step of the warm-up, the queue
  warm_up(bench, bench.warmup - (leads ? 1 : 0), world, [&] {
    start();
    collect();
  });

  std::vector<train::StepNumbers> counted;
  if (!is_queued) {
    for (std::int64_t i = 0; i < bench.repeats; ++i) {
      {
        const auto watch = world.watch("the exchange between steps");
        world.barrier();
      }
      start();
      counted.push_back(collect());
    }
    return counted;
  }
  if (leads) start();
  start();
  if (leads) collect();
  for (std::int64_t i = 0; i < bench.repeats; ++i) {
    if (i + 1 < bench.repeats) start();
    counted.push_back(collect());
  }
  return counted;
}

Timing time_forward(const config::Settings& settings, train::Validator& model, const data::Sampler& sampler,
                    parallel::World& world) {
  const Bench& bench = settings.section<Bench>();
  const std::int64_t sequences = settings.train.batch_size;
  if (sampler.validation_windows() < sequences) return {};
  const auto pass_s = [&] {
    const auto watch = world.watch("a forward pass", world.patience_over(settings.train.batch_size));
    world.barrier();
    const double start_s = events::now_s();
    model.validate(sampler, sequences);
    return events::now_s() - start_s;
  };
  warm_up(bench, bench.warmup, world, pass_s);
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < bench.repeats; ++i) seconds.push_back(pass_s());
  return summarize(std::move(seconds));
}

}  // namespace tessera::lab
