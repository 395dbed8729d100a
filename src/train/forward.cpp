#include "train/forward.hpp"  // the contract is there; here is how

#include <algorithm>
#include <vector>

#include "kernels/core/compat.hpp"
#include "kernels/core/ranges.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/gemm/gemm.hpp"
#include "model/initial_values.hpp"
#include "model/transformer.hpp"

namespace tessera::train {

using Exec = kernels::Device;

class Forward::Model {
 public:
  virtual ~Model() = default;
  virtual void clear_loss(const Exec& exec) = 0;
  /// Adds the loss of a micro-batch: rows 0 .. sequences - 1 of `tokens`.
  virtual void run(const Exec& exec, const HostTokens& tokens, int sequences) = 0;
  virtual double loss(const Exec& exec) const = 0;  // waits
};

template <class Scalar>
class Forward::ModelOf final : public Model {
 public:
  ModelOf(const ForwardPlan& plan, const memory::Arena<Exec>& arena, const Exec& exec, std::uint64_t seed)
      : plan_(plan),
        weights_(arena.template data<Scalar>(plan.params)),
        loss_(arena.template data<double>(plan.loss)),
        transformer_(plan.shape, plan.table, plan.activations, plan.options, arena,
                     model::places_in<Scalar, Accum<Scalar>>(plan.table, weights_, nullptr)) {
    model::initialize_weights(exec, plan.table, seed, weights_);
  }

  void clear_loss(const Exec& exec) override { Kokkos::deep_copy(exec, loss_, 0.0); }

  void run(const Exec& exec, const HostTokens& tokens, int sequences) override {
    load_batch(exec, transformer_, tokens, plan_.shape.T, 0, sequences);
    transformer_.forward(exec, model::Pass::inference, hooks_);
    transformer_.head(exec, loss_, {}, false, hooks_);
  }

  double loss(const Exec& exec) const override {
    double sum = 0;
    Kokkos::deep_copy(exec, Kokkos::View<double, Kokkos::HostSpace, kernels::Unmanaged>(&sum), loss_);
    exec.fence();
    return sum;
  }

 private:
  const ForwardPlan& plan_;
  Scalar* const weights_;  // [parameters]
  const kernels::Value<double, Exec> loss_;
  model::Transformer<Exec, Scalar> transformer_;
  model::Hooks hooks_;
};

Forward::Forward(const ForwardPlan& plan, const config::Settings& settings, const parallel::World& world,
                 std::uint64_t seed)
    : plan_(plan), world_(world), arena_(plan.layout) {
  kernels::set_gemm_selection(selection_of(settings.train));
  const auto make = [&]<class Scalar>() { model_ = std::make_unique<ModelOf<Scalar>>(plan_, arena_, exec_, seed); };
  switch (plan.options.dtype) {
    case Dtype::fp64: make.template operator()<double>(); break;
    case Dtype::fp16: make.template operator()<float16>(); break;
    case Dtype::bf16: make.template operator()<bfloat16>(); break;
    default: make.template operator()<float>();
  }
}

Forward::~Forward() { exec_.fence(); }

ValidationSum Forward::validate(const data::Sampler& sampler, std::int64_t windows) {
  const auto [first, last, most] = share_of(windows, world_.rank(), world_.size());
  const std::int64_t T = plan_.shape.T;
  const HostTokens tokens{arena_.data<std::int32_t>(plan_.tokens.inputs),
                          arena_.data<std::int32_t>(plan_.tokens.targets)};
  std::vector<std::int32_t> row(T + 1);
  const ranges::Range range("validation");
  model_->clear_loss(exec_);
  for (std::int64_t window = first; window < last;) {
    const int sequences = static_cast<int>(std::min<std::int64_t>(plan_.batch.micro_sequences, last - window));
    exec_.fence();  // the previous tokens have been copied
    for (int i = 0; i < sequences; ++i) {
      sampler.fill_validation(window + i, row);
      tokens.set_row(i, row);
    }
    model_->run(exec_, tokens, sequences);
    window += sequences;
  }
  return {model_->loss(exec_), static_cast<double>((last - first) * T)};
}

}  // namespace tessera::train
