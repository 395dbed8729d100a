#include "lab/lab.hpp"

#include "config/extension.hpp"
#include "jobs/jobs.hpp"
#include "lab/kinds.hpp"

namespace tessera::lab {

using jobs::Context;

// The laboratory's jobs, one file each.
Exit bench_step(const Context& context);
Exit bench_attention(const Context& context);
Exit bench_kernels(const Context& context);
Exit bench_comm(const Context& context);
Exit bench_strategies(const Context& context);
Exit bench_decode(const Context& context);
Exit bench_generate(const Context& context);
Exit bench_accumulation(const Context& context);
Exit experiment(const Context& context);

namespace {

constexpr jobs::JobRow kRows[] = {
    {kBenchStep, bench_step},         {kBenchAttention, bench_attention},       {kBenchKernels, bench_kernels},
    {kBenchComm, bench_comm},         {kBenchStrategies, bench_strategies},     {kBenchDecode, bench_decode},
    {kBenchGenerate, bench_generate}, {kBenchAccumulation, bench_accumulation}, {kExperiment, experiment}};

}  // namespace

void join() {
  config::extend(lab_extension());
  jobs::add_jobs(kRows);
}

}  // namespace tessera::lab
