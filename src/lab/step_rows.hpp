/// What the jobs that time optimizer steps measure with.
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
  /// Notes how much memory is free. Refuses (exit 3) a slow BLAS on a CPU. Collective.
  explicit StepRows(const Context& context);

  /// Plans the step, tells `planned` of it, takes its memory, connects the ranks and makes the first weights.
  /// `settings` must outlive the row. Collective; throws parallel::AgreedError.
  void prepare(const config::Settings& settings, const std::function<void(const train::Plan&)>& planned, StepRow& row);

  /// The same for forward passes alone. The ranks need no connection.
  void prepare_forward(const config::Settings& settings, const std::function<void(const train::ForwardPlan&)>& planned,
                       StepRow& row);

  /// Runs `measure` with objects that every rank has freed when this returns or throws for lack of memory. Collective.
  void run(const std::function<void(StepRow&)>& measure);

  /// Bytes of the GPU's memory that this process has taken since it began, libraries included, whichever row loaded
  /// them; NaN on CPUs, and where ranks share a GPU: the others' would count, too.
  double taken_bytes() const;

 private:
  void open_data(const config::Settings& settings, StepRow& row);

  parallel::World& world_;
  io::Console console_;  // on standard error: standard output is the benchmark's table
};

}  // namespace tessera::lab
