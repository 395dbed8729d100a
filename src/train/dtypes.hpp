/// From the dtypes of a plan to the types of the code: the one place where a training step chooses its templates.
#pragma once

#include <type_traits>

#include "kernels/core/scalar.hpp"
#include "memory/layout.hpp"
#include "train/arrays.hpp"

namespace tessera::train {

// Instantiate(Scalar, Moment): Scalar for weights and activations.
// Instantiate(Scalar, Grad, Moment, kHasMaster): the combinations that with_types() chooses among.
// clang-format off
#define TESSERA_FOR_EACH_MOMENT(Instantiate) \
  Instantiate(double, double) \
  Instantiate(float, float) Instantiate(float, bfloat16) \
  Instantiate(float16, float) Instantiate(float16, bfloat16) \
  Instantiate(bfloat16, float) Instantiate(bfloat16, bfloat16)
#define TESSERA_FOR_EACH_UPDATE(Instantiate) \
  Instantiate(double, double, double, true) \
  Instantiate(float, float, float, true) Instantiate(float, float, bfloat16, true) \
  Instantiate(float16, float, float, true) Instantiate(float16, float, bfloat16, true) \
  Instantiate(bfloat16, float, float, true) Instantiate(bfloat16, float, float, false) \
  Instantiate(bfloat16, float, bfloat16, true) Instantiate(bfloat16, float, bfloat16, false) \
  Instantiate(bfloat16, bfloat16, float, true) Instantiate(bfloat16, bfloat16, float, false) \
  Instantiate(bfloat16, bfloat16, bfloat16, true) Instantiate(bfloat16, bfloat16, bfloat16, false)
// clang-format on

/// Returns work.template operator()<Scalar, Grad, Moment, kHasMaster>().
template <class Work>
auto with_types(const Basis& basis, const memory::Layout& layout, const Work& work) {
  const auto with_master = [&]<class Scalar, class Grad, class Moment>() {
    if constexpr (std::is_same_v<Scalar, bfloat16>) {
      if (basis.arrays.master == memory::kAbsent) return work.template operator()<Scalar, Grad, Moment, false>();
    }
    return work.template operator()<Scalar, Grad, Moment, true>();
  };
  const auto with_moments = [&]<class Scalar, class Grad>() {
    if constexpr (!std::is_same_v<Scalar, double>) {
      if (layout[basis.arrays.moments.front().tensor].dtype == Dtype::bf16) {
        return with_master.template operator()<Scalar, Grad, bfloat16>();
      }
    }
    return with_master.template operator()<Scalar, Grad, Accum<Scalar>>();
  };
  switch (basis.options.dtype) {
    case Dtype::fp64: return with_moments.template operator()<double, double>();
    case Dtype::fp16: return with_moments.template operator()<float16, float>();
    case Dtype::bf16:
      if (basis.options.has_narrow_gradients) return with_moments.template operator()<bfloat16, bfloat16>();
      return with_moments.template operator()<bfloat16, float>();
    case Dtype::fp32:
    case Dtype::int32: break;
  }
  return with_moments.template operator()<float, float>();
}

}  // namespace tessera::train
