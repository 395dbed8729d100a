/// Chooses an attention kernel: the one place that knows all implementations.
///
/// The caller passes every tensor that any implementation may need. Only `standard` uses `probabilities` and
/// `d_scores`, which may be absent (null) otherwise; only `flash2` uses `out` and `lse` in backward, and only the tuned
/// engines `tile_counter` and `workspace`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/core/tensor.hpp"
#include "kernels/cuda/target.hpp"

namespace tessera::kernels {

enum class AttentionKind { standard, flash2 };
std::string_view name_of(AttentionKind kind);

/// Whether the implementation stores the scores, in `probabilities` and `d_scores`.
bool stores_scores(AttentionKind kind);

/// The instruction set that a flash2 kernel is written for.
enum class Engine {
  portable,  // Kokkos only, every dtype, head width and backend
  mma,       // tensor cores of NVIDIA GPUs from sm_80 on: bf16 and fp16, head widths that are multiples of 8
  wgmma,     // warpgroups and copy engine of sm_90a: bf16 and fp16, some head widths
};
std::string_view name_of(Engine engine);

/// The implementation that runs, and its engine in each direction.
struct AttentionChoice {
  AttentionKind kind = AttentionKind::flash2;
  Engine forward = Engine::portable, backward = Engine::portable;
  bool deterministic = true;  // false: backward may add gradients in any order

  AttentionChoice(AttentionKind implementation = AttentionKind::flash2) : kind(implementation) {}
  bool is_tuned() const { return forward != Engine::portable || backward != Engine::portable; }
};

/// Whether a build for `target` has the engine for a dtype and a head width, in a direction.
bool has_forward(Engine engine, Dtype dtype, int D, const Target& target = kHere);
bool has_backward(Engine engine, Dtype dtype, int D, const Target& target = kHere);

/// The fastest engines that a build for `target` has for a dtype and a head width, chosen separately per direction.
AttentionChoice fastest_attention(Dtype dtype, int D, bool deterministic, const Target& target = kHere);

/// Bytes of workspace for backward, whether or not this build has the engine; 0 for portable ones. Arithmetic only.
std::int64_t attention_workspace_bytes(const AttentionChoice& choice, int B, int H, int Tq, int D);

/// Bytes of scratch in memory that Kokkos allocates for backward of tensors of `dtype`, beside the workspace.
std::int64_t attention_scratch_bytes(const AttentionChoice& choice, Dtype dtype, int B, int H, int Tk, int D,
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
  Value<std::int32_t, Exec> tile_counter = {};  // wgmma: 0 before the first launch, left 0 by every one

  struct Gradients {
    HeadTensor<const Scalar, Exec> d_out;    // [B,H,Tq,D]   in
    HeadTensor<Scalar, Exec> d_q;            // [B,H,Tq,D]   out
    HeadTensor<Scalar, Exec> d_k;            // [B,H,Tk,D]   out
    HeadTensor<Scalar, Exec> d_v;            // [B,H,Tk,D]   out
    HeadTensor<Scalar, Exec> d_scores;       // [B,H,Tq,Tk]  standard: workspace
    Vector<std::byte, Exec> workspace = {};  // [attention_workspace_bytes], aligned to 128 bytes
  };

  /// Throws std::invalid_argument if this build has no such engine for the dtype and head width, and what the chosen
  /// kernel throws.
  void forward(const Exec& exec) const;
  void backward(const Exec& exec, const Gradients& gradients) const;
};

}  // namespace tessera::kernels
