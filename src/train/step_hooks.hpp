/// What a training step does while the model runs: announce tensors that come alive and die, tell how long each unit
/// took, and hand finished gradients to the reduction.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/events.hpp"
#include "memory/layout.hpp"
#include "model/hooks.hpp"
#include "model/params.hpp"
#include "parallel/bucket_queue.hpp"

namespace tessera::train {

class StepHooks final : public model::Hooks {
 public:
  /// `last_tick` is the update's. Keeps references to all but `units`.
  StepHooks(const memory::Layout& layout, int last_tick, parallel::BucketQueue& queue,
            const std::vector<model::UnitSpan>& units);

  /// Before the first micro-step of a step. Reports what lives for the whole run once.
  void begin_step();
  /// `reduces`: this micro-step completes the gradients, which leave as they are ready.
  void begin_micro_step(bool reduces);
  void set_phase(std::string_view phase) { phase_ = phase; }
  /// A rank without sequences in this micro-step owes its gradients all the same, and no tensor of it comes alive.
  void nothing_to_do();
  /// Everything that is still alive and not for the whole run ends with the step.
  void end_step();

  void before_forward(int) override { unit_start_s_ = events::now_s(); }
  void after_forward(int unit) override { report_unit(forward_labels_[unit]); }
  void before_backward(int) override { unit_start_s_ = events::now_s(); }
  void after_backward(int unit) override;
  void tick(int tick) override;
  void progress() override { queue_.progress(); }

 private:
  void report(const std::vector<int>& tensors, bool is_begin) const;
  void report_unit(const std::string& label) const;

  const memory::Layout& layout_;
  std::vector<std::vector<int>> begins_, ends_;  // tensors by tick
  std::vector<int> whole_run_;
  std::vector<std::string> forward_labels_, backward_labels_;  // "forward/block.03"
  parallel::BucketQueue& queue_;
  double unit_start_s_ = 0;
  int next_tick_ = 0;
  bool reduces_ = false, has_reported_whole_run_ = false;
  std::string_view phase_ = "setup";
};

}  // namespace tessera::train
