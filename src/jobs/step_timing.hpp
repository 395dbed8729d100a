/// What bench.step times: which steps and passes run before those that count, and what the times come to.
#pragma once

#include <cstdint>
#include <vector>

#include "config/settings.hpp"
#include "jobs/bench.hpp"
#include "train/trainer.hpp"

namespace tessera::jobs {

/// Times of the counted steps on this rank, phases as in StepNumbers; forward_backward is of each step's own sum.
struct StepTiming {
  Timing step, device, forward, backward, forward_backward, exposed, optimizer;
  std::int64_t cold_steps = 0;  // StepNumbers::was_cold
};
StepTiming summarize(const std::vector<train::StepNumbers>& steps);

/// Whether a step waits behind the one before, as in training on a GPU, or begins when all ranks have ended theirs.
enum class StepOrder { queued, alone };
constexpr StepOrder kStepOrder = kernels::kIsHost<kernels::Device> ? StepOrder::alone : StepOrder::queued;

/// Runs the steps of the warm-up: bench.warmup of them, and more until bench.warmup_ms are over on every rank; then
/// bench.repeats more, and returns their numbers. No other step runs: without a warm-up the first number is the first
/// step's. In a queue the last step of the warm-up is the one that the first counted step waits behind. Collective.
std::vector<train::StepNumbers> run_steps(const config::Settings& settings, train::Steps& trainer,
                                          const data::Sampler& sampler, parallel::World& world,
                                          StepOrder order = kStepOrder);

/// The same of validation passes over as many sequences as a step has; no times where the corpus holds too few.
/// Collective.
Timing time_forward(const config::Settings& settings, train::Steps& trainer, const data::Sampler& sampler,
                    parallel::World& world);

}  // namespace tessera::jobs
