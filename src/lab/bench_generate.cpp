/// The bench.generate job: whole generation by the deck's model after a prompt of bench.length tokens, with weights
/// made from job.seed.
///
/// bench.batch prompts of random tokens are continued by 2 + bench.warmup + bench.repeats tokens each, under the deck's
/// [generate] and attention.decode_parts. A token's time starts when the host has read the previous one. The warm-up
/// should hold the two steps before generate.graph's replays. `prompt_ms` counts the prompts once, cold.
///
/// A step reads the weights except unused rows of the embedding (`weights_mib`), and the cached keys and values
/// (`cache_mib`, at the middle of the counted tokens). `bound_ms` is the time to read the weights at the copy rate
/// (bytes read plus bytes written) of the same run, `of_bound` its fraction of a token's time; `of_copy` counts weights
/// and cache. A case that does not fit says so in its outcome. Runs on rank 0.

#include <algorithm>
#include <cmath>

#include "lab/bench.hpp"
#include "lab/kinds.hpp"
#include "jobs/generation.hpp"
#include "jobs/scalars.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/random.hpp"
#include "model/generate.hpp"
#include "model/initial_values.hpp"
#include "train/plan.hpp"

namespace tessera::lab {
namespace {

using Exec = kernels::Device;
template <class Element>
using Memory = Kokkos::View<Element*, Exec::memory_space>;

/// The rate of a copy of 512 MiB (hosts: 64 MiB), bytes read plus bytes written: once per process, before its first
/// row. In memory that 15 GB were freed from, an H100 copied at 0.86 of the rate.
double copy_gbyte_per_s(Bench bench) {
  bench.repeats = std::min<std::int64_t>(bench.repeats, 10);
  const Exec exec;
  const std::int64_t words = std::int64_t{kernels::kIsHost<Exec> ? 64 : 512} << 18;
  const Memory<float> from("tessera::bench::from", words);
  const Memory<float> to("tessera::bench::to", words);
  const Timing copy = time_repeats(bench, exec, [&] { Kokkos::deep_copy(exec, to, from); });
  return 8e-9 * static_cast<double>(words) / copy.median_s;
}

struct Measured {
  double prompt_s = NAN;
  Timing token;
};

template <class Scalar>
Measured measure(const config::Settings& settings, const model::Shape& shape, const model::ParamTable& table,
                 const model::GenerateKernels& how) {
  const Bench& bench = settings.section<Bench>();
  const Memory<Scalar> weights("tessera::bench::weights", table.flat_count());
  model::initialize_weights(Exec{}, table, settings.job.seed, weights.data());
  std::vector<std::vector<int>> prompts(bench.batch);
  for (std::int64_t b = 0; b < bench.batch; ++b) {
    for (std::int64_t i = 0; i < bench.length; ++i) {
      prompts[b].push_back(static_cast<int>(mix(settings.job.seed + b, i) % static_cast<std::uint64_t>(shape.V)));
    }
  }
  const Exec exec;
  double prompt_begins_s = NAN;
  std::vector<double> read_s;  // when the host is about to ask for a token
  model::Hooks no_hooks;
  model::generate_together<Scalar>(
      exec, shape, table, model::places_in<Scalar, Accum<Scalar>>(table, weights.data(), nullptr), how, prompts,
      {.max_tokens = shape.T - bench.length,
       .temperature = settings.generate.temperature,
       .top_k = settings.generate.top_k,
       .seed = settings.job.seed,
       .end_of_text = -1,
       .is_cut =
           [&] {
             read_s.push_back(events::now_s());
             return false;
           },
       .begins_pass =
           [&] {
             if (std::isnan(prompt_begins_s)) prompt_begins_s = events::now_s();
           },
       .run_step = step_runner(exec, settings.generate)},
      no_hooks);
  std::vector<double> seconds;
  for (std::size_t i = 2 + bench.warmup; i < read_s.size(); ++i) seconds.push_back(read_s[i] - read_s[i - 1]);
  return {bench.length > 1 ? read_s.front() - prompt_begins_s : NAN, summarize(std::move(seconds))};
}

BenchRow measure_row(const config::Settings& settings, double copy) {
  const Bench& bench = settings.section<Bench>();
  const model::Shape shape = train::shape_of(settings.model);
  const model::ParamTable table(shape);
  const Dtype dtype = train::dtype_of(settings.precision.compute);
  const model::GenerateKernels how = train::generate_kernels(settings, dtype, shape.D());
  const std::int64_t width = bytes_of(dtype), B = bench.batch;
  const model::GenerationMemory memory(shape, dtype, how, B, table.flat_count() * width);
  const auto weight_bytes = static_cast<double>((table.parameter_count() - shape.V * shape.C + B * shape.C) * width);
  const double keys = static_cast<double>(bench.length) + 1 + static_cast<double>(bench.warmup) +
                      static_cast<double>(bench.repeats) / 2;  // at the middle of the counted tokens
  const double cache_bytes = 2.0 * keys * static_cast<double>(shape.L * shape.C * B * width);
  const bool has_room = memory.layout.total_bytes() <= row_limit_bytes(bench);
  Measured measured;
  if (has_room) with_scalar(dtype, [&]<class Scalar>() { measured = measure<Scalar>(settings, shape, table, how); });

  const double token_s = measured.token.median_s, weights_s = 1e-9 * weight_bytes / copy;
  const double rate = 1e-9 * (weight_bytes + cache_bytes) / token_s;
  using T = Cell;
  return {T::text("size", settings.model.size),
          T::text("compute", word_of("precision.compute", settings)),
          T::text("graph", settings.generate.graph ? "yes" : "no"),
          T::count("B", static_cast<double>(B)),
          T::number("prompt", "tokens", static_cast<double>(bench.length)),
          T::count("parts", static_cast<double>(memory.decoder.parts)),
          T::detail("parameters", "1", static_cast<double>(table.parameter_count())),
          T::detail("temperature", "1", settings.generate.temperature),
          T::detail("top_k", "1", static_cast<double>(settings.generate.top_k)),
          T::ms("prompt_ms", measured.prompt_s),
          T::ms("token_ms", token_s),
          T::ms_detail("token_mean_ms", measured.token.mean_s),
          T::ms("token_std_ms", measured.token.std_s),
          T::ms_detail("token_first_ms", measured.token.first_s),
          T::detail("repeats", "1", static_cast<double>(measured.token.repeats)),
          T::number("tokens_per_s", "tokens/s", static_cast<double>(B) / token_s),
          T::number("weights_mib", "MiB", weight_bytes / 1048576),
          T::number("cache_mib", "MiB", cache_bytes / 1048576),
          T::ms("bound_ms", weights_s),
          T::number("of_bound", "1", weights_s / token_s),
          T::detail("gbyte_per_s", "GB/s", rate),
          T::detail("copy_gbyte_per_s", "GB/s", copy),
          T::number("of_copy", "1", rate / copy),
          T::number("planned_mib", "MiB", static_cast<double>(memory.layout.total_bytes()) / 1048576),
          T::text("outcome", has_room ? "ok" : "out of memory", "out of memory")};
}

}  // namespace

Exit bench_generate(const Context& context) {
  const config::Settings settings = generation_set_up(context.settings()).settings;
  return bench_on_root(context, [&](BenchResult& result) {
    static const double copy = copy_gbyte_per_s(settings.section<Bench>());
    result.add(measure_row(settings, copy));
  });
}

}  // namespace tessera::lab
