/// Forward passes alone: the model with its weights and the activations of inference, without gradients, optimizer or
/// anything that is kept for a backward pass.
///
/// Every rank has a whole copy of the weights, and nothing crosses the network. The loss of a window has the bits that
/// Trainer::validate gives it.
#pragma once

#include <cstdint>
#include <memory>

#include "config/settings.hpp"
#include "memory/arena.hpp"
#include "train/forward_plan.hpp"
#include "train/trainer.hpp"

namespace tessera::train {

class Forward final : public Validator {
 public:
  /// Allocates the plan's memory on this rank; keeps references to the arguments. The weights are those that `seed`
  /// gives. Not collective.
  Forward(const ForwardPlan& plan, const config::Settings& settings, const parallel::World& world, std::uint64_t seed);
  ~Forward() override;

  ValidationSum validate(const data::Sampler& sampler, std::int64_t windows) override;

 private:
  class Model;
  template <class Scalar>
  class ModelOf;

  const ForwardPlan& plan_;
  const parallel::World& world_;
  const kernels::Device exec_{};
  const memory::Arena<kernels::Device> arena_;
  std::unique_ptr<Model> model_;
};

}  // namespace tessera::train
