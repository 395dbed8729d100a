#include "train/compute.hpp"  // the contract is there; here is how

#include "kernels/core/compat.hpp"
#include "kernels/gemm/gemm.hpp"
#include "train/choices.hpp"
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

memory::TensorId declare_cleared(const model::ParamTable& table, const Sharing& sharing, memory::Layout& layout) {
  std::int64_t pieces = 0;  // counted, not made: a large model's would take gigabytes
  for (const std::vector<kernels::ClearSpan>& spans : cleared_spans(table, sharing)) {
    for (const kernels::ClearSpan& span : spans) pieces += kernels::cleared_pieces(span.count);
  }
  return layout.add("grads.cleared", {pieces, sizeof(kernels::ClearSpan) / 4}, Dtype::int32,
                    memory::Category::workspace, memory::Lifetime::whole_run());
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

template <class Scalar, class Grad>
Compute<Scalar, Grad>::Compute(const Basis& basis, memory::TensorId cleared, const config::Settings& settings,
                               const memory::Arena<Exec>& arena)
    : basis_(basis),
      settings_(settings),
      grads_(array_of<Grad>(arena, basis.arrays.grads)),
      places_(places_of(basis, arena)),
      state_(optim::state_at(arena.template data<double>(basis.numbers.state))),
      grad_scale_(arena.template data<Real>(basis.numbers.grad_scale)),
      validation_loss_(arena.template data<double>(basis.numbers.validation_loss)),
      lists_(clear_lists(basis.table, basis.sharing)),
      cleared_(upload_list(lists_.spans, arena, cleared)),
      transformer_(basis.shape, basis.table, basis.activations, basis.options, arena, places_) {}

template <class Scalar, class Grad>
void Compute<Scalar, Grad>::clear_unit(const Exec& exec, int unit, bool without_sequences) {
  const kernels::Vector<Grad, Exec> place(places_.grads[unit],
                                          static_cast<std::size_t>(basis_.sharing.ownership.padded(unit)));
  if (without_sequences) return clear_bytes(exec, place);
  kernels::ClearSpans<Exec, Grad>{Kokkos::subview(cleared_, lists_.of_unit[unit]), place}.launch(exec);
}

template <class Scalar, class Grad>
void Compute<Scalar, Grad>::backward(const Exec& exec, bool accumulates, model::Hooks& hooks) {
  transformer_.accumulate(accumulates);
  transformer_.head(exec, kernels::Value<double, Exec>(&state_.data()->loss_sum), grad_scale_, true, hooks);
  transformer_.backward(exec, hooks);
}

template <class Scalar, class Grad>
void Compute<Scalar, Grad>::validate(const Exec& exec, model::Hooks& hooks) {
  transformer_.forward(exec, model::Pass::inference, hooks);
  transformer_.head(exec, validation_loss_, grad_scale_, false, hooks);
}

/// Its products have other shapes than training's and are too few to be timed; the plan reserves no memory for that.
template <class Scalar, class Grad>
std::vector<int> Compute<Scalar, Grad>::generate(const Exec& exec, const std::vector<int>& prompt,
                                                 const model::GenerateOptions& options, model::Hooks& hooks) {
  const Untimed products(settings_.train);
  return model::generate<Exec, Scalar>(exec, basis_.shape, basis_.table, {.weights = places_.weights, .grads = {}},
                                       {.attention = basis_.options.attention,
                                        .math = basis_.options.math,
                                        .decode_parts = settings_.attention.decode_parts},
                                       prompt, options, hooks);
}

template <class Scalar, class Grad>
model::UnitPlaces<Scalar, Grad> Compute<Scalar, Grad>::places_of(const Basis& basis, const memory::Arena<Exec>& arena) {
  const Sharing& sharing = basis.sharing;
  model::UnitPlaces<Scalar, Grad> places;
  for (int unit = 0; unit < sharing.ownership.units(); ++unit) {
    const std::int64_t whole = sharing.ownership.whole_first(unit);
    const auto weights = [&](memory::TensorId id) { return arena.template data<Scalar>(id); };
    const auto grads = [&](memory::TensorId id) { return arena.template data<Grad>(id); };
    places.weights.push_back(sharing.shards_weights() ? weights(basis.arrays.gathered[sharing.weights_places[unit]])
                                                      : weights(basis.arrays.params) + whole);
    places.grads.push_back(sharing.shards_gradients() ? grads(basis.arrays.unit_grads[sharing.gradient_places[unit]])
                                                      : grads(basis.arrays.grads) + whole);
  }
  return places;
}

#define TESSERA_INSTANTIATE(Scalar, Grad) template class Compute<Scalar, Grad>;
TESSERA_FOR_EACH_GRADIENT(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::train
