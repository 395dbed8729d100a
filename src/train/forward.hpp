/// Forward passes alone: weights and inference activations, but no gradients, optimizer or saved activations.
///
/// Every rank holds all weights; nothing crosses the network. A window's loss is bitwise that of Trainer::validate.
/// With train.graph, passes of whole micro-batches are captured once and replayed.
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
  memory::Layout layout = {};
  model::ActivationTensors activations = {};
  memory::TensorId params = memory::kAbsent;  // [parameters] dtype of the activations
  memory::TensorId loss = memory::kAbsent;    // one number, fp64
  HostTensors tokens = {};                    // [micro-batch,T], without scalars
};

/// Micro-batches are those of a step: train.batch_size and train.micro_batch_size on `ranks` ranks. Nothing is summed,
/// so of the collectives' buffers only CollectivesBytes::receive counts.
ForwardPlan plan_forward(const config::Settings& settings, Dtype dtype, int ranks, const Machine& machine = {});

/// The model, the micro-batch and the layout's table.
std::string describe(const ForwardPlan& plan);

/// Allocates the plan's memory on this rank and initialises the weights from `seed`. Keeps references to plan and
/// world. Not collective.
std::unique_ptr<Validator> make_forward(const ForwardPlan& plan, const config::Settings& settings,
                                        const parallel::World& world, std::uint64_t seed);

}  // namespace tessera::train
