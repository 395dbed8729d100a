#include "jobs/generation.hpp"

#include "train/graph.hpp"

namespace tessera::jobs {

std::function<void(const std::function<void()>&)> step_runner(const kernels::Device& exec,
                                                              const config::Generate& settings) {
  if (!settings.graph) return {};
  struct State {
    bool has_run = false;
    train::StepGraph graph;
  };
  return [exec, state = std::make_shared<State>()](const std::function<void()>& enqueue) {
    if (!state->has_run) {
      enqueue();
      state->has_run = true;
      return;
    }
    if (!state->graph.is_recorded()) state->graph.record(exec, enqueue);
    state->graph.launch(exec);
  };
}

}  // namespace tessera::jobs
