/// Forward passes alone: the model with its weights and the activations of inference, without gradients, optimizer or
/// anything that is kept for a backward pass.
///
/// Every rank has a whole copy of the weights, and nothing crosses the network. The loss of a window has the bits that
/// Trainer::validate gives it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "config/settings.hpp"
#include "memory/layout.hpp"
#include "train/plan.hpp"
#include "train/trainer.hpp"

namespace tessera::train {

/// What each rank allocates.
struct ForwardPlan {
  model::Shape shape;
  model::ParamTable table;
  BatchPlan batch;
  model::ActivationOptions options;
  memory::Layout layout;
  model::ActivationTensors activations;
  memory::TensorId params;  // [parameters] dtype of the activations
  memory::TensorId loss;    // one number, fp64
  HostTensors tokens;       // [micro-batch,T], without scalars
};

/// Micro-batches are those of a step: train.batch_size and train.micro_batch_size on `ranks` ranks.
/// Of the collectives only what ranks hold from the beginning is counted (CollectivesBytes::receive): nothing is
/// summed.
ForwardPlan plan_forward(const config::Settings& settings, Dtype dtype, int ranks, const Machine& machine = {});

/// The model, the micro-batch and the layout's table.
std::string describe(const ForwardPlan& plan);

/// Allocates the plan's memory on this rank; keeps references to plan and world. The weights are those that `seed`
/// gives. Not collective.
std::unique_ptr<Validator> make_forward(const ForwardPlan& plan, const config::Settings& settings,
                                        const parallel::World& world, std::uint64_t seed);

}  // namespace tessera::train
