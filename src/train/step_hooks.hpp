/// What a training step does while the model runs: it reports tensors that become live or die and the time of each
/// unit, and drives the strategy: opens and closes units, and hands over finished gradients.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/events.hpp"
#include "kernels/core/ranges.hpp"
#include "memory/layout.hpp"
#include "model/hooks.hpp"
#include "model/params.hpp"
#include "parallel/strategies/strategy.hpp"

namespace tessera::train {

class StepHooks final : public model::Hooks {
 public:
  /// What the trainer does with a unit.
  struct UnitCalls {
    std::function<void(int)> await_weights;    // they are about to be read
    std::function<void(int)> clear_gradients;  // they are about to be written
    std::function<void(int)> end_backward;     // this micro-step neither writes them nor reads its weights again
  };

  /// `last_tick` is the update's. `observer` receives the same calls about passes and gradients. Keeps references to
  /// all arguments.
  StepHooks(const memory::Layout& layout, int last_tick, parallel::Strategy& strategy, const model::ParamTable& table,
            UnitCalls calls, model::Hooks* observer = nullptr);

  /// Call before the first micro-step of a step. The first call reports what lives for the whole run.
  void begin_step();
  void begin_micro_step();
  /// In the trace, units in progress end with the previous phase, even though the head stays open.
  void set_phase(std::string_view phase);
  /// No tensor of this micro-step becomes live: this rank has no sequences in it.
  void skip_ticks() { next_tick_ = static_cast<int>(begins_.size()) - 1; }
  /// Ends the lifetime of everything still live that does not last for the whole run.
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
    ranges::Id range = ranges::kNone;
  };

  void end(model::Pass pass);
  void report(const std::vector<int>& tensors, bool is_begin) const;

  const memory::Layout& layout_;
  std::vector<std::vector<int>> begins_, ends_;  // tensors by tick
  std::vector<int> whole_run_;
  const model::ParamTable& table_;
  parallel::Strategy& strategy_;
  const UnitCalls calls_;
  model::Hooks* const observer_;                                 // receives every call; null: none
  std::array<std::vector<std::string>, model::kPasses> labels_;  // [pass][unit] "forward/block.03"
  std::array<UnderWay, model::kPasses> under_way_;               // [pass]
  int next_tick_ = 0;
  bool is_in_step_ = false;  // else a validation or a sample, which has its own memory or reuses a step's
  bool has_reported_whole_run_ = false;
  std::string_view phase_ = "setup";
};

}  // namespace tessera::train
