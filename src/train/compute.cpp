#include "train/compute.hpp"  // the contract is there; here is how

#include "kernels/clear_spans.hpp"
#include "kernels/core/compat.hpp"
#include "kernels/gemm/gemm.hpp"
#include "model/transformer.hpp"
#include "optim/step_state.hpp"
#include "train/arrays.hpp"
#include "train/dtypes.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;

/// Products as the library's own order of preference has them, while this lives.
class Untimed {
 public:
  explicit Untimed(const config::Train& train) : train_(train) {
    kernels::set_gemm_selection(kernels::GemmSelection::heuristic);
  }
  ~Untimed() { kernels::set_gemm_selection(selection_of(train_)); }
  Untimed(const Untimed&) = delete;
  Untimed& operator=(const Untimed&) = delete;

 private:
  const config::Train& train_;
};

template <class Scalar, class Grad>
class ComputeOf final : public Compute {
 public:
  using Real = Accum<Scalar>;

  ComputeOf(const Plan& plan, const config::Settings& settings, const memory::Arena<Exec>& arena)
      : plan_(plan),
        settings_(settings),
        params_(arena.template data<Scalar>(plan.state.params)),
        grads_(flat<Grad>(plan, arena, plan.state.grads)),
        state_(optim::state_at(arena.template data<double>(plan.state.state))),
        grad_scale_(arena.template data<Real>(plan.state.grad_scale)),
        validation_loss_(arena.template data<double>(plan.state.validation_loss)),
        cleared_(upload_list(model::clear_list(plan.table), arena, plan.state.cleared)),
        transformer_(plan.shape, plan.table, plan.activations, plan.options, arena, params_, grads_.data()) {}

  void begin_step(const Exec& exec, double tokens) override {
    kernels::ClearSpans<Exec, Grad>{cleared_, grads_}.launch(exec);
    optim::BeginStep<Exec, Real>{state_, grad_scale_, tokens}.launch(exec);
  }

  void clear_gradients(const Exec& exec) override { clear_bytes(exec, grads_); }

  void load(const Exec& exec, const HostTokens& tokens, int first, int sequences) override {
    const std::int64_t T = plan_.shape.T;
    transformer_.set_batch(sequences, static_cast<int>(T));
    const auto copy = [&](const kernels::Vector<int, Exec>& to, const int* rows) {
      using Pinned = Kokkos::View<const int*, kernels::PinnedSpace, kernels::Unmanaged>;
      Kokkos::deep_copy(exec, to, Pinned(rows + first * T, static_cast<std::size_t>(sequences * T)));
    };
    copy(transformer_.inputs(), tokens.inputs);
    copy(transformer_.targets(), tokens.targets);
  }

  void forward(const Exec& exec, model::Hooks& hooks) override {
    transformer_.forward(exec, model::Pass::forward, hooks);
  }

  void backward(const Exec& exec, bool accumulates, model::Hooks& hooks) override {
    transformer_.accumulate(accumulates);
    transformer_.head(exec, kernels::Value<double, Exec>(&state_.data()->loss_sum), grad_scale_, true, hooks);
    transformer_.backward(exec, hooks);
  }

  void walk(model::Hooks& hooks) override { transformer_.walk(hooks); }

  void clear_validation(const Exec& exec) override { Kokkos::deep_copy(exec, validation_loss_, 0.0); }

  void validate(const Exec& exec, model::Hooks& hooks) override {
    transformer_.forward(exec, model::Pass::inference, hooks);
    transformer_.head(exec, validation_loss_, grad_scale_, false, hooks);
  }

  /// Its products have other shapes than training's and are too few to be timed; the plan has no memory for that.
  std::vector<int> generate(const Exec& exec, const std::vector<int>& prompt, const model::GenerateOptions& options,
                            model::Hooks& hooks) override {
    const Untimed products(settings_.train);
    return model::generate<Exec, Scalar>(exec, plan_.shape, plan_.table, params_,
                                         {plan_.options.attention, plan_.options.math}, prompt, options, hooks);
  }

  std::vector<parallel::Span> gradients() const override {
    std::vector<parallel::Span> spans;
    const auto& units = plan_.table.units();
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      spans.push_back({"grad." + unit->label, grads_.data() + unit->first, unit->count, kDtype<Grad>});
    }
    return spans;
  }

 private:
  const Plan& plan_;
  const config::Settings& settings_;
  Scalar* const params_;
  const kernels::Vector<Grad, Exec> grads_;
  const optim::StateView<Exec> state_;
  const kernels::Value<Real, Exec> grad_scale_;
  const kernels::Value<double, Exec> validation_loss_;
  const kernels::Vector<const kernels::ClearSpan, Exec> cleared_;
  model::Transformer<Exec, Scalar, Grad> transformer_;
};

}  // namespace

std::unique_ptr<Compute> make_compute(const Plan& plan, const config::Settings& settings,
                                      const memory::Arena<Exec>& arena) {
  return with_types(plan, [&]<class Scalar, class Grad>() -> std::unique_ptr<Compute> {
    return std::make_unique<ComputeOf<Scalar, Grad>>(plan, settings, arena);
  });
}

}  // namespace tessera::train
