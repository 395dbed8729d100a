#include "model/transformer.hpp"  // the contract is there; here is how

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/core/cast_copy.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/residual_add.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/swiglu.hpp"

namespace tessera::model {

using namespace kernels;

namespace {

/// to[b,h,t,:] = from[b,h,t,:]. Kokkos' copy of strided tensors takes long to compile for a host.
template <class Scalar>
void copy_heads(const Exec& exec, const HeadTensor<Scalar, Exec>& from, const HeadTensor<Scalar, Exec>& to) {
  if constexpr (kIsHost<Exec>) {
    const int B = to.extent_int(0), H = to.extent_int(1), T = to.extent_int(2), D = to.extent_int(3);
    Kokkos::parallel_for("tessera::model::copy_heads", Kokkos::RangePolicy<Exec>(exec, 0, B * H * T), [=](int row) {
      const int b = row / T / H, h = row / T % H, t = row % T;
      std::memcpy(&to(b, h, t, 0), &from(b, h, t, 0), D * sizeof(Scalar));
    });
  } else {
    Kokkos::deep_copy(exec, to, from);
  }
}

}  // namespace

template <class Scalar, class Grad>
Transformer<Scalar, Grad>::Transformer(const Shape& shape, const ParamTable& table, const ActivationTensors& tensors,
                                       const ActivationOptions& options, const memory::Arena& arena,
                                       UnitPlaces<Scalar, Grad> places)
    : shape_(shape),
      table_(table),
      tensors_(tensors),
      options_(options),
      segments_{shape.L, options.checkpoint_blocks},
      arena_(arena),
      places_(std::move(places)),
      gemm_workspace_(arena.array<float>(tensors.gemm_workspace)) {
  const std::int64_t pairs = shape.D() / 2;
  Real* on_device = arena.data<Real>(tensors.rope_table);
  rope_ = HeadRows<const Real, Exec>(on_device, shape.T, pairs, 2);
  std::vector<Real> table_h(shape.T * pairs * 2);
  fill_rope_table(table_h.data(), static_cast<int>(shape.T), static_cast<int>(shape.D()), shape.rope_theta);
  Kokkos::deep_copy(Vector<Real, Exec>(on_device, table_h.size()),
                    Kokkos::View<const Real*, Kokkos::HostSpace, Unmanaged>(table_h.data(), table_h.size()));
  if (tensors.attention_counter != memory::kAbsent) {
    Kokkos::deep_copy(Value<std::int32_t, Exec>(arena.data<std::int32_t>(tensors.attention_counter)), 0);
  }
}

template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::set_batch(int sequences, int tokens) {
  TESSERA_REQUIRE(sequences >= 0 && sequences <= options_.sequences && tokens >= 1 && tokens <= shape_.T,
                  "transformer: batch larger than planned", sequences, options_.sequences, tokens, shape_.T);
  B_ = sequences;
  T_ = tokens;
}

// --- forward -------------------------------------------------------------------------------------------------------

template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::forward(const Exec& exec, Pass pass, Hooks& hooks) {
  TESSERA_REQUIRE(pass == Pass::forward || pass == Pass::inference,
                  "transformer: forward() takes Pass::forward or Pass::inference");
  run_blocks(exec, pass, nullptr, hooks);
}

template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::fill_cache(const Exec& exec, const KeyValueCache<Scalar>& cache, Hooks& hooks) {
  TESSERA_REQUIRE(B_ == 1, "transformer: a cache is filled sequence by sequence", B_);
  run_blocks(exec, Pass::inference, &cache, hooks);
}

template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::run_blocks(const Exec& exec, Pass pass, const KeyValueCache<Scalar>* cache,
                                           Hooks& hooks) {
  const Timeline& time = tensors_.timeline;

  hooks.before(pass, 0);
  hooks.tick(time.forward(0, 0));
  const Matrix embedded = rows(tensors_.forward[0].x1, shape_.C);
  EmbeddingForward<Exec, Scalar>{inputs(), weight(table_["embedding.weight"]), embedded}.launch(exec);
  hooks.after(pass, 0);

  Entry entry{embedded, {}};
  const Matrix delta = rows(tensors_.delta, shape_.C);
  for (int block = 0; block < static_cast<int>(shape_.L); ++block) {
    hooks.before(pass, block + 1);
    block_forward(exec, block, tensors_.forward[block], entry, delta,
                  {.needs_delta = true, .has_ticks = true, .attends = true}, cache, hooks);
    entry = {rows(tensors_.forward[block].x2, shape_.C), delta};
    hooks.after(pass, block + 1);
  }

  hooks.before(pass, head_unit());
  head_pass_ = pass;
  hooks.tick(time.forward(head_unit(), 0));
  norm(exec, entry.x, entry.delta, rows(tensors_.x_final, shape_.C), table_["head.norm.gain"],
       rows(tensors_.normed_final, shape_.C), row_numbers(tensors_.rrms_final));
}

template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::block_forward(const Exec& exec, int block, const BlockTensors& t, Entry entry,
                                              Matrix delta_out, BlockUse use, const KeyValueCache<Scalar>* cache,
                                              Hooks& hooks) {
  const BlockParams p = block_params(table_, block);
  const auto tick = [&](int moment) {
    if (use.has_ticks) hooks.tick(tensors_.timeline.forward(block + 1, moment));
    hooks.progress();
  };
  const Matrix normed1 = rows(t.normed1, shape_.C), qkv = rows(t.qkv, 3 * shape_.C), attn = rows(t.attn, shape_.C);
  const Matrix x1 = rows(t.x1, shape_.C), x2 = rows(t.x2, shape_.C);

  tick(0);
  norm(exec, entry.x, entry.delta, x1, p.attn_norm, normed1, row_numbers(t.rrms1));
  tick(1);
  linear(exec, normed1, p.qkv, qkv);
  tick(2);
  const int H = static_cast<int>(shape_.H), D = static_cast<int>(shape_.D());
  rope(exec, qkv.data(), RopeDirection::forward);
  if (cache) {
    const auto store = [&](const HeadTensor<Scalar, Exec>& to, int part) {
      const auto first = Kokkos::subview(to, Kokkos::ALL, Kokkos::ALL, Kokkos::pair<int, int>(0, T_), Kokkos::ALL);
      copy_heads<Scalar>(exec, heads_of_qkv<Exec>(qkv.data(), part, B_, H, T_, D), first);
    };
    store(cache->keys[block], 1);
    store(cache->values[block], 2);
  }
  if (use.attends) attention(t).forward(exec);
  tick(3);
  linear(exec, attn, p.out, delta_out);
  tick(4);
  norm(exec, x1, delta_out, x2, p.mlp_norm, rows(t.normed2, shape_.C), row_numbers(t.rrms2));
  tick(5);
  linear(exec, rows(t.normed2, shape_.C), p.gate_up, rows(t.gate_up, 2 * shape_.F));
  tick(6);
  SwigluForward<Exec, Scalar>{rows(t.gate_up, 2 * shape_.F), rows(t.act, shape_.F)}.launch(exec);
  tick(7);
  if (use.needs_delta) linear(exec, rows(t.act, shape_.F), p.down, delta_out);
}

// --- head ----------------------------------------------------------------------------------------------------------

template <class Scalar, class Grad>
kernels::Matrix<const Scalar, Exec> Transformer<Scalar, Grad>::logits(const Exec& exec, int first, int count) {
  TESSERA_REQUIRE(first >= 0 && count >= 0 && count <= chunk_rows() && first + count <= B_ * T_,
                  "transformer: rows of logits out of range", first, count, chunk_rows(), B_ * T_);
  const ConstMatrix normed(rows(tensors_.normed_final, shape_.C).data() + std::int64_t{first} * shape_.C, count,
                           shape_.C);
  const Matrix out(data<Scalar>(tensors_.logits), count, shape_.V);
  linear(exec, normed, table_["head.weight"], out);
  return out;
}

template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::head(const Exec& exec, Value<double, Exec> loss, Value<const Real, Exec> grad_scale,
                                     bool with_gradients, Hooks& hooks) {
  const Timeline& time = tensors_.timeline;
  const int unit = head_unit(), N = B_ * T_;
  const Param &param = table_["head.weight"], &gain = table_["head.norm.gain"];
  if (with_gradients) {
    TESSERA_REQUIRE(head_pass_ == Pass::forward, "transformer: gradients need Pass::forward first");
    hooks.before(Pass::backward, unit);
  }
  hooks.tick(time.backward(unit, 0));

  for (int first = 0; first < N; first += chunk_rows()) {
    const int count = std::min(chunk_rows(), N - first);
    logits(exec, first, count);
    const Matrix chunk(data<Scalar>(tensors_.logits), count, shape_.V);
    const Vector<Real, Exec> row_loss(data<Real>(tensors_.row_loss), count);
    const Vector<const int, Exec> chunk_targets(targets().data() + first, count);
    CrossEntropy<Exec, Scalar>{chunk, chunk_targets, row_loss, grad_scale, with_gradients}.launch(exec);
    LossSum<Exec, Scalar>{row_loss, loss}.launch(exec);
    if (with_gradients) {
      const std::int64_t offset = std::int64_t{first} * shape_.C;
      const ConstMatrix normed(rows(tensors_.normed_final, shape_.C).data() + offset, count, shape_.C);
      const Matrix d_normed(rows(tensors_.d_normed, shape_.C).data() + offset, count, shape_.C);
      if (tensors_.head_d_weight == memory::kAbsent) {
        linear_backward(exec, normed, param, chunk, d_normed, accumulates_ || first > 0);
      } else {  // summed over the chunks in full before it is rounded
        linear_backward_weight(exec, normed, chunk, head_sum(), first > 0);
        linear_backward_input(exec, param, chunk, d_normed);
      }
    }
    hooks.progress();
  }
  close_head(hooks);
  if (!with_gradients) return;
  if (tensors_.head_d_weight != memory::kAbsent) {
    CastCopy<Exec, Real, Grad>{Vector<const Real, Exec>(head_sum().data(), param.count),
                               Vector<Grad, Exec>(d_weight(param).data(), param.count)}
        .launch(exec);
  }
  hooks.gradient_enqueued(param.number);
  hooks.tick(time.backward(unit, 1));
  norm_backward(exec, rows(tensors_.x_final, shape_.C), gain, row_numbers(tensors_.rrms_final), {});
  hooks.gradient_enqueued(gain.number);
  hooks.after(Pass::backward, unit);
}

// --- backward ------------------------------------------------------------------------------------------------------

template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::backward(const Exec& exec, Hooks& hooks) {
  for (int block = static_cast<int>(shape_.L) - 1; block >= 0; --block) {
    hooks.tick(tensors_.timeline.backward(block + 1, 0));
    if (segments_.ends(block)) recompute_segment(exec, block, hooks);
    hooks.before(Pass::backward, block + 1);
    if (segments_.ends(block)) hooks.after(Pass::recompute, block + 1);
    block_backward(exec, block, hooks);
    hooks.after(Pass::backward, block + 1);
  }
  hooks.before(Pass::backward, 0);
  hooks.tick(tensors_.timeline.backward(0, 0));
  using Embedding = EmbeddingBackward<Exec, Scalar, Grad>;
  const int N = B_ * T_;
  const Param& embedding = table_["embedding.weight"];
  Embedding{.tokens = inputs(),
            .d_out = rows(tensors_.d_x, shape_.C),
            .d_weight = d_weight(embedding),
            .order = Vector<int, Exec>(data<std::int32_t>(tensors_.embedding_order), Embedding::order_size(N)),
            .partial = kernels::Matrix<Real, Exec>(data<Real>(tensors_.embedding_partial), Embedding::partial_rows(N),
                                                   shape_.C)}
      .launch(exec);
  hooks.gradient_enqueued(embedding.number);
  hooks.after(Pass::backward, 0);
}

/// Rebuilds the activations of the blocks from the last kept residual up to `last_block`, which stays open.
template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::recompute_segment(const Exec& exec, int last_block, Hooks& hooks) {
  const int first = segments_.first(last_block);
  const Matrix delta = rows(tensors_.recompute_delta, shape_.C);
  Entry entry{rows(tensors_.backward[first].x1, shape_.C), {}};  // kept, with its delta already added
  for (int block = first; block <= last_block; ++block) {
    hooks.before(Pass::recompute, block + 1);
    block_forward(exec, block, tensors_.backward[block], entry, delta,
                  {.needs_delta = block < last_block, .has_ticks = false, .attends = options_.recomputes_attention},
                  nullptr, hooks);
    entry = {rows(tensors_.backward[block].x2, shape_.C), delta};
    if (block < last_block) hooks.after(Pass::recompute, block + 1);
  }
}

template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::block_backward(const Exec& exec, int block, Hooks& hooks) {
  const BlockParams p = block_params(table_, block);
  const BlockTensors& t = tensors_.backward[block];
  const BlockGradients& g = tensors_.gradients[block];
  const auto tick = [&](int moment) {
    hooks.tick(tensors_.timeline.backward(block + 1, moment));
    hooks.progress();
  };
  const Matrix d_x = rows(tensors_.d_x, shape_.C), d_normed = rows(tensors_.d_normed, shape_.C);

  // d_x is the gradient of the stream after the block, hence of both x2 and the down projection's output
  tick(1);
  const Matrix d_act = rows(g.d_act, shape_.F);
  linear_backward_input(exec, p.down, d_x, d_act);
  tick(2);
  const Matrix gate_up = rows(t.gate_up, 2 * shape_.F);
  SwigluBackward<Exec, Scalar>{.gate_up = gate_up, .d_out = d_act, .d_gate_up = gate_up, .out = d_act}.launch(exec);
  linear_backward_weight(exec, d_act, d_x, d_weight(p.down), accumulates_);
  hooks.gradient_enqueued(p.down.number);
  tick(3);
  linear_backward(exec, rows(t.normed2, shape_.C), p.gate_up, gate_up, d_normed, accumulates_);
  hooks.gradient_enqueued(p.gate_up.number);
  tick(4);
  norm_backward(exec, rows(t.x2, shape_.C), p.mlp_norm, row_numbers(t.rrms2), d_x);
  hooks.gradient_enqueued(p.mlp_norm.number);

  tick(5);
  const Matrix d_attn = rows(g.d_attn, shape_.C), d_qkv = rows(g.d_qkv, 3 * shape_.C);
  linear_backward(exec, rows(t.attn, shape_.C), p.out, d_x, d_attn, accumulates_);
  hooks.gradient_enqueued(p.out.number);
  tick(6);
  const int H = static_cast<int>(shape_.H), D = static_cast<int>(shape_.D());
  const auto part = [&](int i) { return heads_of_qkv<Exec>(d_qkv.data(), i, B_, H, T_, D); };
  typename Attention<Exec, Scalar>::Gradients gradients{
      heads_of_rows<Exec>(d_attn.data(), B_, H, T_, D), part(0), part(1), part(2), {}};
  if (g.d_scores != memory::kAbsent) {
    gradients.d_scores = contiguous_heads<Exec>(data<Scalar>(g.d_scores), B_, H, T_, T_);
  }
  const Attention<Exec, Scalar> attended = attention(t);
  gradients.workspace = attended.workspace;  // forward has finished with it
  attended.backward(exec, gradients);
  rope(exec, d_qkv.data(), RopeDirection::backward);
  tick(7);
  linear_backward(exec, rows(t.normed1, shape_.C), p.qkv, d_qkv, d_normed, accumulates_);
  hooks.gradient_enqueued(p.qkv.number);
  norm_backward(exec, rows(t.x1, shape_.C), p.attn_norm, row_numbers(t.rrms1), d_x);
  hooks.gradient_enqueued(p.attn_norm.number);
}

// --- pieces --------------------------------------------------------------------------------------------------------

template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::norm(const Exec& exec, ConstMatrix x, ConstMatrix delta, Matrix residual,
                                     const Param& param, Matrix y, Vector<Real, Exec> rrms) const {
  if (delta.data() && !options_.is_fused) {
    const std::size_t n = x.size();
    ResidualAdd<Exec, Scalar>{.x = Vector<const Scalar, Exec>(x.data(), n),
                              .delta = Vector<const Scalar, Exec>(delta.data(), n),
                              .out = Vector<Scalar, Exec>(residual.data(), n)}
        .launch(exec);
    x = residual;
    delta = {};
  }
  const bool in_place = delta.data() == nullptr;  // x is already the residual stream
  RmsnormForward<Exec, Scalar>{.x = x,
                               .delta = delta,
                               .residual = in_place ? Matrix{} : residual,
                               .gain = Vector<const Scalar, Exec>(weights(param), param.shape[0]),
                               .y = y,
                               .rrms = rrms,
                               .eps = static_cast<Real>(shape_.norm_eps)}
      .launch(exec);
}

/// Rotates q and k of a fused qkv buffer in place.
template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::rope(const Exec& exec, Scalar* qkv, RopeDirection direction) const {
  const int H = static_cast<int>(shape_.H), D = static_cast<int>(shape_.D());
  if (options_.is_fused) {
    Rope<Exec, Scalar>{heads_of_q_and_k<Exec>(qkv, B_, H, T_, D), rope_, 0, direction}.launch(exec);
    return;
  }
  for (const int part : {0, 1}) {
    Rope<Exec, Scalar>{heads_of_qkv<Exec>(qkv, part, B_, H, T_, D), rope_, 0, direction}.launch(exec);
  }
}

template <class Scalar, class Grad>
template <class Out>
void Transformer<Scalar, Grad>::product(const Exec& exec, ConstMatrix a, Op op_a, ConstMatrix b, Op op_b,
                                        kernels::Matrix<Out, Exec> c, bool accumulates) const {
  Gemm<Exec, Scalar, Out>{.a = a,
                          .op_a = op_a,
                          .b = b,
                          .op_b = op_b,
                          .c = c,
                          .accumulate = accumulates,
                          .workspace = gemm_workspace_,
                          .math = options_.math}
      .launch(exec);
}

/// d_x = the norm's gradient of d_normed, plus d_residual if there is one.
template <class Scalar, class Grad>
void Transformer<Scalar, Grad>::norm_backward(const Exec& exec, ConstMatrix x, const Param& param,
                                              Vector<Real, Exec> rrms, ConstMatrix d_residual) const {
  const kernels::Matrix<Real, Exec> partial(data<Real>(tensors_.norm_partial),
                                            RmsnormBackward<Exec, Scalar, Grad>::kPartials, shape_.C);
  RmsnormBackward<Exec, Scalar, Grad>{.x = x,
                                      .gain = Vector<const Scalar, Exec>(weights(param), param.shape[0]),
                                      .rrms = rrms,
                                      .d_y = rows(tensors_.d_normed, shape_.C),
                                      .d_residual = d_residual,
                                      .d_x = rows(tensors_.d_x, shape_.C),
                                      .d_gain = Vector<Grad, Exec>(grads(param), param.shape[0]),
                                      .partial = partial}
      .launch(exec);
}

template <class Scalar, class Grad>
Attention<Exec, Scalar> Transformer<Scalar, Grad>::attention(const BlockTensors& t) const {
  const int H = static_cast<int>(shape_.H), D = static_cast<int>(shape_.D());
  Scalar* qkv = data<Scalar>(t.qkv);
  HeadTensor<Scalar, Exec> probabilities;
  if (t.probabilities != memory::kAbsent) {
    probabilities = contiguous_heads<Exec>(data<Scalar>(t.probabilities), B_, H, T_, T_);
  }
  Vector<std::byte, Exec> workspace;
  if (tensors_.attention_workspace != memory::kAbsent) {
    workspace = Vector<std::byte, Exec>(reinterpret_cast<std::byte*>(data<std::int32_t>(tensors_.attention_workspace)),
                                        arena_.layout()[tensors_.attention_workspace].bytes);
  }
  return {.choice = options_.attention,
          .q = heads_of_qkv<Exec>(qkv, 0, B_, H, T_, D),
          .k = heads_of_qkv<Exec>(qkv, 1, B_, H, T_, D),
          .v = heads_of_qkv<Exec>(qkv, 2, B_, H, T_, D),
          .out = heads_of_rows<Exec>(data<Scalar>(t.attn), B_, H, T_, D),
          .lse = HeadRows<Real, Exec>(data<Real>(t.lse), B_, H, T_),
          .probabilities = probabilities,
          .scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(D))),
          .causal = true,
          .math = options_.math,
          .tile_counter = Value<std::int32_t, Exec>(data<std::int32_t>(tensors_.attention_counter)),
          .workspace = workspace};
}

#define TESSERA_INSTANTIATE(Exec, Scalar) template class Transformer<Scalar>;
TESSERA_FOR_EACH_SCALAR(TESSERA_INSTANTIATE, kernels::Device)
#undef TESSERA_INSTANTIATE
template class Transformer<bfloat16, bfloat16>;

}  // namespace tessera::model
