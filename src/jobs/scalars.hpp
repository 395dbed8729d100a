/// From the dtype of a deck to the type of the code, for jobs that only read.
#pragma once

#include "kernels/core/scalar.hpp"

namespace tessera::jobs {

/// Calls work.template operator()<Scalar>() with the storage type of a dtype of the deck.
template <class Work>
void with_scalar(Dtype dtype, const Work& work) {
  switch (dtype) {
    case Dtype::bf16: return work.template operator()<bfloat16>();
    case Dtype::fp16: return work.template operator()<float16>();
    default: return work.template operator()<float>();
  }
}

}  // namespace tessera::jobs
