/// Rows of the jobs that time optimizer steps: what one is measured with, and how it fails without ending the job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "data/corpus.hpp"
#include "data/sampler.hpp"
#include "errors.hpp"
#include "io/console.hpp"
#include "lab/bench.hpp"
#include "train/forward.hpp"
#include "train/plan.hpp"
#include "train/trainer.hpp"

namespace tessera::lab {

/// The objects with which a row is measured.
struct StepRow {
  std::optional<train::Plan> plan;
  std::optional<data::Corpus> corpus;
  std::optional<data::Sampler> sampler;
  std::unique_ptr<train::Trainer> trainer;
  std::optional<train::ForwardPlan> forward_plan;  // of prepare_forward, instead of plan and trainer
  std::unique_ptr<train::Validator> forward;
};

class StepRows {
 public:
  /// Before the first row: notes how much memory is free. Refuses (exit 3) a slow BLAS on a CPU. Collective.
  explicit StepRows(const Context& context);

  /// Plans a row, tells `planned` of it, takes its memory, connects the ranks and makes the first weights. `settings`
  /// must outlive the row. Collective; throws parallel::AgreedError.
  void prepare(const config::Settings& settings, const std::function<void(const train::Plan&)>& planned, StepRow& row);

  /// The same for forward passes alone. The ranks need no connection.
  void prepare_forward(const config::Settings& settings, const std::function<void(const train::ForwardPlan&)>& planned,
                       StepRow& row);

  /// Runs `measure` with a row of its own, which every rank has freed when this returns. A parallel::AgreedError whose
  /// code `is_outcome` accepts is returned; any other exception passes. Collective.
  std::optional<Failure> run(const std::function<void(StepRow&)>& measure, const std::function<bool(Exit)>& is_outcome);

  /// Bytes of the GPU's memory that this process has taken since the job began, libraries included; NaN on CPUs.
  double taken_bytes() const;

 private:
  void open_data(const config::Settings& settings, StepRow& row);

  parallel::World& world_;
  io::Console console_;         // on standard error: standard output is the benchmark's table
  std::int64_t free_at_start_;  // bytes of the GPU's memory, those of the collectives' buffers included
};

}  // namespace tessera::lab
