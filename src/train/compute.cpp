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

/// While it exists, products use the library's own order of preference.
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
        grads_(array_of<Grad>(arena, plan.state.grads)),
        places_(places_of(plan, arena)),
        state_(optim::state_at(arena.template data<double>(plan.state.state))),
        grad_scale_(arena.template data<Real>(plan.state.grad_scale)),
        validation_loss_(arena.template data<double>(plan.state.validation_loss)),
        lists_(clear_lists(plan.table, plan.sharing)),
        cleared_(upload_list(lists_.spans, arena, plan.state.cleared)),
        transformer_(plan.shape, plan.table, plan.activations, plan.options, arena, places_) {}

  void begin_step(const Exec& exec, double tokens) override {
    optim::BeginStep<Exec, Real>{state_, grad_scale_, tokens}.launch(exec);
  }

  void clear_sums(const Exec& exec) override {
    if (!plan_.sharing.shards_gradients()) kernels::ClearSpans<Exec, Grad>{cleared_, grads_}.launch(exec);
  }

  void clear_gradients(const Exec& exec) override { clear_bytes(exec, grads_); }

  void clear_unit(const Exec& exec, int unit, bool without_sequences) override {
    const kernels::Vector<Grad, Exec> place(places_.grads[unit],
                                            static_cast<std::size_t>(plan_.sharing.ownership.padded(unit)));
    if (without_sequences) return clear_bytes(exec, place);
    kernels::ClearSpans<Exec, Grad>{Kokkos::subview(cleared_, lists_.of_unit[unit]), place}.launch(exec);
  }

  void load(const Exec& exec, const HostTokens& tokens, int first, int sequences) override {
    load_batch(exec, transformer_, tokens, plan_.shape.T, first, sequences);
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
  void walk_validation(model::Hooks& hooks) override {
    model::walk_forward(plan_.table, model::Pass::inference, hooks);
  }

  void clear_validation(const Exec& exec) override { Kokkos::deep_copy(exec, validation_loss_, 0.0); }

  void validate(const Exec& exec, model::Hooks& hooks) override {
    transformer_.forward(exec, model::Pass::inference, hooks);
    transformer_.head(exec, validation_loss_, grad_scale_, false, hooks);
  }

  /// Its products have other shapes than training's and are too few to be timed; the plan reserves no memory for that.
  std::vector<int> generate(const Exec& exec, const std::vector<int>& prompt, const model::GenerateOptions& options,
                            model::Hooks& hooks) override {
    const Untimed products(settings_.train);
    return model::generate<Exec, Scalar>(exec, plan_.shape, plan_.table, {.weights = places_.weights, .grads = {}},
                                         {.attention = plan_.options.attention,
                                          .math = plan_.options.math,
                                          .decode_parts = settings_.attention.decode_parts},
                                         prompt, options, hooks);
  }

 private:
  static model::UnitPlaces<Scalar, Grad> places_of(const Plan& plan, const memory::Arena<Exec>& arena) {
    const Sharing& sharing = plan.sharing;
    model::UnitPlaces<Scalar, Grad> places;
    for (int unit = 0; unit < sharing.ownership.units(); ++unit) {
      const std::int64_t whole = sharing.ownership.whole_first(unit);
      const auto weights = [&](memory::TensorId id) { return arena.template data<Scalar>(id); };
      const auto grads = [&](memory::TensorId id) { return arena.template data<Grad>(id); };
      places.weights.push_back(sharing.shards_weights() ? weights(plan.state.gathered[sharing.weights_places[unit]])
                                                        : weights(plan.state.params) + whole);
      places.grads.push_back(sharing.shards_gradients() ? grads(plan.state.unit_grads[sharing.gradient_places[unit]])
                                                        : grads(plan.state.grads) + whole);
    }
    return places;
  }

  const Plan& plan_;
  const config::Settings& settings_;
  const kernels::Vector<Grad, Exec> grads_;
  const model::UnitPlaces<Scalar, Grad> places_;
  const optim::StateView<Exec> state_;
  const kernels::Value<Real, Exec> grad_scale_;
  const kernels::Value<double, Exec> validation_loss_;
  const ClearLists lists_;
  const kernels::Vector<const kernels::ClearSpan, Exec> cleared_;
  model::Transformer<Exec, Scalar, Grad> transformer_;
};

}  // namespace

namespace {

/// What must be cleared of each unit, in whole spans. [units]
std::vector<std::vector<kernels::ClearSpan>> cleared_spans(const model::ParamTable& table, const Sharing& sharing) {
  const parallel::Ownership& o = sharing.ownership;
  std::vector<std::vector<kernels::ClearSpan>> of_unit;
  auto param = table.params().begin();  // in the order of the units
  for (int unit = 0; unit < o.units(); ++unit) {
    const std::int64_t begin = sharing.shards_gradients() ? 0 : o.whole_first(unit);
    std::vector<kernels::ClearSpan>& spans = of_unit.emplace_back();
    std::int64_t end = 0;  // of the tensors so far, from the start of the unit
    for (; param != table.params().end() && param->unit == unit; ++param) {
      const std::int64_t first = param->first - o[unit].first;
      if (sharing.shards_gradients() && first > end) spans.push_back({begin + end, first - end});
      if (model::is_added_to(*param)) spans.push_back({begin + first, param->count});
      end = first + param->count;
    }
    if (sharing.shards_gradients() && o.padded(unit) > end) spans.push_back({begin + end, o.padded(unit) - end});
  }
  return of_unit;
}

}  // namespace

std::int64_t cleared_pieces(const model::ParamTable& table, const Sharing& sharing) {
  std::int64_t pieces = 0;
  for (const std::vector<kernels::ClearSpan>& spans : cleared_spans(table, sharing)) {
    for (const kernels::ClearSpan& span : spans) pieces += kernels::cleared_pieces(span.count);
  }
  return pieces;
}

ClearLists clear_lists(const model::ParamTable& table, const Sharing& sharing) {
  ClearLists lists;
  for (const std::vector<kernels::ClearSpan>& spans : cleared_spans(table, sharing)) {
    const std::vector<kernels::ClearSpan> pieces = kernels::cut_spans(spans);
    lists.of_unit.emplace_back(lists.spans.size(), lists.spans.size() + pieces.size());
    lists.spans.insert(lists.spans.end(), pieces.begin(), pieces.end());
  }
  return lists;
}

std::unique_ptr<Compute> make_compute(const Plan& plan, const config::Settings& settings,
                                      const memory::Arena<Exec>& arena) {
  return with_types(plan, [&]<class Scalar, class Grad>() -> std::unique_ptr<Compute> {
    return std::make_unique<ComputeOf<Scalar, Grad>>(plan, settings, arena);
  });
}

}  // namespace tessera::train
