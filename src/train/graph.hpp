/// A sequence of launches, recorded once and replayed as one: a CUDA graph.
///
/// It contains the launches that `enqueue` makes on the execution instance and on every stream that it forks to and
/// joins again (communication), with their arguments at that time.
///
/// Limits  record only what has run before: first launches initialise libraries, which cannot be recorded.
/// Throws  std::runtime_error with CUDA's message if something cannot be recorded; std::logic_error on execution
///         spaces without graphs (such decks are rejected earlier).
#pragma once

#include <functional>
#include <memory>

#include "kernels/core/tensor.hpp"

namespace tessera::train {

class StepGraph {
 public:
  StepGraph();
  ~StepGraph();
  StepGraph(StepGraph&&) noexcept;
  StepGraph& operator=(StepGraph&&) noexcept;

  bool is_recorded() const;
  /// Records what `enqueue` launches, without running it.
  void record(const kernels::Device& exec, const std::function<void()>& enqueue);
  /// Enqueues the recorded launches.
  void launch(const kernels::Device& exec) const;

 private:
  struct Recorded;
  std::unique_ptr<Recorded> recorded_;
};

}  // namespace tessera::train
