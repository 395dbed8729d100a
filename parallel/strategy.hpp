/// How ranks share a training step: what crosses the network, and when. A strategy moves labelled spans; it knows
/// neither a model nor an optimizer. The model's hooks drive it, and whoever updates asks Ownership for its part.
///
///   begin_step
///     begin                                       per micro-step
///       open, close                               per unit and pass: its weights may be read in between
///       begin_gradients, gradient_ready           per unit, per parameter
///       progress                                  now and then
///   finish                                        gradients of owned elements are sums over all ranks
///   sum                                           scalars over the ranks that hold the parts of the whole
///
/// Every rank makes the same calls in the same order. Nothing allocates after connect(); where the collectives are
/// asynchronous nothing waits on the host, and begin_step() to sum() may be captured in a graph.
/// Sums, not means: a caller that weights by tokens scales first.
#pragma once

#include <memory>
#include <vector>

#include "parallel/collective.hpp"
#include "parallel/ownership.hpp"

namespace tessera::parallel {

class Strategy {
 public:
  virtual ~Strategy() = default;

  /// Collective, once, before the first step. Making a strategy is collective only where it says so.
  virtual void connect() = 0;
  virtual bool is_connected() const = 0;

  virtual void begin_step() = 0;

  /// A micro-step; `completes`: the last of its step, after which the gradients are complete.
  virtual void begin(bool completes) = 0;

  /// The weights of a unit are about to be read by what is enqueued next; close(): by nothing more. Passes may have a
  /// unit open at once; the last close counts.
  virtual void open(int unit) = 0;
  virtual void close(int unit) = 0;

  /// The gradients of a unit are about to be written.
  virtual void begin_gradients(int unit) = 0;
  /// This micro-step's gradient of one parameter is complete. Parameters come in descending order.
  virtual void gradient_ready(int param) = 0;

  /// A chance to move what is under way: MPI moves nothing by itself.
  virtual void progress() = 0;

  virtual void finish() = 0;

  /// Sums the scalars that the strategy was made with, in place, over the ranks whose parts make up the whole.
  virtual void sum() = 0;

  /// Passes outside of steps follow, which open each unit once, in order, and write no gradients.
  virtual void begin_inference() = 0;

  /// Once the work behind the last step, launched one by one, has been done, and before the next one: reports its
  /// transfers as events (over MPI already done) and returns the seconds in which the rank only waited for them.
  virtual double collect() = 0;
};

}  // namespace tessera::parallel
