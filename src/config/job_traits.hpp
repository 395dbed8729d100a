/// What is known of each kind of job before it runs: one row per job.kind. A new job is a row here, a row in
/// jobs/jobs.cpp and a file.
#pragma once

#include <stdexcept>
#include <string_view>

#include "config/settings.hpp"

namespace tessera::config {

struct JobTraits {
  JobKind kind;
  std::string_view name;   // in job.kind
  bool resumes;            // takes --resume; a signal stops it such that it can go on
  bool has_steps;          // runs optimizer steps: reads data, has a plan
  std::string_view input;  // what job.input must be; empty: nothing is read
};

inline constexpr std::string_view kCheckpointInput = "the path of a checkpoint folder";
inline constexpr std::string_view kFileInput = "the path of an HDF5 file";

inline constexpr JobTraits kJobs[] = {
    {JobKind::train, "train", true, true, ""},
    {JobKind::generate, "generate", false, false, kCheckpointInput},
    {JobKind::bench_step, "bench.step", false, true, ""},
    {JobKind::bench_attention, "bench.attention", false, false, ""},
    {JobKind::bench_kernels, "bench.kernels", false, false, ""},
    {JobKind::bench_comm, "bench.comm", false, false, ""},
    {JobKind::bench_strategies, "bench.strategies", false, true, ""},
    {JobKind::bench_decode, "bench.decode", false, false, ""},
    {JobKind::bench_generate, "bench.generate", false, false, ""},
    {JobKind::bench_accumulation, "bench.accumulation", false, false, ""},
    {JobKind::verify_attention, "verify.attention", false, false, kFileInput},
    {JobKind::verify_model, "verify.model", false, false, kFileInput},
    {JobKind::experiment, "experiment", true, false, ""},  // last: no row of an experiment is one
};

inline const JobTraits& traits_of(JobKind kind) {
  for (const JobTraits& job : kJobs) {
    if (job.kind == kind) return job;
  }
  throw std::logic_error("config: a job.kind without a row in kJobs");
}

}  // namespace tessera::config
