/// Steps enqueued ahead of the host, and the graphs that replay them.
///
/// On a GPU the host only enqueues: start() returns while the step runs. Its numbers are collected one step later, so
/// the GPU finds the next step already enqueued. Steps alternate between kMaxStarted slots, each with its own time
/// marks and graph. With graphs, a slot's first step runs launch by launch, its next is captured, later ones replayed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/core/stream_timer.hpp"
#include "kernels/core/tensor.hpp"
#include "parallel/strategies/strategy.hpp"
#include "parallel/world.hpp"
#include "train/graph.hpp"

namespace tessera::train {

/// Seconds of the phases of a step, by the device's clock. Waits for transfers count in `exposed_comm_s` alone, so the
/// four add up to the total. The wait for a deferred update (optimizer_step.hpp) belongs to the next step's forward.
struct PhaseTimes {
  double forward_s = 0, backward_s = 0, exposed_comm_s = 0, optimizer_s = 0;
  double total_s = 0;  // first launch to last
};

/// The time marks of a step: begin; forward and backward of every micro-step (a forward mark also ends the previous
/// backward pass); reduced; end; and two around each wait for a transfer. Part of a step's graph; valid once the step
/// is done.
class StepMarks {
 public:
  /// For steps of at most `most_waits` waits.
  StepMarks(int micro_steps, int most_waits)
      : micro_steps_(micro_steps),
        timer_(2 * micro_steps + 4),
        waits_(most_waits),
        waits_before_(2 * static_cast<std::size_t>(micro_steps) + 4) {}

  int begin() const { return 0; }
  int forward(int micro) const { return 1 + 2 * micro; }
  int backward(int micro) const { return 2 + 2 * micro; }
  int reduced() const { return 2 + 2 * micro_steps_; }
  int end() const { return 3 + 2 * micro_steps_; }

  void mark(const kernels::Device& exec, int mark) {
    timer_.mark(exec, mark);
    waits_before_[static_cast<std::size_t>(mark)] = waits_.count();
  }
  parallel::WaitTimes& waits() { return waits_; }
  PhaseTimes phases() const;

 private:
  double waited_s(int from, int to) const { return waits_.seconds(waits_before_[from], waits_before_[to]); }
  double worked_s(int from, int to) const { return timer_.seconds(from, to) - waited_s(from, to); }

  int micro_steps_;
  kernels::StreamTimer timer_;
  parallel::WaitTimes waits_;
  std::vector<int> waits_before_;  // [marks]
};

class Pipeline {
 public:
  static constexpr int kMaxStarted = 2;  // most steps started and not collected

  /// `most_waits`: for transfers, in a step.
  Pipeline(const kernels::Device& exec, parallel::World& world, int micro_steps, int most_waits, bool records_graphs);

  /// The slot of the next step to start. The host may overwrite what it wrote for the slot's previous step.
  /// Throws  std::logic_error if kMaxStarted steps are started and not collected.
  int next_slot() const;

  /// Makes the launches of a step, in order. To be recordable, it must not wait, query the device or allocate.
  using Enqueue = std::function<void(StepMarks&)>;

  /// Times the next step from here, if no other is in progress.
  void begin();
  /// Runs `enqueue` in the next slot, or replays the slot's graph. `launch_by_launch`: no graph, so that tools see
  /// every kernel. `enqueue` must make the same launches in every call.
  void start(bool launch_by_launch, const Enqueue& enqueue);

  struct Ended {
    int slot;
    bool was_by_launch;
    bool was_cold;  // the very first step; with graphs also one that ran before its graph or recorded it
    PhaseTimes phases;
    /// From the end of the previous step, if that was not yet collected when this one was started; else from begin().
    double step_s;
  };
  /// Waits for the oldest step that was not collected.
  /// Throws  Failure(Exit::hang) if another rank is lost.
  Ended collect();

  int started() const { return static_cast<int>(started_ - collected_); }  // and not collected
  void forget_graphs();                                                    // they keep alive what they launch

 private:
  struct Slot {
    Slot(int micro_steps, int most_waits) : marks(micro_steps, most_waits) {}
    StepMarks marks;
    StepGraph graph;
    bool has_run = false, is_by_launch = true, is_cold = true;
    bool follows = false;  // was started before the previous step was collected
  };
  /// Steps with marks in times_: those in flight, and the one before them.
  static constexpr int kTimed = kMaxStarted + 1;
  static int start_of(std::int64_t step) { return static_cast<int>(step % kTimed); }
  static int end_of(std::int64_t step) { return kTimed + start_of(step); }
  void wait_for_end_of(std::int64_t step) const;

  const kernels::Device exec_;
  parallel::World& world_;
  const bool records_graphs_;
  std::vector<Slot> slots_;  // used in turn
  kernels::StreamTimer times_{2 * kTimed};
  std::int64_t started_ = 0, collected_ = 0;
};

}  // namespace tessera::train
