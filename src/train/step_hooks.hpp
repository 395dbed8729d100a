/// The work of a training step while the model runs: reports live tensors and the time of each unit, and drives the
/// strategy and the optimizer: opens and closes units, hands over finished gradients.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/events.hpp"
#include "kernels/core/ranges.hpp"
#include "model/hooks.hpp"
#include "parallel/strategies/strategy.hpp"
#include "train/optimizer_step.hpp"
#include "train/plan.hpp"

namespace tessera::train {

/// Reports a phase as a region and as a profiler's range, by the host's clock. On a device that times the enqueueing,
/// except in profiled steps, where every kernel is fenced.
template <class Work>
void phase(const char* label, const Work& work) {
  const double start_s = events::now_s();
  const ranges::Range range(label);
  work();
  events::report(events::Region{label, "compute", start_s, events::now_s()});
}

class StepHooks final : public model::Hooks {
 public:
  /// `clear_gradients` prepares a unit's gradients to be written. `observer` receives the same calls about passes and
  /// gradients. Keeps references to plan, strategy, optimizer and observer.
  StepHooks(const Plan& plan, const kernels::Device& exec, parallel::Strategy& strategy, OptimizerStep& optimizer,
            std::function<void(int)> clear_gradients, model::Hooks* observer = nullptr);

  /// Call before the first micro-step of a step. The first call reports what lives for the whole run.
  void begin_step();
  void begin_micro_step();
  /// In the trace, units in progress, an open head included, end with the previous phase.
  void set_phase(std::string_view phase);
  void begin_update();
  /// No tensor of this micro-step becomes live: this rank has no sequences in it.
  void skip_ticks() { next_tick_ = static_cast<int>(begins_.size()) - 1; }
  /// Ends the lifetime of everything still live that does not last for the whole run.
  void end_step();

  void before(model::Pass pass, int unit) override;
  void after(model::Pass pass, int unit) override;
  void gradient_enqueued(int param) override;
  void tick(int tick) override;
  void progress() override { strategy_.progress(); }

 private:
  struct UnderWay {
    int unit = -1;  // -1: none
    double start_s = 0;
    ranges::Id range = ranges::kNone;
  };

  void end(model::Pass pass);
  void report(const std::vector<int>& tensors, bool is_begin) const;

  const memory::Layout& layout_;
  const kernels::Device exec_;
  std::vector<std::vector<int>> begins_, ends_;  // tensors by tick
  std::vector<int> whole_run_;
  const model::ParamTable& table_;
  parallel::Strategy& strategy_;
  OptimizerStep& optimizer_;
  const std::function<void(int)> clear_gradients_;
  model::Hooks* const observer_;                                 // receives every call; null: none
  std::array<std::vector<std::string>, model::kPasses> labels_;  // [pass][unit] "forward/block.03"
  std::array<UnderWay, model::kPasses> under_way_;               // [pass]
  int next_tick_ = 0;
  bool is_in_step_ = false;  // else a validation or a sample, which has its own memory or reuses a step's
  bool has_reported_whole_run_ = false;
  std::string_view phase_ = "setup";
};

}  // namespace tessera::train
