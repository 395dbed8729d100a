#include "jobs/generation.hpp"

#include <fmt/format.h>

#include <cstdio>  // stderr
#include <memory>
#include <string>

#include "train/graph.hpp"

namespace tessera::jobs {

std::function<void(const std::function<void()>&, bool)> step_runner(const kernels::Device& exec,
                                                                    const config::Generate& settings) {
  if (!settings.graph) return {};
  struct State {
    bool has_run = false;
    train::StepGraph graph;
  };
  return [exec, is_chained = settings.chained, state = std::make_shared<State>()](const std::function<void()>& enqueue,
                                                                                  bool kernels_wait) {
    if (!state->has_run) {
      enqueue();
      state->has_run = true;
      return;
    }
    if (!state->graph.is_recorded()) {
      using Links = train::StepGraph::Links;
      state->graph.record(exec, enqueue, is_chained && kernels_wait ? Links::chained : Links::ordinary);
      std::string why_not = state->graph.not_chained_because();
      if (!kernels_wait) why_not = "kernels for this many sequences, or for GPUs before sm_90, do not wait";
      if (is_chained && !why_not.empty()) {
        fmt::print(stderr, "graph      the launches of a step are not chained (generate.chained): {}\n", why_not);
      }
    }
    state->graph.launch(exec);
  };
}

}  // namespace tessera::jobs
