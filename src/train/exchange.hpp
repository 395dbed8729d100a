/// How the ranks of a plan exchange weights and gradients: a parallel::Strategy on the memory that the plan declares.
#pragma once

#include <memory>

#include "config/settings.hpp"
#include "kernels/core/side_stream.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "parallel/strategies/strategy.hpp"
#include "parallel/world.hpp"
#include "train/optimizer_step.hpp"
#include "train/plan.hpp"

namespace tessera::train {

/// Of the sum of the gradients' squared norms, in /comm of run.h5.
inline constexpr char kNormLabel[] = "norm_squared";

/// parallel.gradient_sync and parallel.bucket_mbyte in the strategy's terms.
parallel::GradientOrder order_of(const config::Parallel& keys);

/// Of a step's kernels: raised above those of transfers, which then fill what the step leaves idle, where that is
/// faster: with everything on each rank, if the collectives can yield; with ZeRO-1 and 2; and with offload. With ZeRO-3
/// the copies of own parts, for which the next unit waits, would wait too long. Why: parallel/README.md.
kernels::StreamPriority priority_of(const config::Parallel& keys, const parallel::Collectives& collectives);

/// Waits for the deferred update of a unit's own part before it sends it. Keeps a reference to `optimizer`. Not
/// collective; the strategy's connect() is.
std::unique_ptr<parallel::Strategy> make_exchange(const Plan& plan, const config::Settings& settings,
                                                  parallel::World& world, const kernels::Device& exec,
                                                  const memory::Arena<kernels::Device>& arena,
                                                  OptimizerStep& optimizer);

}  // namespace tessera::train
