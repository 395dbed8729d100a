#include "model/activations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "errors.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/embedding.hpp"
#include "kernels/rmsnorm.hpp"

namespace tessera::model {
namespace {

using memory::Category;
using memory::kAbsent;
using memory::Lifetime;
using memory::TensorId;

using Embedding = kernels::EmbeddingBackward<kernels::Device, float>;

/// Most tokens of a pass: kernels count rows in an int, also rounded up to whole chunks.
constexpr std::int64_t kMostTokens = std::numeric_limits<int>::max() / Embedding::kChunk * Embedding::kChunk;

/// Most elements in a chunk of logits: small beside the activations, large enough for an efficient product.
constexpr std::int64_t logit_elements(const kernels::Target& target) {
  return std::int64_t{1} << (target.is_host ? 22 : 29);
}

/// Rows of a chunk: as few chunks as the limit allows, all of nearly the same size.
std::int64_t chunk_rows_of(const kernels::Target& target, std::int64_t N, std::int64_t V) {
  constexpr std::int64_t kMultiple = 64;
  const std::int64_t most = std::max(kMultiple, logit_elements(target) / V / kMultiple * kMultiple);
  const std::int64_t chunks = kernels::ceil_div(N, most);
  return std::min(N, kernels::round_up(kernels::ceil_div(N, chunks), kMultiple));
}

struct Declarer {
  const Shape& s;
  const ActivationOptions& o;
  memory::Layout& layout;
  Timeline time;
  std::int64_t N = o.sequences * s.T;
  Dtype real = o.dtype == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32;

  TensorId activation(std::string label, std::vector<std::int64_t> shape, Dtype dtype, Lifetime life) const {
    return layout.add(std::move(label), std::move(shape), dtype, Category::activations, life);
  }

  bool keeps_residual_at(int block) const {
    return o.for_training && (o.checkpoint_blocks == 0 || block % o.checkpoint_blocks == 0);
  }

  bool keeps_attention_of_forward() const {
    return o.for_training && o.checkpoint_blocks > 0 && !o.recomputes_attention;
  }

  /// The tensors of `block` for a pass whose moment m is tick pass(m). A tensor lives from the moment that writes it to
  /// the last that reads it, in the forward pass or, if `kept`, in the backward pass. `x1` and `act` are given if
  /// another block already owns them, `attended` if attention's results come from another pass.
  BlockTensors block_tensors(int block, const std::string& path, bool kept, auto pass, int next_entry, TensorId x1,
                             TensorId act = kAbsent, const BlockTensors* attended = nullptr) const {
    const int unit = block + 1;
    const auto life = [&](int written, int read, int read_backward) {
      return Lifetime{pass(written), kept ? time.backward(unit, read_backward) : pass(read)};
    };
    BlockTensors t;
    t.x1 = x1 != kAbsent ? x1 : activation(path + "x1", {N, s.C}, o.dtype, life(0, 4, 7));
    t.rrms1 = activation(path + "rrms1", {N}, real, life(0, 0, 7));
    t.normed1 = activation(path + "normed1", {N, s.C}, o.dtype, life(0, 1, 7));
    t.qkv = activation(path + "qkv", {N, 3 * s.C}, o.dtype, life(1, 2, 6));
    const bool keeps_attention = kept || keeps_attention_of_forward();
    const auto attention_life = [&](int read) {
      return Lifetime{pass(2), keeps_attention ? time.backward(unit, 6) : pass(read)};
    };
    t.attn = attended ? attended->attn : activation(path + "attn", {N, s.C}, o.dtype, attention_life(3));
    t.lse = attended ? attended->lse : activation(path + "lse", {o.sequences, s.H, s.T}, real, attention_life(2));
    if (o.attention.kind == kernels::AttentionKind::standard) {
      t.probabilities = activation(path + "probabilities", {o.sequences, s.H, s.T, s.T}, o.dtype, life(2, 2, 6));
    }
    Lifetime x2 = life(4, 4, 4);
    x2.last = std::max(x2.last, next_entry);  // the next block adds its delta to x2
    t.x2 = activation(path + "x2", {N, s.C}, o.dtype, x2);
    t.rrms2 = activation(path + "rrms2", {N}, real, life(4, 4, 4));
    t.normed2 = activation(path + "normed2", {N, s.C}, o.dtype, life(4, 5, 3));
    t.gate_up = activation(path + "gate_up", {N, 2 * s.F}, o.dtype, life(5, 6, 3));
    t.act = act != kAbsent ? act : activation(path + "act", {N, s.F}, o.dtype, {pass(6), pass(7)});
    return t;
  }

  void declare_block(int block, ActivationTensors& t) const {
    const int unit = block + 1;
    const std::string path = fmt::format("block.{:02}.", block);
    const auto forward = [&](int moment) { return time.forward(unit, moment); };
    const int next_entry = time.forward(unit + 1, 0);
    TensorId x1 = block == 0 ? t.forward.front().x1 : kAbsent;
    const bool checkpointed = o.for_training && o.checkpoint_blocks > 0;
    if (x1 == kAbsent && checkpointed && keeps_residual_at(block)) {
      x1 = activation(path + "x1", {N, s.C}, o.dtype, {forward(0), time.backward(unit, 7)});
    }
    const BlockTensors in_forward =
        block_tensors(block, path, o.for_training && !checkpointed, forward, next_entry, x1);
    t.forward[block] = in_forward;
    if (checkpointed) {
      const int last_of_segment =
          static_cast<int>(std::min(s.L, (block / o.checkpoint_blocks + 1) * o.checkpoint_blocks)) - 1;
      const auto recompute = [&](int) { return time.backward(last_of_segment + 1, 0); };
      const bool is_first = keeps_residual_at(block);  // of its segment, whose blocks are recomputed in one moment
      t.backward[block] =
          block_tensors(block, path + "recomputed.", true, recompute, 0, is_first ? x1 : kAbsent,
                        is_first ? kAbsent : t.backward[block - 1].act, o.recomputes_attention ? nullptr : &in_forward);
    } else {
      t.backward[block] = in_forward;
    }
    if (!o.for_training) return;
    const auto backward = [&](int first, int last) {
      return Lifetime{time.backward(unit, first), time.backward(unit, last)};
    };
    BlockGradients& g = t.gradients[block];
    g.d_act = activation(path + "d_act", {N, s.F}, o.dtype, backward(1, 2));
    g.d_attn = activation(path + "d_attn", {N, s.C}, o.dtype, backward(5, 6));
    g.d_qkv = activation(path + "d_qkv", {N, 3 * s.C}, o.dtype, backward(6, 7));
    if (o.attention.kind == kernels::AttentionKind::standard) {
      g.d_scores = activation(path + "d_scores", {o.sequences, s.H, s.T, s.T}, o.dtype, backward(6, 6));
    }
  }

  /// The most workspace, in floats, that any GEMM of the step needs.
  std::int64_t gemm_floats(std::int64_t chunk_rows) const {
    using kernels::gemm_workspace;
    std::int64_t most = 0;
    const auto linear = [&](std::int64_t rows, std::int64_t in, std::int64_t out) {
      if (o.dtype == Dtype::fp64) return;
      if (o.dtype == Dtype::fp32) {
        most = std::max(most, gemm_workspace<float, float>(o.target, rows, out, in, o.math));
        return;
      }
      most = std::max({most, gemm_workspace<bfloat16, bfloat16>(o.target, rows, out, in),  // y = x W^T
                       gemm_workspace<bfloat16, bfloat16>(o.target, rows, in, out),        // d_x = d_y W
                       gemm_workspace<bfloat16, float>(o.target, out, in, rows)});         // d_W += d_y^T x
    };
    linear(N, s.C, 3 * s.C);
    linear(N, s.C, s.C);
    linear(N, s.C, 2 * s.F);
    linear(N, s.F, s.C);
    if (chunk_rows > 0) linear(chunk_rows, s.C, s.V);
    return most;
  }
};

}  // namespace

ActivationTensors declare_activations(const Shape& shape, const ActivationOptions& options, memory::Layout& layout) {
  const Timeline time{shape.units()};
  const Declarer declare{shape, options, layout, time};
  const std::int64_t N = declare.N;
  const int head = time.units - 1, L = static_cast<int>(shape.L);
  const bool train = options.for_training;
  const Lifetime whole = Lifetime::whole_run();
  const auto workspace = [&](const char* label, std::vector<std::int64_t> extents, Dtype dtype, Lifetime life) {
    return layout.add(label, std::move(extents), dtype, Category::workspace, life);
  };

  ActivationTensors t{};
  t.timeline = time;
  t.chunk_rows = options.has_logits ? chunk_rows_of(options.target, N, shape.V) : 0;
  t.inputs = layout.add("data.inputs", {N}, Dtype::int32, Category::data, whole);
  t.targets = layout.add("data.targets", {N}, Dtype::int32, Category::data, whole);
  t.rope_table = workspace("rope.table", {shape.T, shape.D() / 2, 2}, declare.real, whole);
  const Lifetime backward{time.backward(head, 0), time.backward(0, 0)};
  if (train) {
    const int rows = static_cast<int>(std::min(N, kMostTokens));  // more are refused below
    const Lifetime embedding{time.backward(0, 0), time.backward(0, 0)};
    t.norm_partial =
        workspace("norm.partial", {kernels::rmsnorm_partials(options.target), shape.C}, declare.real, backward);
    t.embedding_order = workspace("embedding.order", {Embedding::order_size(rows)}, Dtype::int32, embedding);
    t.embedding_partial =
        workspace("embedding.partial", {Embedding::partial_rows(rows), shape.C}, declare.real, embedding);
  }

  t.forward.resize(L);
  t.backward.resize(L);
  t.gradients.resize(L);
  const Lifetime stream{time.forward(0, 0), train ? time.backward(1, 7) : time.forward(1, 4)};
  if (L > 0) t.forward[0].x1 = declare.activation("embedding.out", {N, shape.C}, options.dtype, stream);
  for (int block = 0; block < L; ++block) declare.declare_block(block, t);
  if (N > kMostTokens) {
    throw Failure(Exit::usage,
                  "{} sequences of {} tokens are more than the {} that a pass can take: set a smaller "
                  "train.micro_batch_size, or model.context_length",
                  options.sequences, shape.T, kMostTokens);
  }

  t.delta = declare.activation("delta", {N, shape.C}, options.dtype, {time.forward(1, 3), time.forward(head, 0)});
  if (train && options.checkpoint_blocks > 0) {
    t.recompute_delta =
        declare.activation("recomputed.delta", {N, shape.C}, options.dtype, {time.backward(L, 0), time.backward(1, 0)});
  }
  const Lifetime final_norm{time.forward(head, 0), time.backward(head, 1)};
  t.x_final = declare.activation("head.x", {N, shape.C}, options.dtype, final_norm);
  t.rrms_final = declare.activation("head.rrms", {N}, declare.real, final_norm);
  t.normed_final = declare.activation("head.normed", {N, shape.C}, options.dtype, final_norm);
  const Lifetime chunk{time.backward(head, 0), time.backward(head, 0)};
  if (options.has_logits) {
    t.logits = declare.activation("head.logits", {t.chunk_rows, shape.V}, options.dtype, chunk);
    t.row_loss = declare.activation("head.row_loss", {t.chunk_rows}, declare.real, chunk);
  }
  if (train && options.has_narrow_gradients && t.chunk_rows < N) {
    t.head_d_weight = layout.add("head.d_weight", {shape.V, shape.C}, declare.real, Category::gradients, chunk);
  }
  if (train) {
    t.d_x = declare.activation("d_x", {N, shape.C}, options.dtype, backward);
    t.d_normed = declare.activation("d_normed", {N, shape.C}, options.dtype, backward);
  }
  if (const std::int64_t floats = declare.gemm_floats(t.chunk_rows); floats > 0) {
    t.gemm_workspace = workspace("gemm.workspace", {floats}, Dtype::fp32, whole);
  }
  const int B = static_cast<int>(options.sequences), H = static_cast<int>(shape.H), T = static_cast<int>(shape.T),
            D = static_cast<int>(shape.D());
  if (options.attention.has_tensor_engine()) {
    t.attention_counter = workspace("attention.counter", {1}, Dtype::int32, whole);
  }
  const std::int64_t forward_bytes =
      kernels::attention_forward_workspace_bytes(options.attention, options.dtype, B, H, T, D);
  const std::int64_t backward_bytes =
      train ? kernels::attention_workspace_bytes(options.attention, options.dtype, B, H, T, D, options.target) : 0;
  if (const std::int64_t bytes = std::max(forward_bytes, backward_bytes); bytes > 0) {
    const Lifetime in_backward{time.backward(head - 1, 0), time.backward(0, 0)};
    t.attention_workspace = workspace("attention.workspace", {kernels::ceil_div(bytes, 4)}, Dtype::int32,
                                      forward_bytes > 0 ? whole : in_backward);
  }
  // The largest scratch of all kernels.
  if (const std::int64_t scratch =
          train ? kernels::attention_scratch_bytes(options.attention, options.dtype, T, D, options.target) : 0;
      scratch > 0) {
    layout.add_outside("attention pads", scratch);
  }
  return t;
}

}  // namespace tessera::model
