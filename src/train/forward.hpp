/// Forward passes alone: the model with its weights and the activations of inference, without gradients, optimizer or
/// anything that is kept for a backward pass.
///
/// Every rank has a whole copy of the weights, and nothing crosses the network. The loss of a window has the bits that
/// Trainer::validate gives it.
#pragma once

#include <cstdint>
#include <memory>

#include "config/settings.hpp"
#include "train/forward_plan.hpp"
#include "train/trainer.hpp"

namespace tessera::train {

/// Allocates the plan's memory on this rank; keeps references to plan and world. The weights are those that `seed`
/// gives. Not collective.
std::unique_ptr<Validator> make_forward(const ForwardPlan& plan, const config::Settings& settings,
                                        const parallel::World& world, std::uint64_t seed);

}  // namespace tessera::train
