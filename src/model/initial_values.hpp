/// Initial weights: a pure function of seed, label and index, evaluated on the device that holds the weights.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>

#include "kernels/core/compat.hpp"
#include "kernels/core/random.hpp"
#include "kernels/master_weights.hpp"
#include "model/params.hpp"

namespace tessera::model {

/// Element `index` of a tensor, drawn from a normal truncated at 3 standard deviations; the same on any number of
/// ranks.
///
/// Box-Muller on counters (index, attempt); an attempt beyond 3 standard deviations (0.3 %) is drawn again. A GPU's
/// logarithm and cosine differ from a CPU's in the last bit, and so do a few weights in a million.
class InitialValues {
 public:
  InitialValues(std::uint64_t seed, const Param& param);

  KOKKOS_INLINE_FUNCTION double operator()(std::int64_t index) const {
    if (std_ == 0) return 1.0;
    for (std::uint64_t attempt = 0;; ++attempt) {
      const std::uint64_t counter = mix(key_ ^ static_cast<std::uint64_t>(index)) + (attempt << 1);
      const double radius = kernels::sqrt(-2.0 * kernels::log(uniform(mix(counter))));
      const double normal = radius * kernels::cos(2.0 * 3.14159265358979323846 * uniform(mix(counter + 1)));
      if (normal >= -3.0 && normal <= 3.0) return normal * std_;
    }
  }

 private:
  std::uint64_t key_;  // of seed and label
  double std_;
};

/// Writes the initial values of elements from .. from + n - 1 of a tensor to `weights`.
template <class Scalar>
struct InitializeParam {
  kernels::MasterWeights<kernels::Device, Scalar> weights;  // [n] out
  std::int64_t from;
  InitialValues initial;

  void launch(const kernels::Device& exec) const;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    weights.set(i, static_cast<Accum<Scalar>>(initial(from + i)));
  }
};

/// Writes the initial values of all tensors to `weights` [table.flat_count()], which a model reads and nothing updates.
/// Memory  4 MiB for fp16, while it runs.
/// Async   fences.
template <class Scalar>
void initialize_weights(const kernels::Device& exec, const ParamTable& table, std::uint64_t seed, Scalar* weights);

}  // namespace tessera::model
