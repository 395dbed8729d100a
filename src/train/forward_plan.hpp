/// The memory of forward passes alone (forward.hpp): weights and the activations of inference. Arithmetic only.
#pragma once

#include <string>

#include "config/settings.hpp"
#include "memory/layout.hpp"
#include "train/plan.hpp"

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

}  // namespace tessera::train
