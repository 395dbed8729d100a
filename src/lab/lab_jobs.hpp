/// The laboratory's jobs: one function per kind, one file each. They use the helpers of jobs by their plain names.
#pragma once

#include "jobs/jobs.hpp"
#include "lab/bench_keys.hpp"

namespace tessera::lab {

using namespace jobs;

Exit bench_attention(const Context& context);
Exit bench_kernels(const Context& context);
Exit bench_step(const Context& context);
Exit bench_comm(const Context& context);
Exit bench_strategies(const Context& context);
Exit bench_decode(const Context& context);
Exit bench_generate(const Context& context);
Exit bench_accumulation(const Context& context);
Exit experiment(const Context& context);

}  // namespace tessera::lab
