/// How the ranks of a plan exchange weights and gradients: a parallel::Strategy on the memory that the plan declares.
#pragma once

#include <memory>

#include "config/settings.hpp"
#include "kernels/core/side_stream.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "parallel/strategies/replicated.hpp"
#include "parallel/world.hpp"
#include "train/optimizer_step.hpp"
#include "train/plan.hpp"

namespace tessera::train {

/// Label in /comm of run.h5 of the sum of squared gradient norms.
inline constexpr char kNormLabel[] = "norm_squared";

/// parallel.gradient_sync and parallel.bucket_mbyte in the strategy's terms.
parallel::GradientOrder order_of(const config::Parallel& keys);

/// Stream priority of a step's kernels: raised above transfers, so that those fill idle SMs, but not with ZeRO-3, where
/// that would delay the copies that the next unit waits for (parallel/README.md).
kernels::StreamPriority priority_of(const config::Parallel& keys, const parallel::Collectives& collectives);

/// The strategy sends this rank's part of a unit only after its deferred update. Keeps a reference to `optimizer`. Not
/// collective; the strategy's connect() is.
std::unique_ptr<parallel::Strategy> make_exchange(const Plan& plan, const config::Settings& settings,
                                                  parallel::World& world, const kernels::Device& exec,
                                                  const memory::Arena& arena, OptimizerStep& optimizer);

}  // namespace tessera::train
