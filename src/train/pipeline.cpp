#include "train/pipeline.hpp"  // the contract is there; here is how

#include <stdexcept>
#include <string>

#include "errors.hpp"
#include "parallel/collectives/collective.hpp"

namespace tessera::train {

PhaseTimes StepMarks::phases() const {
  PhaseTimes times;
  for (int micro = 0; micro < micro_steps_; ++micro) {
    times.forward_s += worked_s(forward(micro), backward(micro));
    times.backward_s += worked_s(backward(micro), forward(micro + 1));
  }
  times.backward_s += worked_s(forward(micro_steps_), reduced());  // gradients that have arrived are added
  times.exposed_comm_s = waited_s(begin(), end());
  times.optimizer_s = worked_s(begin(), forward(0)) + worked_s(reduced(), end());
  times.total_s = timer_.seconds(begin(), end());
  return times;
}

Pipeline::Pipeline(const kernels::Device& exec, parallel::World& world, int micro_steps, int most_waits,
                   bool records_graphs)
    : exec_(exec), world_(world), records_graphs_(records_graphs) {
  for (int i = 0; i < kMaxStarted; ++i) slots_.emplace_back(micro_steps, most_waits);
}

int Pipeline::next_slot() const {
  if (started() == kMaxStarted) throw std::logic_error("trainer: collect a step before starting another");
  return static_cast<int>(started_ % kMaxStarted);
}

void Pipeline::begin() {
  Slot& slot = slots_[next_slot()];
  slot.follows = started() > 0;
  if (!slot.follows) times_.mark(exec_, start_of(started_));
}

void Pipeline::start(bool launch_by_launch, const Enqueue& enqueue) {
  Slot& slot = slots_[next_slot()];
  slot.is_cold = started_ == 0 || (records_graphs_ && !launch_by_launch && !slot.graph.is_recorded());
  slot.is_by_launch = launch_by_launch || !records_graphs_ || !slot.has_run;
  if (slot.is_by_launch) {
    enqueue(slot.marks);
  } else {
    if (!slot.graph.is_recorded()) slot.graph.record(exec_, [&] { enqueue(slot.marks); });
    slot.graph.launch(exec_);
  }
  times_.mark(exec_, end_of(started_));  // after the graph: a mark inside may still show the previous replay
  slot.has_run = true;
  ++started_;
}

Pipeline::Ended Pipeline::collect() {
  if (started() == 0) throw std::logic_error("trainer: no step was started");
  const int number = static_cast<int>(collected_ % kMaxStarted);
  const Slot& slot = slots_[number];
  wait_for_end_of(collected_);
  const int since = slot.follows ? end_of(collected_ - 1) : start_of(collected_);
  const double step_s = times_.seconds(since, end_of(collected_));
  ++collected_;
  if (records_graphs_ && slot.is_by_launch) world_.expect_silence(step_s);
  return {number, slot.is_by_launch, slot.is_cold, slot.marks.phases(), step_s};
}

void Pipeline::forget_graphs() {
  for (Slot& slot : slots_) slot.graph = StepGraph();
}

void Pipeline::wait_for_end_of(std::int64_t step) const {
  for (int polls = 0; !times_.has_passed(end_of(step)); ++polls) {
    if (polls % 1024 != 0 || world_.size() == 1) continue;
    if (const std::string fault = world_.collectives().fault(); !fault.empty()) throw Failure(Exit::hang, fault);
  }
}

}  // namespace tessera::train
