/// AmpereForward for float (forward.hpp has the scheme): every product by TF32 products on tensor cores.
///
/// Numerics   products = 3: each factor is big + rest, both TF32, and rest*rest is left out: 2^-22 of a product. Small
///            products are summed apart and weighted values tile by tile, since tensor cores truncate their sums.
///            products = 1: factors keep 10 fraction bits (cuda/mma_sync.hpp).
/// Error      with u = (6 + D/8) eps<float> for three products, 1.28 * 2^-10 + D/8 eps<float> for one, and S the
///            largest scale |q_i| |k_j|: out u (1 + S) + 8 eps<float> for v up to 1; lse u (1 + S) + 32 eps<float>, and
///            32 eps<float> of the largest entry.
/// Memory     scratch: the tile of queries and tiles of k and v; no workspace.
/// Cost       times `products`; D is rounded up to a compiled width.
/// Edges      an infinite factor gives NaN.
/// Throws     std::invalid_argument as AmpereForward does, or when `products` is neither 1 nor 3.
#pragma once

#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

struct AmpereFloatForward {
  using Exec = Kokkos::Cuda;

  ForwardTask<Exec, float> task;
  int products;  // TF32 products that make a product of floats: 3, or 1 where precision.compute is "tf32"

  /// Head widths: the multiples of 8 up to 256.
  static bool supports(int D);

  void launch(const Exec& exec) const;
};

}  // namespace tessera::kernels
