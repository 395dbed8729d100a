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

#include <optional>

#include "parallel/collectives/collective.hpp"
#include "parallel/strategies/ownership.hpp"
#include "parallel/strategies/wait_times.hpp"

namespace tessera::parallel {

/// How ranks share the norm of all gradients: memory of the device, or empty.
struct NormSpans {
  Span total;    // 1 fp64: what sum() sums
  Span squares;  // fp64: room for the partial sums of squares that transfers can leave
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  /// Collective, once, before the first step. Making a strategy is collective only where it says so.
  virtual void connect() = 0;
  virtual bool is_connected() const = 0;

  /// `waits` times the step's waits for transfers, at most most_waits(), until the next one begins; null: nothing does.
  virtual void begin_step(WaitTimes* waits) = 0;
  virtual int most_waits() const = 0;

  /// A micro-step; `completes`: the last of its step, after which the gradients are complete.
  virtual void begin(bool completes) = 0;

  /// The weights of a unit are about to be read by what is enqueued next; after close() they are no longer read.
  /// Several passes may have a unit open at once; the last close counts.
  virtual void open(int unit) = 0;
  virtual void close(int unit) = 0;

  /// The gradients of a unit are about to be written.
  virtual void begin_gradients(int unit) = 0;
  /// The last launch of one parameter's gradient in this micro-step is enqueued. Parameters come in descending order.
  virtual void gradient_enqueued(int param) = 0;

  /// Progresses transfers: MPI does nothing by itself.
  virtual void progress() = 0;

  virtual void finish() = 0;

  /// How many partial sums of squares the step's transfers have left, after finish(), in the span given for them: their
  /// total over all ranks is the square norm of all gradients. None: nobody has squared the sums. The same in every
  /// step, and none on every rank or on no rank; call after connect().
  std::optional<std::int64_t> squares() const { return squares_; }

  /// Sums the norm's total over all ranks, in place; nothing where each has it.
  virtual void sum() = 0;

  /// Passes outside of steps follow; they open each unit once, in order, and write no gradients.
  virtual void begin_inference() = 0;

  /// Call after the work of the last step has completed and before the next one: if it was launched kernel by kernel,
  /// reports its transfers as events (over MPI already done) and returns the seconds in which the rank only waited for
  /// them.
  virtual double collect() = 0;

 protected:
  std::optional<std::int64_t> squares_;
};

}  // namespace tessera::parallel
