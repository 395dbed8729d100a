/// When the passes of a step are in each unit of the model: the blocks of a step on a time axis.
#pragma once

#include <optional>
#include <vector>

#include "kernels/core/stream_timer.hpp"
#include "kernels/core/tensor.hpp"
#include "model/hooks.hpp"
#include "train/trainer.hpp"

namespace tessera::lab {

/// A pass in a unit, waits for its weights excluded: they precede it.
struct UnitTime {
  model::Pass pass;
  int unit;
  double start_s, end_s;  // events::now_s, of work on the device
};

/// A trainer's observer: marks the instance of its steps between follow() and take(). It must outlive the trainer.
class UnitTimes final : public model::Hooks {
 public:
  /// Marks the next step of the trainer that it observes, of that plan. It must be launched kernel by kernel: marks in
  /// a graph would be set at each replay. Allocates.
  /// Async  fences the trainer's instance.
  void follow(const train::Trainer& trainer, const train::Plan& plan);

  /// The times of that step, in order; one ends before the next begins. Waits for the step.
  std::vector<UnitTime> take();

  void before(model::Pass pass, int unit) override;
  void after(model::Pass pass, int unit) override;

 private:
  struct Marked {
    model::Pass pass;
    int unit, first, last;  // marks
  };
  int mark();
  void end();

  std::optional<kernels::Device> exec_;  // of the step that is followed
  double begin_s_ = 0;                   // events::now_s, at mark 0
  int marks_ = 0;
  bool is_in_unit_ = false;  // the last of marked_ has not ended
  std::vector<Marked> marked_;
  std::optional<kernels::StreamTimer> timer_;
};

}  // namespace tessera::lab
