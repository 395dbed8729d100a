/// Shared by the jobs that generate: steps that are replayed as a graph.
#pragma once

#include <functional>
#include <memory>

#include "config/settings.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::jobs {

/// For GenerateOptions::run_step: the first step runs launch by launch, the second is recorded as a graph, and from
/// then on the graph is replayed. With generate.chained its launches are chained (train/graph.hpp) if the decoder's
/// kernels wait; where that is not possible, a line on stderr says why. For one call of generate(), with hooks that
/// launch nothing; keep the result no longer than that. Empty without generate.graph.
std::function<void(const std::function<void()>&, bool)> step_runner(const kernels::Device& exec,
                                                                    const config::Generate& settings);

}  // namespace tessera::jobs
