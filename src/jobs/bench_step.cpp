/// The bench.step job: whole optimizer steps of the deck's model, after a warm-up, phase by phase.
///
/// Times are rank 0's; the data are the deck's. One row, medians, with mean and standard deviation of the step.

#include <fmt/format.h>

#include <cmath>

#include "jobs/bench.hpp"
#include "kernels/core/events.hpp"
#include "memory/arena.hpp"
#include "train/step.hpp"

namespace tessera::jobs {

Exit bench_step(const Context& context) {
  const config::Settings& settings = context.settings();
  parallel::World& world = context.world;
  std::string path;
  on_root(world, [&] { path = result_path(context, "bench.h5"); });
  std::optional<train::Plan> plan;
  std::optional<data::Corpus> corpus;
  std::optional<data::Sampler> sampler;
  together(world, [&] {
    require_fast_blas();
    plan.emplace(train::plan_training(settings, train::dtype_of(settings.precision.compute), world.size()));
    memory::require_host_memory(plan->layout, world.local_size(), "\nsmaller batches or models need less");
    corpus.emplace(
        data::Corpus::open(settings.data.source, settings.data.path, settings.model.vocab_size, settings.job.seed));
    sampler.emplace(*corpus, settings.model.context_length, settings.data.validation_fraction, settings.job.seed);
  });
  const std::unique_ptr<train::Trainer> trainer = train::make_trainer(*plan, settings, world);
  trainer->initialize(settings.job.seed);

  std::vector<double> step_s, forward_s, backward_s, exposed_s, optimizer_s;
  for (std::int64_t i = -settings.bench.warmup; i < settings.bench.repeats; ++i) {
    world.barrier();
    const double start_s = events::now_s();
    const train::StepNumbers n = trainer->run((i + settings.bench.warmup) * settings.train.batch_size, *sampler);
    if (i < 0) continue;
    step_s.push_back(events::now_s() - start_s);
    forward_s.push_back(n.forward_s);
    backward_s.push_back(n.backward_s);
    exposed_s.push_back(n.exposed_comm_s);
    optimizer_s.push_back(n.optimizer_s);
  }
  const Timing step = summarize(step_s);
  const double tokens = static_cast<double>(settings.train.batch_size * settings.model.context_length);
  const auto ms = [](const std::vector<double>& seconds) { return 1e3 * summarize(seconds).median_s; };
  using T = BenchTable;
  BenchTable table;
  add_and_print(table,
                {T::number("ranks", "1", world.size()),
                 T::number("parameters", "1", static_cast<double>(plan->table.parameter_count())),
                 T::number("tokens", "tokens", tokens), T::number("forward_ms", "ms", ms(forward_s)),
                 T::number("backward_ms", "ms", ms(backward_s)), T::number("exposed_ms", "ms", ms(exposed_s)),
                 T::number("optimizer_ms", "ms", ms(optimizer_s)), T::number("step_ms", "ms", 1e3 * step.median_s),
                 T::number("step_mean_ms", "ms", 1e3 * step.mean_s), T::number("step_std_ms", "ms", 1e3 * step.std_s),
                 T::number("tokens_per_s", "tokens/s", tokens / step.median_s),
                 T::number("gflop_per_s", "Gflop/s", 1e-9 * train::step_flop(*plan) / step.median_s),
                 T::number("arena_mib", "MiB", static_cast<double>(plan->layout.arena_bytes()) / 1048576)},
                context);
  on_root(world, [&] { write_and_say(table, path, context); });
  return Exit::finished;
}

}  // namespace tessera::jobs
