/// Shared by the jobs that generate: steps that are replayed as a graph.
#pragma once

#include <functional>

#include "config/settings.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::jobs {

/// For GenerateOptions::run_step: runs the first step launch by launch, captures the second as a graph, then replays
/// it. With generate.chained its launches are chained (train/graph.hpp) if the decoder's kernels wait; if that is
/// impossible, a line on stderr says why. Use for one call of generate() whose hooks launch nothing. Empty without
/// generate.graph.
std::function<void(const std::function<void()>&, bool)> step_runner(const kernels::Device& exec,
                                                                    const config::Generate& settings);

}  // namespace tessera::jobs
