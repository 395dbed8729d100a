/// What a training step does while the model runs: announce tensors that come alive and die, tell how long each unit
/// took, and drive the strategy: open and close units, hand over finished gradients.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/events.hpp"
#include "memory/layout.hpp"
#include "model/hooks.hpp"
#include "model/params.hpp"
#include "parallel/strategy.hpp"

namespace tessera::train {

class StepHooks final : public model::Hooks {
 public:
  /// `last_tick` is the update's. `clear_unit` is called where a unit's gradients are about to be written. Keeps
  /// references to all; `observer` gets the same calls about passes and gradients.
  StepHooks(const memory::Layout& layout, int last_tick, parallel::Strategy& strategy, const model::ParamTable& table,
            std::function<void(int)> clear_unit, model::Hooks* observer = nullptr);

  /// Before the first micro-step of a step. Reports what lives for the whole run once.
  void begin_step();
  void begin_micro_step();
  /// What is under way in the phase before ends with it, as far as the trace is concerned: the head stays open.
  void set_phase(std::string_view phase);
  /// No tensor of this micro-step comes alive: this rank has no sequences in it.
  void skip_ticks() { next_tick_ = static_cast<int>(begins_.size()) - 1; }
  /// Everything that is still alive and not for the whole run ends with the step.
  void end_step();

  void before(model::Pass pass, int unit) override;
  void after(model::Pass pass, int unit) override;
  void gradient_ready(int param) override;
  void tick(int tick) override;
  void progress() override { strategy_.progress(); }

 private:
  struct UnderWay {
    int unit = -1;  // -1: none
    double start_s = 0;
  };

  void end(model::Pass pass);
  void report(const std::vector<int>& tensors, bool is_begin) const;

  const memory::Layout& layout_;
  std::vector<std::vector<int>> begins_, ends_;  // tensors by tick
  std::vector<int> whole_run_;
  const model::ParamTable& table_;
  parallel::Strategy& strategy_;
  const std::function<void(int)> clear_unit_;
  model::Hooks* const observer_;                                 // gets every call; null: none
  std::array<std::vector<std::string>, model::kPasses> labels_;  // [pass][unit] "forward/block.03"
  std::array<UnderWay, model::kPasses> under_way_;               // [pass]
  int next_tick_ = 0;
  bool is_in_step_ = false;  // else it is a validation or a sample, which has memory of its own or uses a step's
  bool has_reported_whole_run_ = false;
  std::string_view phase_ = "setup";
};

}  // namespace tessera::train
