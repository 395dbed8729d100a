/// One forward and backward pass of the transformer, everything in and out as doubles on the host.
///
///   Pass<double> pass(shape, {.sequences = 3});
///   pass.set_params(values);                          // flat, in the order of ParamTable
///   pass.run(tokens, B, T);                           // tokens [B,T+1]
///   pass.loss, pass.grads                             // of the mean over the tokens
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "memory/arena.hpp"
#include "model/transformer.hpp"
#include "support/buffer.hpp"

namespace tessera::test {

using kernels::Device;

struct PassOptions {
  std::int64_t sequences;
  std::int64_t checkpoint_blocks = 0;
  kernels::AttentionKind attention = kernels::AttentionKind::flash2;
  std::int64_t chunk_rows = 0;  // rows of logits at a time; 0: as declared
  bool for_training = true;     // false: run(false) only
};

/// Copies host values into an array of another type.
template <class To, class From>
void upload(To* to, const std::vector<From>& from) {
  std::vector<To> host(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) host[i] = static_cast<To>(from[i]);
  upload_bytes(host.data(), to, host.size() * sizeof(To));
}

template <class From>
std::vector<double> download(const From* from, std::int64_t count) {
  std::vector<From> host(count);
  download_bytes(from, host.data(), count * sizeof(From));
  return std::vector<double>(host.begin(), host.end());
}

/// Grad is the storage type of parameter gradients.
template <class Scalar, class Grad = Accum<Scalar>>
class Pass {
 public:
  using Real = Accum<Scalar>;

  Pass(const model::Shape& model_shape, const PassOptions& pass_options)
      : shape(model_shape),
        table(model_shape),
        options{.sequences = pass_options.sequences,
                .dtype = kDtype<Scalar>,
                .for_training = pass_options.for_training,
                .checkpoint_blocks = pass_options.checkpoint_blocks,
                .attention = pass_options.attention,
                .has_narrow_gradients = kIsNarrow},
        params_id_(layout.add("params", {table.flat_count()}, kDtype<Scalar>, memory::Category::parameters, whole())),
        grads_id_(layout.add("grads", {table.flat_count()}, kDtype<Grad>, memory::Category::gradients, whole())),
        scale_id_(layout.add("grad_scale", {1}, kDtype<Real>, memory::Category::workspace, whole())),
        loss_id_(layout.add("loss", {1}, Dtype::fp64, memory::Category::workspace, whole())),
        tensors(declare(pass_options.chunk_rows)),
        arena(layout),
        transformer(shape, table, tensors, options, arena,
                    model::places_in<Scalar, Grad>(table, params(), arena.template data<Grad>(grads_id_))) {}
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  void set_params(const std::vector<double>& flat) { upload(arena.template data<Scalar>(params_id_), flat); }
  const Scalar* params() const { return arena.template data<Scalar>(params_id_); }
  model::UnitPlaces<Scalar, Real> weights() const { return model::places_in<Scalar, Real>(table, params(), nullptr); }

  /// Tokens [B,T+1]: the first T of a row are inputs, the last T targets.
  void set_tokens(const std::vector<int>& tokens, int B, int T) {
    std::vector<int> inputs, targets;
    for (int b = 0; b < B; ++b) {
      const auto row = tokens.begin() + b * (T + 1);
      inputs.insert(inputs.end(), row, row + T);
      targets.insert(targets.end(), row + 1, row + T + 1);
    }
    transformer.set_batch(B, T);
    upload(transformer.inputs().data(), inputs);
    upload(transformer.targets().data(), targets);
    rows_ = B * T;
  }

  /// Forward and, with gradients, backward, from gradients and a loss of zero. `grad_scale` 0: 1 / tokens.
  void run(bool with_gradients = true, model::Hooks* hooks = nullptr, double grad_scale = 0) {
    upload(arena.template data<Grad>(grads_id_), std::vector<double>(table.flat_count(), 0.0));
    upload(arena.template data<double>(loss_id_), std::vector<double>{0.0});
    add(with_gradients, hooks, grad_scale);
  }

  /// The same, added to the current gradients and loss.
  void add(bool with_gradients = true, model::Hooks* hooks = nullptr, double grad_scale = 0) {
    model::Hooks silent;
    model::Hooks& listening = hooks ? *hooks : silent;
    const Device exec;
    double* const loss_on_device = arena.template data<double>(loss_id_);
    Real* const scale_on_device = arena.template data<Real>(scale_id_);
    upload(scale_on_device, std::vector<double>{grad_scale != 0 ? grad_scale : 1.0 / rows_});
    transformer.forward(exec, with_gradients ? model::Pass::forward : model::Pass::inference, listening);
    transformer.head(exec, kernels::Value<double, Device>(loss_on_device),
                     kernels::Value<const Real, Device>(scale_on_device), with_gradients, listening);
    if (with_gradients) transformer.backward(exec, listening);
    exec.fence();
    loss_sum = download(loss_on_device, 1)[0];
    loss = loss_sum / rows_;
    if (with_gradients) grads = download(arena.template data<Grad>(grads_id_), table.flat_count());
  }
  void run(const std::vector<int>& tokens, int B, int T) {
    set_tokens(tokens, B, T);
    run();
  }

  /// All logits [B*T,V] after run(false); backward reuses the memory of the last norm.
  std::vector<double> logits() {
    std::vector<double> all;
    for (int first = 0; first < rows_; first += transformer.chunk_rows()) {
      const int count = std::min(transformer.chunk_rows(), rows_ - first);
      const auto chunk = transformer.logits(Device(), first, count);
      Kokkos::fence();
      const std::vector<double> values = download(chunk.data(), std::int64_t{count} * shape.V);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  std::vector<double> grad(const model::Param& param) const { return slice(grads, param); }
  static std::vector<double> slice(const std::vector<double>& flat, const model::Param& param) {
    return {flat.begin() + param.first, flat.begin() + param.first + param.count};
  }

  static constexpr bool kIsNarrow = !std::is_same_v<Grad, Real>;
  static constexpr memory::Lifetime whole() { return memory::Lifetime::whole_run(); }

  model::Shape shape;
  model::ParamTable table;
  model::ActivationOptions options;
  memory::Layout layout;

 private:
  model::ActivationTensors declare(std::int64_t chunk_rows) {
    model::ActivationTensors declared = model::declare_activations(shape, options, layout);
    if (chunk_rows != 0) declared.chunk_rows = std::min(chunk_rows, declared.chunk_rows);
    if (kIsNarrow && declared.head_d_weight == memory::kAbsent && declared.chunk_rows < options.sequences * shape.T) {
      declared.head_d_weight =
          layout.add("head.d_weight", {shape.V, shape.C}, kDtype<Real>, memory::Category::gradients, whole());
    }
    layout.place();
    return declared;
  }

  memory::TensorId params_id_, grads_id_, scale_id_, loss_id_;
  int rows_ = 0;

 public:
  model::ActivationTensors tensors;
  memory::Arena arena;
  model::Transformer<Scalar, Grad> transformer;
  double loss_sum = 0, loss = 0;  // over the tokens, per token (nats)
  std::vector<double> grads;      // flat
};

}  // namespace tessera::test
