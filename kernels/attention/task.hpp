/// The operands that all implementations of attention share, forward and backward: tensors, scale and mask.
///
/// An implementation's struct holds one of these and its own operands.
#pragma once

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

/// Of `keys` keys those that a query sees whose last one is number `last`, if it is causal; all otherwise.
KOKKOS_FORCEINLINE_FUNCTION int keys_seen(bool causal, int last, int keys) {
  return !causal || last >= keys ? keys : (last < 0 ? 0 : last + 1);
}

}  // namespace tessera::kernels
