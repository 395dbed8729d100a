/// The tensors of a micro-step besides parameters, with their lifetimes. Arithmetic only: `--plan` and the arena use
/// the same list, and Kokkos need not be initialised.
///
/// Ticks number the moments of a micro-step, eight to a unit:
///
///   forward of a block    0 norm  1 qkv  2 rope, attention  3 out  4 norm  5 gate_up  6 swiglu  7 down
///   backward of a block   0 recompute  1 down  2 swiglu  3 gate_up  4 norm  5 out  6 attention, rope  7 qkv, norm
///
/// The embedding and the head use ticks 0 and 1 of their units. With `checkpoint_blocks` = n, only the residual stream
/// at every n-th block survives the forward pass; other tensors live twice, in the forward pass and from their
/// segment's recomputation on. Without `recomputes_attention`, attention's output and log-sum-exp survive as well.
#pragma once

#include <vector>

#include "kernels/attention/attention.hpp"
#include "kernels/gemm/gemm.hpp"
#include "memory/layout.hpp"
#include "model/params.hpp"

namespace tessera::model {

struct Timeline {
  int units;
  static constexpr int kTicks = 8;

  int forward(int unit, int moment) const { return 1 + unit * kTicks + moment; }
  int backward(int unit, int moment) const { return 1 + (2 * units - 1 - unit) * kTicks + moment; }
  int update() const { return 1 + 2 * units * kTicks; }
};

struct ActivationOptions {
  std::int64_t sequences;          // B, the largest micro-batch
  Dtype dtype;                     // of activations
  bool for_training;               // false: forward only, nothing is kept
  std::int64_t checkpoint_blocks;  // 0: keep everything
  kernels::AttentionChoice attention;
  kernels::GemmMath math = kernels::GemmMath::full;  // of fp32 products
  bool has_narrow_gradients = false;                 // parameter gradients in 16 bits
  bool is_fused = true;                              // false: one launch per element-wise operation
  kernels::Target target = kernels::kHere;           // whose workspaces are declared
  bool recomputes_attention = true;                  // with checkpointing; false: its output and log-sum-exp are kept
  bool has_logits = true;                            // false: forward passes that end at the final norm
};

/// One block's tensors of one pass. B, T, C, ... as in kernels/core/tensor.hpp; N = B*T. Here and below, what is not
/// needed is kAbsent.
struct BlockTensors {
  memory::TensorId x1;                               // [N,C]      residual stream at the block's entry
  memory::TensorId rrms1;                            // [N]
  memory::TensorId normed1;                          // [N,C]
  memory::TensorId qkv;                              // [N,3C]     q and k after RoPE
  memory::TensorId attn;                             // [N,C]      heads' outputs
  memory::TensorId lse;                              // [B,H,T]
  memory::TensorId probabilities = memory::kAbsent;  // [B,H,T,T]  standard attention only
  memory::TensorId x2;                               // [N,C]      residual stream after attention
  memory::TensorId rrms2;                            // [N]
  memory::TensorId normed2;                          // [N,C]
  memory::TensorId gate_up;                          // [N,2F]     becomes its own gradient in backward
  memory::TensorId act;                              // [N,F]      forward only: backward recomputes it
};

struct BlockGradients {
  memory::TensorId d_act;   // [N,F]  becomes the activation, which the down projection's gradient needs
  memory::TensorId d_attn;  // [N,C]
  memory::TensorId d_qkv;   // [N,3C]
  memory::TensorId d_scores = memory::kAbsent;  // [B,H,T,T]  standard attention only
};

struct ActivationTensors {
  Timeline timeline;
  memory::TensorId inputs, targets;             // [N] int32
  memory::TensorId rope_table;                  // [T,D/2,2]
  std::vector<BlockTensors> forward, backward;  // the same tensors unless checkpointing
  std::vector<BlockGradients> gradients;
  memory::TensorId delta;                              // [N,C]  what a projection adds to the residual stream
  memory::TensorId recompute_delta = memory::kAbsent;  // [N,C]  the same in a recomputation
  memory::TensorId x_final, rrms_final, normed_final;
  memory::TensorId logits = memory::kAbsent;         // [rows of a chunk, V]
  memory::TensorId row_loss = memory::kAbsent;       // [rows of a chunk]
  memory::TensorId head_d_weight = memory::kAbsent;  // [V,C]  fp32: a gradient in 16 bits, summed over chunks
  memory::TensorId d_x = memory::kAbsent, d_normed = memory::kAbsent;                       // [N,C]
  memory::TensorId norm_partial = memory::kAbsent;                                          // [kPartials,C]
  memory::TensorId embedding_order = memory::kAbsent, embedding_partial = memory::kAbsent;  // of its backward
  memory::TensorId gemm_workspace = memory::kAbsent;       // floats, if the products need one
  memory::TensorId attention_counter = memory::kAbsent;    // tensor-core engines only
  memory::TensorId attention_workspace = memory::kAbsent;  // of forward, then of backward; bytes as int32
  std::int64_t chunk_rows;
};

/// Throws  Failure(Exit::usage) if a pass has more tokens than kernels can count, or beyond the layout's limit.
ActivationTensors declare_activations(const Shape& shape, const ActivationOptions& options, memory::Layout& layout);

}  // namespace tessera::model
