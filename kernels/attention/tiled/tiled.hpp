/// Attention tile by tile as separate launches: FlashAttention-2 as a framework would write it, from finished kernels.
///
/// A loop on the host walks the tiles of queries, and for each the tiles of keys that those queries see; all heads of
/// all sequences go together. A pair of tiles is four launches, with everything between them in memory:
///
///   scores    S = scale q k^T                                       (product of one tile per head)
///   softmax   m_new = max(m, max S)   P = exp(S - m_new)   l = exp(m - m_new) l + sum P
///   values    P v                                                   (product)
///   rescale   out = exp(m - m_new) out + P v
///
/// and one more per tile of queries divides out by l. The arithmetic is flash2's; the difference in time, for launches
/// and for S and out passing through memory, is what fusion into one kernel is worth. The backward pass is flash2's,
/// which reads out and lse. The contract is task.hpp's, and:
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 1.
/// Departs    products by HeadProduct, as in standard attention, not by a vendor's library: no tensor cores.
/// Numerics   everything between launches in Accum<Scalar>; only `out` is rounded to Scalar.
/// Memory     workspace, aligned to 16 bytes: tiled_workspace_bytes; O(tile * (tile + D)) per head.
/// Cost       4 * (Tq/query_tile) * (Tk/key_tile) launches.
/// Throws     std::invalid_argument if the workspace is too small, or a tile is no multiple of 16.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/task.hpp"
#include "kernels/core/dtype.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// Queries, and keys, of a tile unless the caller chooses: launches cost more than the memory between them.
inline constexpr int kTiledTile = 128;

/// Bytes of workspace; tiles of 0 are kTiledTile.
constexpr std::int64_t tiled_workspace_bytes(Dtype dtype, std::int64_t B, std::int64_t H, std::int64_t Tq, int D,
                                             int query_tile, int key_tile) {
  const std::int64_t queries = std::min<std::int64_t>(query_tile == 0 ? kTiledTile : query_tile, Tq);
  const std::int64_t keys = key_tile == 0 ? kTiledTile : key_tile;
  return B * H * queries * (keys + 2 * D + 3) * (dtype == Dtype::fp64 ? 8 : 4);
}

template <class Exec, class Scalar>
struct TiledForward {
  ForwardTask<Exec, Scalar> task;
  int query_tile, key_tile;           // 0: kTiledTile
  Vector<std::byte, Exec> workspace;  // [tiled_workspace_bytes]

  static constexpr int kMaxHead = 256;

  void launch(const Exec& exec) const;
};

/// The launches of a pair of tiles that are no products; one team per row.
template <class Exec, class Scalar>
struct TiledRows {
  using Real = Accum<Scalar>;

  HeadTensor<Real, Exec> scores;   // [B,H,queries,keys]  in: S, out: P
  HeadTensor<Real, Exec> values;   // [B,H,queries,D]     in: P v
  HeadTensor<Real, Exec> running;  // [B,H,queries,D]     in, out: un-normalised output
  HeadRows<Real, Exec> top;        // [B,H,queries]       in, out: m
  HeadRows<Real, Exec> sum;        // [B,H,queries]       in, out: l
  HeadRows<Real, Exec> keep;       // [B,H,queries]       out of softmax, in of rescale: exp(m - m_new)
  HeadTensor<Scalar, Exec> out;    // [B,H,queries,D]     out of finish
  HeadRows<Real, Exec> lse;        // [B,H,Tq]            out of finish
  int first_query;                 // of the tile
  int seen;                        // keys of the tile that its first query sees, or more; each later query: one more
  bool is_first;                   // no keys before this tile: m, l and running are not read
  bool has_keys;                   // in finish: there was a tile of keys

  struct Softmax {};
  struct Rescale {};
  struct Finish {};
  template <class Step>
  void launch(const char* label, const Exec& exec) const;

  template <class Step>
  using Policy = Kokkos::TeamPolicy<Exec, Step>;
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FUNCTION void operator()(Softmax, const Member& team) const;
  KOKKOS_FUNCTION void operator()(Rescale, const Member& team) const;
  KOKKOS_FUNCTION void operator()(Finish, const Member& team) const;
};

}  // namespace tessera::kernels
