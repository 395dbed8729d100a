/// The operands that all implementations of attention share, forward and backward: tensors, scale and mask.
///
/// An implementation's struct holds one of these and its own operands. flash2/forward.hpp and flash2/backward.hpp have
/// the formulas. Where an implementation's contract does not say otherwise:
///
/// Error      for v and d_out up to 1, and S the largest scale |q_i| |k_j|: b = eps<Scalar> + (8 + S) eps<Accum>, plus
///            b times the largest entry of each result. Like E (core/scalar.hpp) it takes rounding errors to average
///            out, and then does not grow with Tk: sums are made of tiles, or of runs of up to 1024. At worst,
///            where all terms but one are below half a unit of the running sum, Tk/2 eps<Accum> of it are lost.
/// Order      fixed for given shapes and tiles: bitwise repeatable. No atomics.
/// Cost       forward 4*B*H*Tq*Tk*D flop, backward 10*B*H*Tq*Tk*D; about half when causal, since tiles wholly above the
///            diagonal are skipped.
/// Memory     results may hold partial sums meanwhile and must not overlap operands.
/// Edges      any Tq, Tk >= 0. A query that sees no key gets out 0, lse -inf and d_q 0; a key that no query sees gets
///            d_k = d_v = 0. Every entry must be finite: a NaN of a key reaches queries that do not see it.
/// Async      returns after enqueue on `exec`; never fences. Kernels on tensor cores allocate nothing and can be
///            captured in a graph.
/// Throws     std::invalid_argument when shapes disagree, the last stride is not 1, or D is not in 1..kMaxHead.
#pragma once

#include "kernels/core/round_up.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct ForwardTask {
  HeadTensor<const Scalar, Exec> q;   // [B,H,Tq,D]  in
  HeadTensor<const Scalar, Exec> k;   // [B,H,Tk,D]  in
  HeadTensor<const Scalar, Exec> v;   // [B,H,Tk,D]  in
  HeadTensor<Scalar, Exec> out;       // [B,H,Tq,D]  out
  HeadRows<Accum<Scalar>, Exec> lse;  // [B,H,Tq]    out  row log-sum-exp (natural log), kept for backward
  Accum<Scalar> scale;                // usually 1/sqrt(D); > 0 for the tuned kernels
  bool causal;                        // bottom-right: query i sees the keys j <= i + Tk - Tq
};

template <class Exec, class Scalar>
struct BackwardTask {
  HeadTensor<const Scalar, Exec> q;         // [B,H,Tq,D]  in
  HeadTensor<const Scalar, Exec> k;         // [B,H,Tk,D]  in
  HeadTensor<const Scalar, Exec> v;         // [B,H,Tk,D]  in
  HeadTensor<const Scalar, Exec> out;       // [B,H,Tq,D]  in   saved by the forward pass
  HeadRows<const Accum<Scalar>, Exec> lse;  // [B,H,Tq]    in   saved by the forward pass
  HeadTensor<const Scalar, Exec> d_out;     // [B,H,Tq,D]  in
  HeadTensor<Scalar, Exec> d_q;             // [B,H,Tq,D]  out
  HeadTensor<Scalar, Exec> d_k;             // [B,H,Tk,D]  out
  HeadTensor<Scalar, Exec> d_v;             // [B,H,Tk,D]  out
  Accum<Scalar> scale;                      // as in the forward pass
  bool causal;                              // as in the forward pass
};

/// How many of `keys` keys a query sees: if causal, those up to number `last`; else all.
KOKKOS_FORCEINLINE_FUNCTION int keys_seen(bool causal, int last, int keys) {
  return !causal || last >= keys ? keys : (last < 0 ? 0 : last + 1);
}

/// The queries of one (b,h) that a team of flash2 owns, and the keys that they see.
struct QueryTile {
  int b, h;
  int first, queries;  // the tile's first query, and how many it has
  int diagonal;        // Tk - Tq; causal: query i sees keys j <= i + diagonal
  int all_keys;        // that the last query sees
};

/// The tile of team `team`, one of ceil(Tq / rows) for each (b,h). The tiles whose queries see most keys come first.
template <class Task>
KOKKOS_FORCEINLINE_FUNCTION QueryTile query_tile_of(const Task& task, int team, int rows) {
  const int Tq = task.q.extent_int(2), Tk = task.k.extent_int(2);
  const int tiles = ceil_div(Tq, rows);
  QueryTile tile;
  tile.first = (tiles - 1 - team % tiles) * rows;
  tile.h = team / tiles % task.q.extent_int(1);
  tile.b = team / tiles / task.q.extent_int(1);
  tile.queries = Tq - tile.first < rows ? Tq - tile.first : rows;
  tile.diagonal = Tk - Tq;
  tile.all_keys = keys_seen(task.causal, tile.first + tile.queries - 1 + tile.diagonal, Tk);
  return tile;
}

}  // namespace tessera::kernels
