#include "train/step_hooks.hpp"  // the contract is there; here is how

#include <utility>

namespace tessera::train {

StepHooks::StepHooks(const memory::Layout& layout, int last_tick, parallel::BucketQueue& queue,
                     const std::vector<model::UnitSpan>& units)
    : layout_(layout), begins_(last_tick + 1), ends_(last_tick + 1), queue_(queue) {
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    const memory::Lifetime& life = layout.tensors()[i].lifetime;
    if (life.is_whole_run()) {
      whole_run_.push_back(static_cast<int>(i));
    } else {
      begins_[life.first].push_back(static_cast<int>(i));
      ends_[life.last].push_back(static_cast<int>(i));
    }
  }
  for (const model::UnitSpan& unit : units) {
    forward_labels_.push_back("forward/" + unit.label);
    backward_labels_.push_back("backward/" + unit.label);
  }
}

void StepHooks::begin_step() {
  if (!std::exchange(has_reported_whole_run_, true)) report(whole_run_, true);
}

void StepHooks::begin_micro_step(bool reduces) {
  // The micro-step before, if there was one, ended with its last tick: what lived until then goes.
  if (next_tick_ > 0 && events::has_listeners()) report(ends_[next_tick_ - 1], false);
  reduces_ = reduces;
  next_tick_ = 0;
  phase_ = "forward";
}

void StepHooks::tick(int tick) {
  if (!events::has_listeners()) return;
  for (; next_tick_ <= tick; ++next_tick_) {
    if (next_tick_ > 0) report(ends_[next_tick_ - 1], false);
    report(begins_[next_tick_], true);
  }
}

void StepHooks::end_step() {
  tick(static_cast<int>(begins_.size()) - 1);
  if (events::has_listeners()) report(ends_.back(), false);
  next_tick_ = 0;
}

void StepHooks::after_backward(int unit) {
  report_unit(backward_labels_[unit]);
  if (reduces_) queue_.ready(backward_labels_.size() - 1 - static_cast<std::size_t>(unit));
  queue_.progress();
}

void StepHooks::nothing_to_do() {
  next_tick_ = static_cast<int>(begins_.size()) - 1;
  if (!reduces_) return;
  for (std::size_t i = 0; i < backward_labels_.size(); ++i) queue_.ready(i);
}

void StepHooks::report(const std::vector<int>& tensors, bool is_begin) const {
  for (const int i : tensors) {
    const memory::Tensor& tensor = layout_.tensors()[i];
    events::report(events::MemoryChange{tensor.label, memory::name_of(tensor.category), phase_, tensor.bytes, is_begin,
                                        events::now_s()});
  }
}

void StepHooks::report_unit(const std::string& label) const {
  if (events::has_listeners()) events::report(events::Region{label, "compute", unit_start_s_, events::now_s()});
}

}  // namespace tessera::train
