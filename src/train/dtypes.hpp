/// From the dtypes of a plan to the types of the code: the one place where a training step chooses its templates.
#pragma once

#include <type_traits>

#include "kernels/core/scalar.hpp"
#include "memory/layout.hpp"
#include "train/arrays.hpp"

namespace tessera::train {

/// Returns work.template operator()<Scalar, Grad>(): the types of weights and activations, and of gradients.
template <class Work>
auto with_types(Dtype dtype, bool has_narrow_gradients, const Work& work) {
  switch (dtype) {
    case Dtype::fp64: return work.template operator()<double, double>();
    case Dtype::fp16: return work.template operator()<float16, float>();
    case Dtype::bf16:
      if (has_narrow_gradients) return work.template operator()<bfloat16, bfloat16>();
      return work.template operator()<bfloat16, float>();
    case Dtype::fp32:
    case Dtype::int32: break;
  }
  return work.template operator()<float, float>();
}

/// Returns work.template operator()<Scalar, Grad, Moment, kHasMaster>(), types as in kernels/weight_update.hpp.
template <class Work>
auto with_update_types(const Basis& basis, const memory::Layout& layout, const Work& work) {
  return with_types(basis.options.dtype, basis.options.has_narrow_gradients, [&]<class Scalar, class Grad>() {
    const auto with_master = [&]<class Moment>() {
      if constexpr (std::is_same_v<Scalar, bfloat16>) {
        if (basis.arrays.master == memory::kAbsent) return work.template operator()<Scalar, Grad, Moment, false>();
      }
      return work.template operator()<Scalar, Grad, Moment, true>();
    };
    if constexpr (!std::is_same_v<Scalar, double>) {
      if (layout[basis.arrays.moments.front().tensor].dtype == Dtype::bf16) {
        return with_master.template operator()<bfloat16>();
      }
    }
    return with_master.template operator()<Accum<Scalar>>();
  });
}

}  // namespace tessera::train
