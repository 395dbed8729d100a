#include "model/decoder.hpp"  // the contract is there; here is how

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/attention/decode/decode.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/embedding.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/sample.hpp"
#include "kernels/swiglu.hpp"

namespace tessera::model {

using namespace kernels;

namespace {

/// The most workspace, in floats, that any GEMM of the step needs.
std::int64_t gemm_floats(const Shape& s, const DecoderOptions& o) {
  const auto floats = [&](std::int64_t in, std::int64_t out) -> std::int64_t {
    if (o.dtype == Dtype::fp64) return 0;
    if (o.dtype == Dtype::fp32) return gemm_workspace<float, float>(o.target, o.sequences, out, in, o.math);
    return gemm_workspace<bfloat16, bfloat16>(o.target, o.sequences, out, in);
  };
  return std::max({floats(s.C, 3 * s.C), floats(s.C, 2 * s.F), floats(s.F, s.C), floats(s.C, s.V)});
}

/// Makes the drawn token the next step's input, one position further.
struct Advance {
  Vector<int, Exec> positions, keys;

  KOKKOS_FUNCTION void operator()(const int b) const {
    let_successor_start();
    wait_for_predecessor();
    ++positions(b);
    ++keys(b);
  }
};

}  // namespace

DecoderTensors declare_decoder(const Shape& s, const DecoderOptions& options, memory::Layout& layout) {
  using memory::Category;
  const auto whole = memory::Lifetime::whole_run();
  const std::int64_t B = options.sequences, heads = B * s.H;
  const Dtype real = options.dtype == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32;
  const auto add = [&](const char* name, std::vector<std::int64_t> shape, Dtype dtype) {
    return layout.add(std::string("decode.") + name, std::move(shape), dtype, Category::activations, whole);
  };
  DecoderTensors t;
  t.parts = static_cast<int>(options.parts > 0 ? options.parts : decode_parts(options.target, heads, s.T));
  for (int block = 0; block < s.L; ++block) {
    const auto cache = [&](const char* name) {
      return layout.add("cache." + std::to_string(block) + name, {B, s.H, s.T, s.D()}, options.dtype,
                        Category::activations, whole);
    };
    const memory::TensorId keys = cache(".keys");
    t.cache.emplace_back(keys, cache(".values"));
  }
  t.tokens = add("tokens", {B}, Dtype::int32);
  t.positions = add("positions", {B}, Dtype::int32);
  t.keys = add("keys", {B}, Dtype::int32);
  t.drawn = add("drawn", {B}, Dtype::int32);
  t.x = add("x", {B, s.C}, options.dtype);
  t.other = add("other", {B, s.C}, options.dtype);
  t.delta = add("delta", {B, s.C}, options.dtype);
  t.attn = add("attn", {B, s.C}, options.dtype);
  t.qkv = add("qkv", {B, 3 * s.C}, options.dtype);
  t.act = add("act", {B, s.F}, options.dtype);
  t.logits = add("logits", {B, s.V}, options.dtype);
  if (t.parts > 1) {
    t.partial =
        layout.add("decode.partial", {decode_partials(heads, s.D(), t.parts)}, real, Category::workspace, whole);
    t.arrived = layout.add("decode.arrived", {heads}, Dtype::int32, Category::workspace, whole);
  }
  if (B > kFewSequences) {
    t.normed = add("normed", {B, s.C}, options.dtype);
    t.rrms = add("rrms", {B}, real);
    t.gate_up = add("gate_up", {B, 2 * s.F}, options.dtype);
    if (const std::int64_t floats = gemm_floats(s, options); floats > 0) {
      t.gemm_workspace = layout.add("decode.gemm_workspace", {floats}, Dtype::fp32, Category::workspace, whole);
    }
  }
  return t;
}

template <class Scalar>
Decoder<Scalar>::Decoder(const Shape& shape, const ParamTable& table, const DecoderTensors& tensors,
                         const DecoderOptions& options, const memory::Arena& arena, UnitPlaces<Scalar, Real> places,
                         HeadRows<const Real, Exec> rope)
    : shape_(shape),
      table_(table),
      tensors_(tensors),
      options_(options),
      arena_(arena),
      places_(std::move(places)),
      rope_(rope),
      gemm_workspace_(arena.array<float>(tensors.gemm_workspace)),
      B_(static_cast<int>(options.sequences)) {
  if (tensors.arrived != memory::kAbsent) {
    Kokkos::deep_copy(arena.array<std::int32_t>(tensors.arrived), 0);
  }
}

template <class Scalar>
KeyValueCache<Scalar> Decoder<Scalar>::cache_of(int sequence) const {
  KeyValueCache<Scalar> cache;
  for (const auto& [keys, values] : tensors_.cache) {
    cache.keys.push_back(cached(keys, sequence, 1));
    cache.values.push_back(cached(values, sequence, 1));
  }
  return cache;
}

template <class Scalar>
void Decoder<Scalar>::step(const Exec& exec, const Sampling& sampling, Hooks& hooks) {
  const auto within = [&](int unit, const auto& work) {
    hooks.before(Pass::inference, unit);
    work();
    hooks.progress();
    hooks.after(Pass::inference, unit);
  };
  Stream stream{rows(tensors_.x, shape_.C), rows(tensors_.other, shape_.C), rows(tensors_.delta, shape_.C)};
  within(0, [&] {
    EmbeddingForward<Exec, Scalar>{tokens(), weight(table_["embedding.weight"]), stream.x}.launch(exec);
  });

  const Matrix qkv = rows(tensors_.qkv, 3 * shape_.C), attn = rows(tensors_.attn, shape_.C);
  const Matrix act = rows(tensors_.act, shape_.F);
  for (int block = 0; block < static_cast<int>(shape_.L); ++block) {
    within(block + 1, [&] {
      const BlockParams p = block_params(table_, block);
      normed_product(exec, stream, p.attn_norm, p.qkv, qkv, false);
      attend(exec, block);
      product(exec, attn, p.out, stream.delta);
      stream.has_delta = true;
      normed_product(exec, stream, p.mlp_norm, p.gate_up, act, true);
      product(exec, act, p.down, stream.delta);
      stream.has_delta = true;
    });
  }

  within(static_cast<int>(shape_.L) + 1, [&] {
    const Matrix logits = rows(tensors_.logits, shape_.V);
    normed_product(exec, stream, table_["head.norm.gain"], table_["head.weight"], logits, false);
    SampleTokens<Exec, Scalar>{.logits = logits,
                               .drawn = drawn(),
                               .tokens = tokens(),
                               .temperature = sampling.temperature,
                               .top_k = sampling.top_k,
                               .seed = sampling.seed}
        .launch(exec);
    Kokkos::parallel_for("tessera::model::advance", Kokkos::RangePolicy<Exec>(exec, 0, B_),
                         Advance{positions(), keys()});
  });
}

/// qkv -> attn, over the cached keys, this token's included.
template <class Scalar>
void Decoder<Scalar>::attend(const Exec& exec, int block) {
  const int H = static_cast<int>(shape_.H), D = static_cast<int>(shape_.D());
  const auto part = [&](int i) { return heads_of_qkv<Exec>(data<Scalar>(tensors_.qkv), i, B_, H, 1, D); };
  const auto all_keys = cached(tensors_.cache[block].first, 0, B_);
  const auto all_values = cached(tensors_.cache[block].second, 0, B_);
  CacheAppend<Exec, Scalar>{.q = part(0),
                            .k = part(1),
                            .v = part(2),
                            .table = rope_,
                            .positions = positions(),
                            .keys = all_keys,
                            .values = all_values}
      .launch(exec);
  DecodeAttention<Exec, Scalar>{.q = part(0),
                                .k = all_keys,
                                .v = all_values,
                                .keys = keys(),
                                .out = heads_of_rows<Exec>(data<Scalar>(tensors_.attn), B_, H, 1, D),
                                .lse = {},
                                .scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(D))),
                                .parts = tensors_.parts,
                                .partial = arena_.array<Real>(tensors_.partial),
                                .arrived = arena_.array<std::int32_t>(tensors_.arrived)}
      .launch(exec);
}

template <class Scalar>
void Decoder<Scalar>::product(const Exec& exec, ConstMatrix x, const Param& param, Matrix y) const {
  const ConstMatrix w = weight(param);
  if (B_ <= kFewSequences) return Gemv<Exec, Scalar>{.x = x, .w = w, .y = y}.launch(exec);
  Gemm<Exec, Scalar>{.a = x,
                     .op_a = Op::none,
                     .b = w,
                     .op_b = Op::transpose,
                     .c = y,
                     .accumulate = false,
                     .workspace = gemm_workspace_,
                     .math = options_.math}
      .launch(exec);
}

/// y = rmsnorm(stream) W^T, and SwiGLU of that if gated; delta becomes part of stream.x.
template <class Scalar>
void Decoder<Scalar>::normed_product(const Exec& exec, Stream& stream, const Param& gain, const Param& param, Matrix y,
                                     bool is_gated) const {
  const ConstMatrix delta = stream.has_delta ? ConstMatrix(stream.delta) : ConstMatrix();
  const Matrix residual = stream.has_delta ? stream.other : Matrix();
  const Vector<const Scalar, Exec> gains(weights(gain), gain.shape[0]);
  const Real eps = static_cast<Real>(shape_.norm_eps);
  if (B_ <= kFewSequences) {
    Gemv<Exec, Scalar>{.x = stream.x,
                       .w = weight(param),
                       .y = y,
                       .gain = gains,
                       .delta = delta,
                       .residual = residual,
                       .eps = eps,
                       .is_gated = is_gated}
        .launch(exec);
  } else {
    const Matrix normed = rows(tensors_.normed, shape_.C);
    const Vector<Real, Exec> rrms(data<Real>(tensors_.rrms), B_);
    RmsnormForward<Exec, Scalar>{
        .x = stream.x, .delta = delta, .residual = residual, .gain = gains, .y = normed, .rrms = rrms, .eps = eps}
        .launch(exec);
    const Matrix result = is_gated ? rows(tensors_.gate_up, 2 * shape_.F) : y;
    product(exec, normed, param, result);
    if (is_gated) SwigluForward<Exec, Scalar>{result, y}.launch(exec);
  }
  if (stream.has_delta) std::swap(stream.x, stream.other);
  stream.has_delta = false;
}

/// Sequences first .. first + count - 1 of a cache.
template <class Scalar>
HeadTensor<Scalar, Exec> Decoder<Scalar>::cached(memory::TensorId id, int first, int count) const {
  const int H = static_cast<int>(shape_.H), T = static_cast<int>(shape_.T), D = static_cast<int>(shape_.D());
  return contiguous_heads<Exec>(data<Scalar>(id) + std::int64_t{first} * H * T * D, count, H, T, D);
}

#define TESSERA_INSTANTIATE(Exec, Scalar) template class Decoder<Scalar>;
TESSERA_FOR_EACH_SCALAR(TESSERA_INSTANTIATE, kernels::Device)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::model
