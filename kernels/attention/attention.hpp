/// Chooses an attention: the one place that knows which implementations there are.
///
/// The caller hands over every tensor that any implementation may need; `probabilities` and `d_scores` are used by
/// `standard` only and may be absent (null) otherwise, `out` and `lse` in backward by `flash2` only.
#pragma once

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

enum class AttentionKind { standard, flash2 };

template <class Exec, class Scalar>
struct Attention {
  using Real = Accum<Scalar>;

  AttentionKind kind;
  HeadTensor<const Scalar, Exec> q;        // [B,H,Tq,D]
  HeadTensor<const Scalar, Exec> k;        // [B,H,Tk,D]
  HeadTensor<const Scalar, Exec> v;        // [B,H,Tk,D]
  HeadTensor<Scalar, Exec> out;            // [B,H,Tq,D]   out of forward, in of backward
  HeadRows<Real, Exec> lse;                // [B,H,Tq]     out of forward, in of backward
  HeadTensor<Scalar, Exec> probabilities;  // [B,H,Tq,Tk]  standard: out of forward, in of backward
  Real scale;
  bool causal;

  struct Gradients {
    HeadTensor<const Scalar, Exec> d_out;  // [B,H,Tq,D]   in
    HeadTensor<Scalar, Exec> d_q;          // [B,H,Tq,D]   out
    HeadTensor<Scalar, Exec> d_k;          // [B,H,Tk,D]   out
    HeadTensor<Scalar, Exec> d_v;          // [B,H,Tk,D]   out
    HeadTensor<Scalar, Exec> d_scores;     // [B,H,Tq,Tk]  standard: workspace
  };

  void forward(const Exec& exec) const;
  void backward(const Exec& exec, const Gradients& gradients) const;
};

}  // namespace tessera::kernels
