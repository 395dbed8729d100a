#include "lab/unit_times.hpp"  // the contract is there; here is how

#include <utility>

#include "kernels/core/events.hpp"

namespace tessera::lab {

void UnitTimes::follow(const train::Trainer& trainer, const train::Plan& plan) {
  const auto units = static_cast<int>(plan.table.units().size());
  timer_.emplace(1 + 2 * (model::kPasses - 1) * units * plan.batch.micro_steps);  // a step has no inference
  exec_ = trainer.instance();
  marked_.clear();
  marks_ = 0;
  mark();
  exec_->fence();
  begin_s_ = events::now_s();
}

std::vector<UnitTime> UnitTimes::take() {
  end();
  exec_.reset();
  std::vector<UnitTime> times;
  for (const Marked& each : marked_) {
    times.push_back(
        {each.pass, each.unit, begin_s_ + timer_->seconds(0, each.first), begin_s_ + timer_->seconds(0, each.last)});
  }
  return times;
}

void UnitTimes::before(model::Pass pass, int unit) {
  if (!exec_) return;
  end();
  marked_.push_back({pass, unit, mark(), 0});
  is_in_unit_ = true;
}

void UnitTimes::after(model::Pass pass, int unit) {
  if (is_in_unit_ && marked_.back().pass == pass && marked_.back().unit == unit) end();
}

int UnitTimes::mark() {
  timer_->mark(*exec_, marks_);
  return marks_++;
}

void UnitTimes::end() {
  if (std::exchange(is_in_unit_, false)) marked_.back().last = mark();
}

}  // namespace tessera::lab
