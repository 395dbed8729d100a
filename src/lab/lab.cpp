#include "lab/lab.hpp"

#include "config/extension.hpp"
#include "lab/kinds.hpp"
#include "lab/lab_jobs.hpp"

namespace tessera::lab {

void join() {
  static constexpr JobRow kRows[] = {
      {kBenchStep, bench_step},         {kBenchAttention, bench_attention},       {kBenchKernels, bench_kernels},
      {kBenchComm, bench_comm},         {kBenchStrategies, bench_strategies},     {kBenchDecode, bench_decode},
      {kBenchGenerate, bench_generate}, {kBenchAccumulation, bench_accumulation}, {kExperiment, experiment},
  };
  config::extend(deck_extension());
  add_jobs(kRows);
}

}  // namespace tessera::lab
