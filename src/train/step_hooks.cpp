#include "train/step_hooks.hpp"  // the contract is there; here is how

#include <utility>

#include "train/sharing.hpp"

namespace tessera::train {

StepHooks::StepHooks(const Plan& plan, const kernels::Device& exec, parallel::Strategy& strategy,
                     OptimizerStep& optimizer, std::function<void(int)> clear_gradients, model::Hooks* observer)
    : layout_(plan.layout),
      exec_(exec),
      begins_(model::Timeline{plan.shape.units()}.update() + 1),
      ends_(begins_.size()),
      table_(plan.table),
      strategy_(strategy),
      optimizer_(optimizer),
      clear_gradients_(std::move(clear_gradients)),
      observer_(observer) {
  const memory::Layout& layout = plan.layout;
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    if (layout.tensors()[i].space != memory::Space::device) continue;
    const memory::Lifetime& life = layout.tensors()[i].lifetime;
    if (life.is_whole_run()) {
      whole_run_.push_back(static_cast<int>(i));
    } else {
      begins_[life.first].push_back(static_cast<int>(i));
      ends_[life.last].push_back(static_cast<int>(i));
    }
  }
  for (int pass = 0; pass < model::kPasses; ++pass) {
    const std::string name(model::name_of(static_cast<model::Pass>(pass)));
    for (const model::UnitSpan& unit : table_.units()) labels_[pass].push_back(name + "/" + unit.label);
  }
}

void StepHooks::begin_step() {
  if (!std::exchange(has_reported_whole_run_, true)) report(whole_run_, true);
}

void StepHooks::begin_micro_step() {
  // The previous micro-step, if any, ended with its last tick: what lived until then dies.
  if (next_tick_ > 0 && events::has_listeners()) report(ends_[next_tick_ - 1], false);
  is_in_step_ = true;
  next_tick_ = 0;
  phase_ = "forward";
}

void StepHooks::set_phase(std::string_view phase) {
  end(model::Pass::forward);
  phase_ = phase;
}

void StepHooks::begin_update() {
  set_phase("optimizer");
  tick(static_cast<int>(begins_.size()) - 1);
}

void StepHooks::before(model::Pass pass, int unit) {
  if (pass == model::Pass::backward) {  // the recomputation is over, though the unit stays open
    if (under_way_[static_cast<int>(model::Pass::recompute)].unit == unit) end(model::Pass::recompute);
  }
  if (reads_weights(pass, unit)) {
    optimizer_.await(exec_, unit);
    strategy_.open(unit);
  }
  if (pass == model::Pass::backward) {
    strategy_.begin_gradients(unit);
    clear_gradients_(unit);
  }
  if (observer_) observer_->before(pass, unit);
  under_way_[static_cast<int>(pass)] = {unit, events::now_s(),
                                        ranges::open(labels_[static_cast<int>(pass)][unit].c_str())};
}

void StepHooks::after(model::Pass pass, int unit) {
  end(pass);
  if (observer_) observer_->after(pass, unit);
  if (reads_weights(pass, unit)) strategy_.close(unit);
  if (pass == model::Pass::backward) {
    optimizer_.end_backward(exec_, unit);
    progress();
  }
}

void StepHooks::end(model::Pass pass) {
  const UnderWay done = std::exchange(under_way_[static_cast<int>(pass)], {});
  ranges::close(done.range);
  if (done.unit < 0 || !events::has_listeners()) return;
  const std::string& label = labels_[static_cast<int>(pass)][done.unit];
  events::report(events::Region{label, "compute", done.start_s, events::now_s()});
}

void StepHooks::gradient_enqueued(int param) {
  if (observer_) observer_->gradient_enqueued(param);
  strategy_.gradient_enqueued(param);
}

void StepHooks::tick(int tick) {
  if (!is_in_step_ || !events::has_listeners()) return;
  for (; next_tick_ <= tick; ++next_tick_) {
    if (next_tick_ > 0) report(ends_[next_tick_ - 1], false);
    report(begins_[next_tick_], true);
  }
}

void StepHooks::end_step() {
  tick(static_cast<int>(begins_.size()) - 1);
  if (events::has_listeners()) report(ends_.back(), false);
  next_tick_ = 0;
  is_in_step_ = false;
}

void StepHooks::report(const std::vector<int>& tensors, bool is_begin) const {
  for (const int i : tensors) {
    const memory::Tensor& tensor = layout_.tensors()[i];
    const auto change = [&](const std::string& label, std::int64_t bytes) {
      events::report(events::MemoryChange{label, memory::name_of(tensor.category), phase_, bytes, is_begin,
                                          events::now_s(), name_of(tensor.dtype)});
    };
    if (tensor.parts.empty()) change(tensor.label, tensor.bytes);
    for (const memory::Part& part : tensor.parts) change(part.label, part.count * bytes_of(tensor.dtype));
  }
}

}  // namespace tessera::train
