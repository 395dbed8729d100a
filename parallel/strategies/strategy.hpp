/// How ranks share a training step: what crosses the network, and when. A strategy moves labelled spans; it knows
/// neither model nor optimizer. The model's hooks drive it; Ownership says which part a rank updates.
///
///   begin_step
///     begin                                       per micro-step
///       open, close                               per unit and pass: its weights may be read in between
///       begin_gradients, gradient_enqueued           per unit, per parameter
///       progress                                  from time to time
///   finish                                        gradients of owned elements are sums over all ranks
///   sum                                           the norm over all ranks, unless each has all gradients
///
/// Every rank makes the same calls in the same order. Nothing allocates after connect(); if the collectives are
/// asynchronous, nothing waits on the host, and begin_step() to sum() may be captured in a graph.
/// Gradients are summed, not averaged: a caller that weights by tokens scales first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/core/events.hpp"
#include "kernels/core/stream_timer.hpp"
#include "parallel/collectives/collective.hpp"

namespace tessera::parallel {

/// Device memory for the norm of all gradients; each span may be empty.
struct NormSpans {
  Span total;    // 1 fp64: what sum() sums
  Span squares;  // fp64: room for the partial sums of squares that transfers can leave
};

/// Times a step's waits for transfers by two marks around each, on the waiting instance, so that they may be captured
/// with it; valid once the step is done. If join() blocks the host, the instance idles between the marks.
class WaitTimes {
 public:
  /// For steps of at most `most` waits. Allocates all marks.
  explicit WaitTimes(int most) : timer_(2 * most) {}

  void begin_step() { count_ = 0; }
  int count() const { return count_; }  // of this step, or of its latest replay, so far

  /// Joins `transfer` on `exec` and counts that as a wait.
  void join(Transfer& transfer, const kernels::Device& exec) {
    timer_.mark(exec, 2 * count_);
    transfer.join(exec);
    timer_.mark(exec, 2 * count_ + 1);
    ++count_;
  }

  /// Seconds of waits first .. last - 1. The step must be done, and the next one not started.
  double seconds(int first, int last) const {
    double sum_s = 0;
    for (int wait = first; wait < last; ++wait) sum_s += timer_.seconds(2 * wait, 2 * wait + 1);
    return sum_s;
  }

 private:
  kernels::StreamTimer timer_;
  int count_ = 0;
};

/// The same, untimed if `waits` is null.
inline void join(Transfer& transfer, const kernels::Device& exec, WaitTimes* waits) {
  waits != nullptr ? waits->join(transfer, exec) : transfer.join(exec);
}

/// A transfer as the trace names it.
struct Move {
  std::unique_ptr<Transfer> transfer;
  std::string operation;  // "all_gather[nccl]"
  std::string label;      // of what is moved: "grad.bucket.2"
  std::int64_t bytes = 0;

  bool exists() const { return !operation.empty(); }

  void start(const kernels::Device& after) {
    events::report(events::CommunicationStart{operation, label, bytes, events::now_s()});
    transfer->start(after);
  }
  /// Reports its latest run. Returns the seconds of it in which the rank, from `waiting_from_s` on, only waited.
  double report(const Transfer::Times& times, double waiting_from_s) const {
    const double exposed_s = std::max(0.0, times.end_s - std::max(times.start_s, waiting_from_s));
    events::report(events::Communication{operation, label, bytes, times.start_s, times.end_s, exposed_s});
    return exposed_s;
  }
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  /// Collective, once, before the first step. Making a strategy is collective only where it says so.
  virtual void connect() = 0;
  bool is_connected() const { return is_connected_; }

  /// `waits` times the step's waits for transfers, at most most_waits(), until the next step begins; null: untimed.
  virtual void begin_step(WaitTimes* waits) = 0;
  virtual int most_waits() const = 0;

  /// A micro-step; `completes`: the last of its step, after which the gradients are complete.
  virtual void begin(bool completes) = 0;

  /// Call before enqueueing work that reads a unit's weights, and close() after it. Several passes may have a unit open
  /// at once; the last close counts.
  virtual void open(int /*unit*/) {}
  virtual void close(int /*unit*/) {}

  /// Call before a unit's gradients are written.
  virtual void begin_gradients(int /*unit*/) {}
  /// The last launch of one parameter's gradient in this micro-step is enqueued. Parameters come in descending order.
  virtual void gradient_enqueued(int param) = 0;

  /// Advances transfers: MPI does nothing by itself.
  virtual void progress() = 0;

  virtual void finish() = 0;

  /// Number of partial sums of squares that a step's transfers have left in NormSpans::squares when finish() returns;
  /// over all ranks, they add up to the squared norm of all gradients. None, then on every rank: the transfers square
  /// nothing. The same in every step. Call after connect().
  std::optional<std::int64_t> squares() const { return squares_; }

  /// Sums the norm's total over all ranks, in place; does nothing if each rank has it.
  virtual void sum() = 0;

  /// Call before passes outside of steps, which open each unit once, in order, and write no gradients.
  virtual void begin_inference() = 0;

  /// Call between the end of a step and the next one. If the step was launched kernel by kernel, reports its transfers
  /// as events (over MPI already done) and returns the seconds in which the rank only waited for them.
  virtual double collect() = 0;

 protected:
  bool is_connected_ = false;  // connect() sets it, and
  std::optional<std::int64_t> squares_;
  WaitTimes* waits_ = nullptr;  // of the step
  double exposed_s_ = 0;        // collect() of the last step, if the host waits
};

}  // namespace tessera::parallel
