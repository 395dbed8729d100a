/// From the dtypes of a plan to the types of the code: the one place where a training step chooses its templates.
#pragma once

#include "kernels/core/scalar.hpp"
#include "model/activations.hpp"

namespace tessera::train {

/// Returns work.template operator()<Scalar, Grad>(): the type of weights and activations, and that of gradients.
template <class Work>
auto with_types(const model::ActivationOptions& options, const Work& work) {
  switch (options.dtype) {
    case Dtype::fp64: return work.template operator()<double, double>();
    case Dtype::fp16: return work.template operator()<float16, float>();
    case Dtype::bf16:
      if (options.has_narrow_gradients) return work.template operator()<bfloat16, bfloat16>();
      return work.template operator()<bfloat16, float>();
    case Dtype::fp32:
    case Dtype::int32: break;
  }
  return work.template operator()<float, float>();
}

/// Returns work.template operator()<Moment>(): the type of AdamW's moments.
template <class Scalar, class Work>
auto with_moments(Dtype moments, const Work& work) {
  if constexpr (sizeof(Accum<Scalar>) == 4) {
    if (moments == Dtype::bf16) return work.template operator()<bfloat16>();
  }
  return work.template operator()<Accum<Scalar>>();
}

}  // namespace tessera::train
