/// One token of each sequence through the model, with cached keys and values: the step of generation.
///
/// Tokens, positions, lengths and counters stay in device memory: a step reads the token that the previous step drew
/// and draws the next, without waiting for the host. All steps have the same launches, so a graph can replay them. Up
/// to Gemv::kMaxRows sequences, norms and SwiGLU are fused into the products with the weights; in a short context a
/// step then reads little but weights:
///
///   embedding   L x { norm + qkv;  rotate and append;  attention over S parts;  out;  norm + gate_up + SwiGLU;  down }
///   norm + head   draw   advance
///
/// More sequences take the kernels of training. Sums have one order for 1 and 2 sequences, with 16 bits on GPUs another
/// for 3 to Gemv::kMaxRows, and a third beyond.
///
/// On GPUs from sm_90 on, the kernels of a step with up to Gemv::kMaxRows sequences wait for their predecessors
/// themselves (kernels/cuda/chain.hpp), so a graph may chain them. They read weights before they wait, so weights must
/// be written before the graph is launched, not in it.
///
/// Async  enqueued on the caller's instance; a step neither fences nor allocates.
#pragma once

#include <Kokkos_Core.hpp>

#include <utility>
#include <vector>

#include "kernels/core/tensor.hpp"
#include "kernels/cuda/chain.hpp"
#include "kernels/cuda/target.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/gemv.hpp"
#include "memory/arena.hpp"
#include "memory/layout.hpp"
#include "model/hooks.hpp"
#include "model/params.hpp"

namespace tessera::model {

using Exec = kernels::Device;

/// Sequences whose products read the weights once (Gemv).
inline constexpr std::int64_t kFewSequences = kernels::Gemv<kernels::Device, float>::kMaxRows;

struct DecoderOptions {
  std::int64_t sequences;  // B
  Dtype dtype;
  std::int64_t parts = 0;  // S of attention; 0: as kernels::decode_parts chooses
  kernels::GemmMath math = kernels::GemmMath::full;
  kernels::Target target = kernels::kHere;
};

/// B, H, T, ... as in kernels/core/tensor.hpp; T is the capacity of the cache.
struct DecoderTensors {
  int parts;                                                         // S
  std::vector<std::pair<memory::TensorId, memory::TensorId>> cache;  // [B,H,T,D] each: keys and values of each block
  memory::TensorId tokens;                                           // [B] int32: of the next step
  memory::TensorId positions, keys;                                  // [B] int32: where it enters the cache; one more
  memory::TensorId drawn;                                            // [B] int32: tokens drawn so far
  memory::TensorId x, other;                                         // [B,C]   residual stream, in turn
  memory::TensorId delta, attn;                                      // [B,C]
  memory::TensorId qkv;                                              // [B,3C]
  memory::TensorId act;                                              // [B,F]
  memory::TensorId logits;                                           // [B,V]
  memory::TensorId partial = memory::kAbsent, arrived = memory::kAbsent;  // attention's, if S > 1
  memory::TensorId gemm_workspace = memory::kAbsent;                      // beyond Gemv::kMaxRows sequences only, as
  memory::TensorId normed, rrms, gate_up;                                 // these
};
DecoderTensors declare_decoder(const Shape& shape, const DecoderOptions& options, memory::Layout& layout);

/// Keys and values of a sequence: a [1,H,T,D] pair per block.
template <class Scalar>
struct KeyValueCache {
  std::vector<kernels::HeadTensor<Scalar, Exec>> keys, values;
};

/// How the next token is drawn (kernels/sample.hpp).
struct Sampling {
  double temperature;
  std::int64_t top_k;
  std::uint64_t seed;
};

template <class Scalar>
class Decoder {
 public:
  using Real = Accum<Scalar>;

  /// Views of the caller's tensors and weights; `rope` is the table of the transformer that fills the cache.
  Decoder(const Shape& shape, const ParamTable& table, const DecoderTensors& tensors, const DecoderOptions& options,
          const memory::Arena& arena, UnitPlaces<Scalar, Real> places, kernels::HeadRows<const Real, Exec> rope);

  /// Whether every kernel that a step launches, hooks' aside, waits for its predecessor.
  bool kernels_wait() const { return kernels::kKernelsWait && B_ <= kFewSequences; }
  KeyValueCache<Scalar> cache_of(int sequence) const;
  kernels::Vector<int, Exec> tokens() const { return ints(tensors_.tokens); }
  kernels::Vector<int, Exec> positions() const { return ints(tensors_.positions); }
  kernels::Vector<int, Exec> keys() const { return ints(tensors_.keys); }
  kernels::Vector<int, Exec> drawn() const { return ints(tensors_.drawn); }

  /// Pass::inference over tokens(), each at its position; replaces them by the next ones and advances the positions.
  /// A position must be below T.
  void step(const Exec& exec, const Sampling& sampling, Hooks& hooks);

 private:
  using Matrix = kernels::Matrix<Scalar, Exec>;
  using ConstMatrix = kernels::Matrix<const Scalar, Exec>;
  struct Stream {  // the residual stream is x + delta
    Matrix x, other, delta;
    bool has_delta = false;
  };

  template <class Number>
  Number* data(memory::TensorId id) const {
    return arena_.data<Number>(id);
  }
  kernels::Vector<int, Exec> ints(memory::TensorId id) const {
    return kernels::Vector<int, Exec>(data<std::int32_t>(id), B_);
  }
  Matrix rows(memory::TensorId id, std::int64_t columns) const { return Matrix(data<Scalar>(id), B_, columns); }
  kernels::HeadTensor<Scalar, Exec> cached(memory::TensorId id, int first, int count) const;
  const Scalar* weights(const Param& param) const { return places_.weights[param.unit] + table_.offset(param); }
  ConstMatrix weight(const Param& param) const { return ConstMatrix(weights(param), param.shape[0], param.shape[1]); }
  void attend(const Exec& exec, int block);
  void product(const Exec& exec, ConstMatrix x, const Param& param, Matrix y) const;
  void normed_product(const Exec& exec, Stream& stream, const Param& gain, const Param& param, Matrix y,
                      bool is_gated) const;

  Shape shape_;
  const ParamTable& table_;
  const DecoderTensors& tensors_;
  DecoderOptions options_;
  const memory::Arena& arena_;
  UnitPlaces<Scalar, Real> places_;
  kernels::HeadRows<const Real, Exec> rope_;
  kernels::Vector<float, Exec> gemm_workspace_;
  int B_;
};

}  // namespace tessera::model
