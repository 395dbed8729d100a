/// FlashAttention-2, forward: softmax(scale * q k^T) v without ever storing the scores.
///
///   out[b,h,i,:] = sum_j p_ij v[b,h,j,:],   p_ij = exp(scale q_i.k_j - lse_i),   lse_i = log sum_j exp(scale q_i.k_j)
///
/// over the keys j that query i sees: all Tk of them, or j <= i + Tk - Tq when causal (the last query sees
/// every key). One team owns a tile of queries of one (b,h) and walks the keys tile by tile; per query it keeps a
/// running maximum, a running sum and an un-normalised output, rescaled whenever the maximum grows.
///
/// Inside the pads everything is transposed: queries lie along the lanes, keys and channels along the rows. Maximum,
/// exponential and sum of the softmax are then lane-wise, without horizontal reductions, and k and v keep their layout.
///
/// The contract is task.hpp's, and:
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 1; running softmax: Milakov & Gimelshein 2018, arXiv:1805.02867.
/// Departs    no dropout, no split over the keys.
/// Numerics   products, sums and exponentials in Accum<Scalar>; only `out` is rounded to Scalar.
/// Memory     pad, level 0, Accum: flash2_forward_pad_reals.
/// Async      Kokkos allocates scratch when a pad is larger than any earlier one of the process.
/// Throws     std::invalid_argument if a chosen tile is no multiple of 16, or the pad larger than the device's scratch.
/// Limits     meant for CPUs. A GPU runs it only in chosen tiles; tensor cores and register_forward.hpp are faster.
#pragma once

#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/core/tiles.hpp"

namespace tessera::kernels {

/// Queries of a tile (B_r in the paper; along the lanes) and keys (B_c; staged together): OwnTiles are compiled into
/// the kernel, ChosenTiles come from the caller, as multiples of 16.
constexpr int flash2_forward_tile(const Target& target, int real_bytes) {
  return target.is_host ? 64 : real_bytes == 8 ? 16 : 32;
}
template <class Exec, class Real>
struct OwnTiles {
  KOKKOS_FUNCTION static constexpr int query_tile() { return key_tile(); }
  KOKKOS_FUNCTION static constexpr int key_tile() {
    return flash2_forward_tile({.is_host = kIsHost<Exec>}, sizeof(Real));
  }
};
struct ChosenTiles {
  int queries, keys;
  KOKKOS_FUNCTION int query_tile() const { return queries; }
  KOKKOS_FUNCTION int key_tile() const { return keys; }
};

/// Reals of the pad; the queries of a tile fill whole lane blocks.
KOKKOS_FUNCTION constexpr std::size_t flash2_forward_pad_reals(int lanes, int key_tile, int D) {
  return (lanes + 2 * key_tile) * D + key_tile * lanes + D * lanes + 3 * lanes;
}

template <class Exec, class Scalar, class Tiles = OwnTiles<Exec, Accum<Scalar>>>
struct Flash2Forward : Tiles {
  using Real = Accum<Scalar>;

  ForwardTask<Exec, Scalar> task;

  static constexpr int kMaxHead = 256;

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
#ifdef TESSERA_CPU_LEVELS
  TESSERA_V4 void operator()(V4, const Member& team) const requires std::is_same_v<Scalar, float>;
#endif

 private:
  template <class Level>
  KOKKOS_INLINE_FUNCTION void run(const Member& team) const;
};

}  // namespace tessera::kernels
