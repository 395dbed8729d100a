/// A sequence of launches, captured once and replayed as one: a CUDA graph.
///
/// It holds the launches of `enqueue`, with their arguments, on the execution instance and on every stream that
/// forks from it and joins it again (communication).
///
/// Chained launches: if every launch is a kernel that waits for its predecessor (kernels/cuda/chain.hpp), in one line,
/// the graph's edges can be programmatic. Each kernel then starts once all teams of its predecessor have started and
/// there is room. The first starts when everything enqueued before the graph has ended.
///
/// Limits  record only what has already run once: first launches initialise libraries, which cannot be captured.
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
  enum class Links { ordinary, chained };

  bool is_recorded() const { return recorded_ != nullptr; }
  /// Records what `enqueue` launches, without running it. Links::chained requires that every kernel waits for its
  /// predecessor; one that does not would read unfinished data. Where chaining is impossible (a GPU before sm_90, work
  /// other than a line of kernels), links stay ordinary.
  void record(const kernels::Device& exec, const std::function<void()>& enqueue, Links links = Links::ordinary);
  /// Why a graph recorded with Links::chained is not chained; empty if it is, or if chaining was not requested.
  const std::string& not_chained_because() const { return not_chained_because_; }
  /// Enqueues the recorded launches.
  void launch(const kernels::Device& exec) const;
  /// Enqueues the same launches again and again: the first time by calling `enqueue`, the second by recording it and
  /// replaying that, then by replaying alone. True in the call that recorded.
  bool run(const kernels::Device& exec, const std::function<void()>& enqueue, Links links = Links::ordinary);

 private:
  struct Recorded;
  std::shared_ptr<const Recorded> recorded_;
  std::string not_chained_because_;
  bool has_run_ = false;
};

}  // namespace tessera::train
