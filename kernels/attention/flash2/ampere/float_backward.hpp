/// AmpereBackward for float (backward.hpp has the formulas): every product by TF32 products on tensor cores.
///
/// Two kernels: the rows (delta, lse in powers of two, d_q = 0); the keys, where one team owns a tile of keys, keeps
/// its d_k and d_v in registers, walks the queries and adds its share of d_q to d_q itself, in a fixed order of the
/// tiles, enforced by counters, or in order of arrival.
///
/// Numerics   as AmpereFloatForward; sums and exponentials in float.
/// Error      u (1 + S) of the largest entry of each gradient and of 1, for entries of v and d_out up to 1; u and S as
///            in AmpereFloatForward.
/// Order      DqOrder::fixed: bitwise repeatable; relies on teams that start in the order of their ranks
///            (kernels/cuda/ticket.hpp). DqOrder::any: d_k and d_v are, d_q is not (atomic additions).
/// Memory     scratch: tiles of k, v, q, d_out and ds; workspace: workspace_bytes(), a little more than 8 bytes per
///            query.
/// Cost       times `products`, and 1.4 for D > 128, where scores are computed twice; D rounded up to a compiled width.
/// Throws     std::invalid_argument as AmpereBackward does, or when `products` is neither 1 nor 3.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/attention/flash2/dq_order.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

struct AmpereFloatBackward {
  using Exec = Kokkos::Cuda;

  BackwardTask<Exec, float> task;
  DqOrder order;
  /// At least workspace_bytes(), aligned to 16 bytes; its previous content does not matter. Launches that share one
  /// must not run concurrently.
  Vector<std::byte, Exec> workspace;
  int products;  // as in the forward pass

  /// Head widths: the multiples of 8 up to 256; up to 160 where a team has only 99 KiB of scratch.
  static bool supports(int D);
  static std::int64_t workspace_bytes(int B, int H, int Tq);

  void launch(const Exec& exec) const;
};

}  // namespace tessera::kernels
