/// Timing for bench.step and bench.strategies: set-up, warm-up, counted steps and passes, and their statistics.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lab/bench.hpp"
#include "train/forward.hpp"
#include "train/trainer.hpp"

namespace tessera::lab {

/// The objects to time: steps or, after prepare_forward(), forward passes alone.
struct StepRow {
  std::optional<train::Plan> plan;
  std::optional<train::ForwardPlan> forward_plan;
  std::optional<data::Corpus> corpus;
  std::optional<data::Sampler> sampler;
  std::unique_ptr<train::Trainer> trainer;
  std::unique_ptr<train::Validator> forward;

  void keep() {  // for run_row(), like the next
    if (trainer) trainer->keep_memory();
  }
  void disconnect() {
    if (trainer) trainer->disconnect();
  }
};

/// First notes the free memory, and refuses (exit 3) a slow BLAS on a CPU. Then runs `measure` with objects that every
/// rank has freed when this returns or throws for lack of memory. Collective.
void run_steps_row(parallel::World& world, const std::function<void(StepRow&)>& measure);

/// Plans the step, takes its memory, connects the ranks and makes the first weights. The context, and the trainer's
/// observer if there is one, must outlive the row. Collective; throws parallel::AgreedError.
void prepare(const Context& context, StepRow& row, model::Hooks* observer = nullptr);

/// The same for forward passes alone. The ranks need no connection.
void prepare_forward(const Context& context, StepRow& row);

/// Times of the counted steps on this rank, phases as in StepNumbers; forward_backward is the sum of both per step.
struct StepTiming {
  Timing step, device, forward, backward, forward_backward, exposed, optimizer;
  std::int64_t cold_steps = 0;  // StepNumbers::was_cold
};
StepTiming summarize(const std::vector<train::StepNumbers>& steps);

/// Whether steps are enqueued behind each other, as in training on a GPU, or begin once all ranks have finished the
/// previous one.
enum class StepOrder { queued, alone };
constexpr StepOrder kStepOrder = kernels::kIsHost<kernels::Device> ? StepOrder::alone : StepOrder::queued;

/// Runs a warm-up of at least bench.warmup steps and, on every rank, bench.warmup_ms; then bench.repeats more, whose
/// numbers it returns. No other step runs: without a warm-up the first step counts. When queued, the first counted step
/// is enqueued behind the last of the warm-up. Collective.
std::vector<train::StepNumbers> run_steps(const config::Settings& settings, train::Steps& trainer,
                                          const data::Sampler& sampler, parallel::World& world,
                                          StepOrder order = kStepOrder);

/// The same for validation passes over as many sequences as a step has; no times if the corpus holds too few.
/// Collective.
Timing time_forward(const config::Settings& settings, train::Validator& model, const data::Sampler& sampler,
                    parallel::World& world);

}  // namespace tessera::lab
