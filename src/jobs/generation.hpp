/// Shared by the jobs that generate: steps that are replayed as a graph.
#pragma once

#include <functional>
#include <memory>

#include "config/settings.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::jobs {

/// For GenerateOptions::run_step: the first step runs launch by launch, the second is recorded as a graph, and from then
/// on the graph is replayed. For one call of generate(); keep the result no longer than that. Empty without
/// generate.graph.
std::function<void(const std::function<void()>&)> step_runner(const kernels::Device& exec,
                                                              const config::Generate& settings);

}  // namespace tessera::jobs
