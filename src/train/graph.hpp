/// A sequence of launches, recorded once and replayed as one: a CUDA graph.
///
/// It contains the launches that `enqueue` makes on the execution instance and on every stream that it forks to and
/// joins again (communication), with their arguments at that time.
///
/// Chained launches: where every launch is a kernel that waits for its predecessor (kernels/cuda/chain.hpp), one after
/// the other, the graph's edges can be programmatic. A kernel then starts as soon as all teams of the one before have
/// started and leave room. The first one starts when all that was enqueued before the graph has ended.
///
/// Limits  record only what has run before: first launches initialise libraries, which cannot be recorded.
/// Throws  std::runtime_error with CUDA's message if something cannot be recorded; std::logic_error on execution
///         spaces without graphs (such decks are rejected earlier).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/core/tensor.hpp"

namespace tessera::train {

class StepGraph {
 public:
  StepGraph();
  ~StepGraph();
  StepGraph(StepGraph&&) noexcept;
  StepGraph& operator=(StepGraph&&) noexcept;

  enum class Links { ordinary, chained };

  bool is_recorded() const;
  /// Records what `enqueue` launches, without running it. Links::chained is for kernels that wait for their
  /// predecessors, all of them: others would read what is not yet written. Where chaining is not possible (a GPU before
  /// sm_90, other work than kernels in one line), the links stay ordinary.
  void record(const kernels::Device& exec, const std::function<void()>& enqueue, Links links = Links::ordinary);
  /// Why a graph recorded with Links::chained is not chained; empty if it is, or was not asked to be.
  const std::string& not_chained_because() const { return not_chained_because_; }
  /// Enqueues the recorded launches.
  void launch(const kernels::Device& exec) const;

 private:
  struct Recorded;
  std::unique_ptr<Recorded> recorded_;
  std::string not_chained_because_;
};

}  // namespace tessera::train
