/// Chooses an attention kernel: the one place that knows all implementations.
///
/// The caller passes every tensor that any implementation may need. Only `standard` uses `probabilities` and
/// `d_scores`, which may be absent (null) otherwise; the others use `out` and `lse` in backward, which is flash2's for
/// all of them. A workspace is needed where its size is not 0: forward by flash1 and tiled, backward on GPUs. Only
/// tuned engines use `tile_counter`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/attention/choice.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/cuda/target.hpp"
#include "kernels/gemm/operation.hpp"

namespace tessera::kernels {

std::string_view name_of(AttentionKind kind);

/// Whether the implementation stores the scores, in `probabilities` and `d_scores`.
bool stores_scores(AttentionKind kind);

std::string_view name_of(Engine engine);

/// Whether a build for `target` has the engine for a dtype and a head width, in a direction.
bool has_forward(Engine engine, Dtype dtype, int D, const Target& target = kHere);
bool has_backward(Engine engine, Dtype dtype, int D, const Target& target = kHere);

/// The fastest that a build for `target` has for a dtype and a head width, chosen separately per direction: tensor
/// cores, else the portable kernel.
AttentionChoice fastest_attention(Dtype dtype, int D, bool deterministic, const Target& target = kHere);

/// Whether a build for `target` has the steps of the choice for a dtype.
bool has_steps(const AttentionChoice& choice, Dtype dtype, const Target& target = kHere);

/// Bytes of scratch that a team of the portable forward kernel asks for; 0 for kernels whose tiles cannot be chosen,
/// and for tiled, whose tiles lie in its workspace. At most scratch_limit(target) can be had.
std::int64_t attention_pad_bytes(const AttentionChoice& choice, Dtype dtype, int D, const Target& target = kHere);

/// Bytes of workspace for forward of tensors of `dtype`; 0 for standard and flash2. Arithmetic only.
std::int64_t attention_forward_workspace_bytes(const AttentionChoice& choice, Dtype dtype, int B, int H, int Tq, int D);

/// Bytes of workspace for backward of tensors of `dtype`, whether or not this build has the engine; 0 on hosts.
/// Arithmetic only.
std::int64_t attention_workspace_bytes(const AttentionChoice& choice, Dtype dtype, int B, int H, int Tq, int D,
                                       const Target& target = kHere);

/// Bytes of scratch that Kokkos allocates on a host, where pads are memory, for tensors of `dtype`: for each of its
/// threads the larger of both passes' pads. 0 on GPUs, whose pads are on chip.
std::int64_t attention_scratch_bytes(const AttentionChoice& choice, Dtype dtype, int Tk, int D,
                                     const Target& target = kHere);

template <class Exec, class Scalar>
struct Attention {
  using Real = Accum<Scalar>;

  AttentionChoice choice;
  HeadTensor<const Scalar, Exec> q;        // [B,H,Tq,D]
  HeadTensor<const Scalar, Exec> k;        // [B,H,Tk,D]
  HeadTensor<const Scalar, Exec> v;        // [B,H,Tk,D]
  HeadTensor<Scalar, Exec> out;            // [B,H,Tq,D]   out of forward, in of backward
  HeadRows<Real, Exec> lse;                // [B,H,Tq]     out of forward, in of backward
  HeadTensor<Scalar, Exec> probabilities;  // [B,H,Tq,Tk]  standard: out of forward, in of backward
  Real scale;
  bool causal;
  GemmMath math = GemmMath::full;               // of float products that a library or tensor cores compute
  Value<std::int32_t, Exec> tile_counter = {};  // wgmma: 0 before the first launch, left 0 by every one
  Vector<std::byte, Exec> workspace = {};       // [attention_forward_workspace_bytes], aligned to 16 bytes

  struct Gradients {
    HeadTensor<const Scalar, Exec> d_out;    // [B,H,Tq,D]   in
    HeadTensor<Scalar, Exec> d_q;            // [B,H,Tq,D]   out
    HeadTensor<Scalar, Exec> d_k;            // [B,H,Tk,D]   out
    HeadTensor<Scalar, Exec> d_v;            // [B,H,Tk,D]   out
    HeadTensor<Scalar, Exec> d_scores;       // [B,H,Tq,Tk]  standard: workspace
    Vector<std::byte, Exec> workspace = {};  // [attention_workspace_bytes], aligned to 128 bytes
  };

  /// Throws std::invalid_argument if this build has no such engine for the dtype and head width, or not the steps, and
  /// what the chosen kernel throws.
  void forward(const Exec& exec) const;
  void backward(const Exec& exec, const Gradients& gradients) const;
};

}  // namespace tessera::kernels
