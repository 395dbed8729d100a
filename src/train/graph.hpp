/// A sequence of launches, recorded once and replayed as one: a CUDA graph.
///
/// What is recorded are the launches that `enqueue` makes on the execution instance, and on every stream that it forks
/// to and joins again (communication); their arguments are frozen. Record only what has run before: first launches set
/// libraries up, which cannot be recorded.
///
/// Throws  std::runtime_error with the device's words when something cannot be recorded; std::logic_error on execution
///         spaces that have no graphs (the deck is refused before).
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
  /// Records what `enqueue` launches; nothing of it runs.
  void record(const kernels::Device& exec, const std::function<void()>& enqueue);
  /// Enqueues all of it.
  void launch(const kernels::Device& exec) const;

 private:
  struct Recorded;
  std::unique_ptr<Recorded> recorded_;
};

}  // namespace tessera::train
