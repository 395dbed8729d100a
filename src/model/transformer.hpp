/// The transformer: token ids -> embedding -> L blocks -> norm -> head and loss, and the same list backwards.
///
///   block    x1 = x + delta                      (delta: what the previous block's down projection adds)
///            attn = attention(rope(rmsnorm(x1) Wqkv^T))
///            x2 = x1 + attn Wout^T
///            delta = swiglu(rmsnorm(x2) Wgate_up^T) Wdown^T
///   head     loss = sum over tokens of cross_entropy(rmsnorm(x2 + delta) Whead^T, target)
///
/// The object owns nothing: parameters, gradients and activations are slices of the caller's arena, so calls neither
/// allocate nor fence. A call may use fewer sequences than the arena was planned for.
///
/// Sources  pre-norm and SwiGLU as in Touvron et al. 2023, arXiv:2302.13971; RMSNorm arXiv:1910.07467; RoPE
///          arXiv:2104.09864; checkpointing Chen et al. 2016, arXiv:1604.06174.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/attention/attention.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/rope.hpp"
#include "memory/arena.hpp"
#include "model/activations.hpp"
#include "model/decoder.hpp"
#include "model/hooks.hpp"
#include "model/params.hpp"

namespace tessera::model {

/// Grad is the type of the parameters' gradients: Accum<Scalar>, or bfloat16 if Scalar is bfloat16.
template <class Scalar, class Grad = Accum<Scalar>>
class Transformer {
 public:
  using Real = Accum<Scalar>;

  /// `places` has the addresses of the tensors of `table`. Fills the RoPE table.
  Transformer(const Shape& shape, const ParamTable& table, const ActivationTensors& tensors,
              const ActivationOptions& options, const memory::Arena& arena, UnitPlaces<Scalar, Grad> places);

  /// The micro-batch that the next calls work on: `sequences` <= planned, each of `tokens` <= T ids. The ids are in
  /// inputs() and targets(), row-major; a target of -1 is ignored.
  void set_batch(int sequences, int tokens);

  /// Whether backward adds to the gradients of the weight matrices (the default) or overwrites them. It always adds to
  /// those of the embedding and of the norms' gains: clear them at the start of a step (is_added_to() selects them).
  void accumulate(bool adds) { accumulates_ = adds; }
  kernels::Vector<int, Exec> inputs() const { return ids(tensors_.inputs); }
  kernels::Vector<int, Exec> targets() const { return ids(tensors_.targets); }

  /// Embedding to final norm; `pass` is forward or inference. Leaves the head open: head() or close_head() follows.
  void forward(const Exec& exec, Pass pass, Hooks& hooks);

  /// Adds the sum of the token losses to `loss`. With gradients, also runs the head's backward: d_logits is scaled by
  /// `grad_scale`, the head's gradients are accumulated, and the gradient of the residual stream is left in place.
  /// Closes the head. Gradients require a preceding Pass::forward.
  void head(const Exec& exec, kernels::Value<double, Exec> loss, kernels::Value<const Real, Exec> grad_scale,
            bool with_gradients, Hooks& hooks);

  /// Closes the head after forward() or fill_cache() if no loss is computed.
  void close_head(Hooks& hooks) { hooks.after(head_pass_, head_unit()); }

  /// Backward pass of blocks and embedding; call after head(..., true).
  void backward(const Exec& exec, Hooks& hooks);

  /// For a micro-step without sequences on this rank: announces like forward(), head() with gradients and backward().
  void walk(Hooks& hooks) const { model::walk(table_, segments_, hooks); }

  /// Logits of rows first..first+rows-1 of the last forward pass, rows <= chunk_rows(), while the head is open. The
  /// View is valid until the next call.
  kernels::Matrix<const Scalar, Exec> logits(const Exec& exec, int first, int rows);
  int chunk_rows() const { return static_cast<int>(tensors_.chunk_rows); }

  /// Pass::inference over the first tokens of one sequence, whose keys and values are written to `cache`. Leaves the
  /// head open: close_head() follows.
  void fill_cache(const Exec& exec, const KeyValueCache<Scalar>& cache, Hooks& hooks);
  kernels::HeadRows<const Real, Exec> rope_table() const { return rope_; }

 private:
  using Matrix = kernels::Matrix<Scalar, Exec>;
  using ConstMatrix = kernels::Matrix<const Scalar, Exec>;

  template <class Number>
  Number* data(memory::TensorId id) const {
    return arena_.data<Number>(id);
  }
  Matrix rows(memory::TensorId id, std::int64_t columns) const { return Matrix(data<Scalar>(id), B_ * T_, columns); }
  kernels::Vector<Real, Exec> row_numbers(memory::TensorId id) const {
    return kernels::Vector<Real, Exec>(data<Real>(id), B_ * T_);
  }
  kernels::Vector<int, Exec> ids(memory::TensorId id) const {
    return kernels::Vector<int, Exec>(data<std::int32_t>(id), B_ * T_);
  }
  const Scalar* weights(const Param& param) const { return places_.weights[param.unit] + table_.offset(param); }
  Grad* grads(const Param& param) const { return places_.grads[param.unit] + table_.offset(param); }
  ConstMatrix weight(const Param& param) const { return ConstMatrix(weights(param), param.shape[0], param.shape[1]); }
  kernels::Matrix<Grad, Exec> d_weight(const Param& param) const {
    return kernels::Matrix<Grad, Exec>(grads(param), param.shape[0], param.shape[1]);
  }
  kernels::Matrix<Real, Exec> head_sum() const {
    return kernels::Matrix<Real, Exec>(data<Real>(tensors_.head_d_weight), shape_.V, shape_.C);
  }
  kernels::Attention<Exec, Scalar> attention(const BlockTensors& block) const;

  void norm(const Exec& exec, ConstMatrix x, ConstMatrix delta, Matrix residual, const Param& param, Matrix y,
            kernels::Vector<Real, Exec> rrms) const;
  void rope(const Exec& exec, Scalar* qkv, kernels::RopeDirection direction) const;
  template <class Out>
  void product(const Exec& exec, ConstMatrix a, kernels::Op op_a, ConstMatrix b, kernels::Op op_b,
               kernels::Matrix<Out, Exec> c, bool accumulates) const;                 // c = op(a) op(b), or added to c
  void linear(const Exec& exec, ConstMatrix x, const Param& param, Matrix y) const {  // y = x W^T
    product(exec, x, kernels::Op::none, weight(param), kernels::Op::transpose, y, false);
  }
  void linear_backward(const Exec& exec, ConstMatrix x, const Param& param, ConstMatrix d_y, Matrix d_x,
                       bool accumulates) const {
    linear_backward_weight(exec, x, d_y, d_weight(param), accumulates);
    linear_backward_input(exec, param, d_y, d_x);
  }
  template <class Out>  // d_w = d_y^T x
  void linear_backward_weight(const Exec& exec, ConstMatrix x, ConstMatrix d_y, kernels::Matrix<Out, Exec> d_w,
                              bool accumulates) const {
    product(exec, d_y, kernels::Op::transpose, x, kernels::Op::none, d_w, accumulates);
  }
  void linear_backward_input(const Exec& exec, const Param& param, ConstMatrix d_y, Matrix d_x) const {  // d_x = d_y W
    product(exec, d_y, kernels::Op::none, weight(param), kernels::Op::none, d_x, false);
  }
  void norm_backward(const Exec& exec, ConstMatrix x, const Param& param, kernels::Vector<Real, Exec> rrms,
                     ConstMatrix d_residual) const;

  struct Entry {  // a block's residual stream is x + delta
    ConstMatrix x, delta;
  };
  struct BlockUse {    // the purpose of a block's forward pass
    bool needs_delta;  // the output of the down projection is read
    bool has_ticks;    // its moments are on the timeline
    bool attends;      // else attention's output and log-sum-exp are already there
  };
  void block_forward(const Exec& exec, int block, const BlockTensors& t, Entry entry, Matrix delta_out, BlockUse use,
                     const KeyValueCache<Scalar>* cache, Hooks& hooks);
  void block_backward(const Exec& exec, int block, Hooks& hooks);
  void recompute_segment(const Exec& exec, int last_block, Hooks& hooks);
  void run_blocks(const Exec& exec, Pass pass, const KeyValueCache<Scalar>* cache, Hooks& hooks);
  int head_unit() const { return static_cast<int>(shape_.L) + 1; }

  Shape shape_;
  const ParamTable& table_;
  const ActivationTensors& tensors_;
  ActivationOptions options_;
  Segments segments_;
  const memory::Arena& arena_;
  UnitPlaces<Scalar, Grad> places_;
  kernels::HeadRows<const Real, Exec> rope_;
  kernels::Vector<float, Exec> gemm_workspace_;
  int B_ = 0, T_ = 0;
  bool accumulates_ = true;
  Pass head_pass_ = Pass::inference;  // of the last forward pass, which opened the head
};

}  // namespace tessera::model
