/// What tests of optimizers share: the arrays of a run with a rule of kernels/weight_update.hpp, and its steps.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/weight_update.hpp"
#include "reference/adamw.hpp"
#include "support/buffer.hpp"
#include "support/instance.hpp"
#include "support/random.hpp"

namespace tessera::test {

using UpdateConfig = reference::AdamwConfig;  // rules without eps ignore it
inline constexpr UpdateConfig kUpdateConfig{
    .learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};

/// A span that begins at `first` of the weights, the gradients and the state alike.
inline kernels::UpdateSpan at(std::int64_t first, std::int64_t count, bool decay) {
  return {first, first, first, count, decay, first};
}

inline kernels::UpdateScalars scalars_at(int step, double grad_scale = 1, int skip = 0,
                                         const UpdateConfig& config = kUpdateConfig) {
  return {.learning_rate = config.learning_rate,
          .bias1 = 1 - std::pow(config.beta1, step),
          .bias2 = 1 - std::pow(config.beta2, step),
          .grad_scale = grad_scale,
          .skip = skip};
}

/// Parameters, moments and working copy of one test, and the update that a step applies to them.
template <class Rule, class Scalar, class Grad = Accum<Scalar>>
struct UpdateRun {
  using Kernel = kernels::WeightUpdate<Rule, Device, Scalar, Grad>;
  using Real = Accum<Scalar>;
  using Word = kernels::MasterWord<Scalar>;
  static constexpr bool kHasHalves = kernels::MasterWeights<Device, Scalar>::kAreHalves;
  Buffer<kernels::UpdateBlock> blocks;
  Buffer<Word> master;
  Buffer<Grad> grad;
  std::vector<Buffer<Real>> moments;
  Buffer<Scalar> param;

  UpdateRun(const std::vector<kernels::UpdateSpan>& spans, std::size_t n)
      : blocks(kernels::make_update_blocks(spans)),
        master(initial_master(n)),
        grad(uniform_as<Grad>(n, 2)),
        moments(zeros(n)),
        param(kHasHalves ? Buffer<Scalar>(upper_halves(n)) : Buffer<Scalar>::unwritten(n)) {}

  /// The weights that the optimizer sees.
  std::vector<double> weights() const {
    if constexpr (kHasHalves) {
      const auto upper = param.elements();
      const auto lower = master.elements();
      std::vector<double> joined(upper.size());
      for (std::size_t i = 0; i < joined.size(); ++i) joined[i] = kernels::join(upper[i], lower[i]);
      return joined;
    } else {
      return master.values();
    }
  }

  Kernel kernel(const Buffer<kernels::UpdateScalars>& scalars, const UpdateConfig& config = kUpdateConfig) const {
    Kernel update{.blocks = blocks.vector(),
                  .master = master.vector(),
                  .param = param.vector(),
                  .grad = grad.vector(),
                  .moments = {},
                  .scalars = scalars.value(),
                  .keys = {config.beta1, config.beta2, Real(config.eps), Real(config.weight_decay)}};
    for (int k = 0; k < Kernel::kMoments; ++k) update.moments[k] = moments[k].vector();
    return update;
  }
  void step(const kernels::UpdateScalars& now, const UpdateConfig& config = kUpdateConfig) const {
    kernel(Buffer<kernels::UpdateScalars>(std::vector<kernels::UpdateScalars>{now}), config).launch(instance());
  }

 private:
  static std::vector<Buffer<Real>> zeros(std::size_t n) {
    std::vector<Buffer<Real>> arrays;  // each its own: copies share their memory
    for (int k = 0; k < Kernel::kMoments; ++k) arrays.push_back(Buffer<Real>::zeros(n));
    return arrays;
  }
  static std::vector<Scalar> upper_halves(std::size_t n) {
    std::vector<Scalar> halves;
    if constexpr (kHasHalves) {
      for (const double weight : uniform_as<float>(n, 1)) {
        halves.push_back(kernels::cut(static_cast<float>(weight)).upper);
      }
    }
    return halves;
  }
  static Buffer<Word> initial_master(std::size_t n) {
    if constexpr (kHasHalves) {
      std::vector<Word> halves;
      for (const double weight : uniform_as<float>(n, 1)) {
        halves.push_back(kernels::cut(static_cast<float>(weight)).lower);
      }
      return Buffer<Word>(halves);
    } else {
      return Buffer<Word>(uniform_as<Real>(n, 1));
    }
  }
};

}  // namespace tessera::test
