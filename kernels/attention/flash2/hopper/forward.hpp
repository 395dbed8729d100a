/// FlashAttention forward for Hopper (sm_90a): what flash2/forward.hpp computes, on wgmma and the copy engine; the
/// contract of task.hpp.
///
/// One persistent team per SM. Its first warpgroup is the producer: one of its lanes issues the copy engine's loads of
/// q, k and v, and barriers signal their arrival. The others are consumers, 64 queries each: scores by wgmma from
/// shared memory, softmax in registers, and weights from registers straight into the second product.
///
/// D <= 160   A tile of keys is taken as two halves. While the weights of one are computed, the tensor cores compute
///            the scores of the next and the output of the previous one, so a consumer hardly waits for them. Weights
///            are relative to the largest score of the first half; a row looks for a new one only when a sum of weights
///            exceeds 2^10 (forward_rows.hpp): otherwise there is no maximum and no rescaling.
/// D > 160    Whole tiles and a running maximum. A consumer issues the scores of key tile j before the output of tile
///            j-1, and consumers take turns at the tensor cores: one's softmax overlaps another's products.
///
/// Source     Shah et al. 2024, arXiv:2407.08608 (producer and consumers, taking turns, overlap inside a warpgroup).
/// Departs    tiles of queries are counted from the end, so that with a causal mask the incomplete one is the cheapest;
///            the softmax's maximum is updated on demand; no clusters, no fp8.
/// Numerics   products of Scalar summed in float, softmax in float, weights rounded to Scalar for the second product.
/// Error      with S as in task.hpp: out eps<Scalar> + (8 + S) eps<float> for v up to 1; lse (32 + S) eps<float>,
///            relative and of the largest entry.
/// Order      fixed for given shapes: bitwise repeatable, whichever team processes a tile.
/// Memory     pad: level 0, 45 to 225 KiB by head width. Needs large scratch (kernels/cuda/large_scratch.hpp).
/// Throws     std::invalid_argument if runs_on() or accepts() is false, D is not supported, or the scale not above 0.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>

#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// Scalar is bfloat16 or float16.
template <class Scalar>
struct HopperForward {
  using Exec = Kokkos::Cuda;

  ForwardTask<Exec, Scalar> task;
  /// Counts tiles handed out. 0 before the first launch; every launch leaves it 0. Launches that share one must not
  /// run concurrently.
  Value<std::int32_t, Exec> tile_counter;

  /// Whether both this build and this device are sm_90a.
  static bool runs_on(const Exec& exec);

  /// Whether there is a kernel for this head width: 16, 32, 64, 80, 96, 128, 160, 192, 256.
  static bool supports(int D);

  /// Whether the copy engine can serve these tensors: addresses and strides of q, k, v and out are multiples of 16
  /// bytes.
  bool accepts() const;

  void launch(const Exec& exec) const;
};

}  // namespace tessera::kernels
