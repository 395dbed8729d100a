#include "train/step.hpp"  // the contract is there; here is how

#include "kernels/clear_spans.hpp"
#include "kernels/core/compat.hpp"
#include "kernels/gemm/gemm.hpp"
#include "model/transformer.hpp"
#include "optim/step_state.hpp"
#include "train/dtypes.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;

/// While it exists, products use the library's own order of preference.
struct Untimed {
  Untimed() = default;
  ~Untimed() { kernels::set_gemm_selection(before); }
  Untimed(const Untimed&) = delete;
  Untimed& operator=(const Untimed&) = delete;

  const kernels::GemmSelection before = kernels::set_gemm_selection(kernels::GemmSelection::heuristic);
};

/// Where the model finds the weights of each unit and writes its gradients.
template <class Scalar, class Grad>
model::UnitPlaces<Scalar, Grad> places_of(const Basis& basis, const memory::Arena& arena) {
  const Sharing& sharing = basis.sharing;
  const ArrayTensors& t = basis.arrays;
  model::UnitPlaces<Scalar, Grad> places;
  for (int unit = 0; unit < sharing.ownership.units(); ++unit) {
    const std::int64_t whole = sharing.ownership.whole_first(unit);
    places.weights.push_back(sharing.shards_weights() ? arena.data<Scalar>(t.gathered[sharing.weights_places[unit]])
                                                      : arena.data<Scalar>(t.params) + whole);
    places.grads.push_back(sharing.shards_gradients() ? arena.data<Grad>(t.unit_grads[sharing.gradient_places[unit]])
                                                      : arena.data<Grad>(t.grads) + whole);
  }
  return places;
}

template <class Scalar, class Grad>
class StepOf final : public Step {
 public:
  StepOf(const Plan& plan, const config::Settings& settings, int rank, const Exec& exec, const memory::Arena& arena,
         OptimizerStep& optimizer)
      : plan_(plan),
        settings_(settings),
        rank_(rank),
        exec_(exec),
        arena_(arena),
        scalars_(optim::state_at(arena.data<double>(plan.numbers.state))),
        grad_scale_(arena.data<Real>(plan.numbers.grad_scale)),
        grads_(arena.array<Grad>(plan.arrays.grads)),
        places_(places_of<Scalar, Grad>(plan, arena)),
        clear_lists_(clear_lists(plan.table, plan.sharing)),
        cleared_(upload_list(clear_lists_.spans, arena, plan.cleared)),
        transformer_(plan.shape, plan.table, plan.activations, plan.options, arena, places_),
        optimizer_(optimizer) {
    clear_bytes(exec_, grads_);
    exec_.fence();
  }

  void enqueue(const HostTensors& slot, StepMarks& marks, parallel::Strategy& strategy, StepHooks& hooks) override {
    const BatchPlan& batch = plan_.batch;
    hooks.begin_step();
    marks.waits().begin_step();
    marks.mark(exec_, marks.begin());
    phase("begin", [&] {
      optimizer_.begin(exec_);
      const auto tokens = static_cast<double>(batch.global_sequences * plan_.shape.T);  // over all ranks
      optim::BeginStep<Real>{scalars_, grad_scale_, tokens}.launch(exec_);
      if (!optimizer_.is_deferred()) clear_sums();
      strategy.begin_step(&marks.waits());
    });
    for (int micro = 0; micro < batch.micro_steps; ++micro) {
      strategy.begin(micro + 1 == batch.micro_steps);
      hooks.begin_micro_step();
      marks.mark(exec_, marks.forward(micro));
      has_sequences_ = batch.sequences_of(rank_, micro) > 0;
      if (has_sequences_) {
        forward(slot, micro, hooks);
        marks.mark(exec_, marks.backward(micro));
        backward(micro, hooks);
      } else {
        walk(micro, hooks);
        marks.mark(exec_, marks.backward(micro));
      }
    }
    marks.mark(exec_, marks.forward(batch.micro_steps));
    phase("reduce", [&] { strategy.finish(); });
    marks.mark(exec_, marks.reduced());
    hooks.begin_update();
    phase("optimizer", [&] {
      optimizer_.norm(exec_, strategy.squares());
      strategy.sum();
      optimizer_.end(exec_);
    });
    Kokkos::deep_copy(exec_, scalars_in(arena_, slot), scalars_);
    marks.mark(exec_, marks.end());
    hooks.end_step();
  }

  /// With sharded gradients a unit's place may hold another unit's. Clears padding and what backward adds to; in a
  /// micro-step without sequences, the whole place.
  void clear_unit(int unit) override {
    if (!plan_.sharing.shards_gradients()) return;
    const kernels::Vector<Grad, Exec> place(places_.grads[unit],
                                            static_cast<std::size_t>(plan_.sharing.ownership.padded(unit)));
    if (!has_sequences_) return clear_bytes(exec_, place);
    kernels::ClearSpans<Exec, Grad>{Kokkos::subview(cleared_, clear_lists_.of_unit[unit]), place}.launch(exec_);
  }

  void validate(const HostTokens& tokens, int sequences, model::Hooks& hooks) override {
    const kernels::Value<double, Exec> loss(arena_.data<double>(plan_.numbers.validation_loss));
    load_batch(exec_, transformer_, tokens, plan_.shape.T, 0, sequences);
    transformer_.forward(exec_, model::Pass::inference, hooks);
    transformer_.head(exec_, loss, grad_scale_, false, hooks);
  }

  /// Its GEMMs differ in shape from training's and are too few to time; the plan reserves no memory for timing them.
  std::vector<int> generate(const std::vector<int>& prompt, const model::GenerateOptions& options,
                            model::Hooks& hooks) override {
    const Untimed products;
    return model::generate<Scalar>(exec_, plan_.shape, plan_.table, {.weights = places_.weights, .grads = {}},
                                   {.attention = plan_.options.attention,
                                    .math = plan_.options.math,
                                    .decode_parts = settings_.attention.decode_parts},
                                   prompt, options, hooks);
  }

 private:
  using Real = Accum<Scalar>;

  /// Before the first backward pass of a step: unless gradients are sharded, clears what backward adds to.
  void clear_sums() {
    if (!plan_.sharing.shards_gradients()) kernels::ClearSpans<Exec, Grad>{cleared_, grads_}.launch(exec_);
  }

  void forward(const HostTensors& slot, int micro, StepHooks& hooks) {
    const BatchPlan& batch = plan_.batch;
    phase("forward", [&] {
      load_batch(exec_, transformer_, tokens_in(arena_, slot), plan_.shape.T, micro * batch.micro_sequences,
                 batch.sequences_of(rank_, micro));
      transformer_.forward(exec_, model::Pass::forward, hooks);
      if (micro == 0 && optimizer_.is_deferred()) {  // the deferred update has read the previous step's gradients
        optimizer_.join(exec_);
        clear_sums();
      }
      hooks.set_phase("backward");
    });
  }

  void backward(int micro, StepHooks& hooks) {
    phase("backward", [&] {
      if (micro + 1 == plan_.batch.micro_steps) optimizer_.begin_last_backward(exec_);
      transformer_.accumulate(micro > 0 && !plan_.sharing.shards_gradients());
      transformer_.head(exec_, kernels::Value<double, Exec>(&scalars_.data()->loss_sum), grad_scale_, true, hooks);
      transformer_.backward(exec_, hooks);
    });
  }

  /// A micro-step without sequences on this rank: announces the collective steps nevertheless.
  void walk(int micro, StepHooks& hooks) {
    if (micro == 0) {
      optimizer_.join(exec_);
      if (!plan_.sharing.shards_gradients()) clear_bytes(exec_, grads_);
    }
    hooks.skip_ticks();
    transformer_.walk(hooks);
  }

  const Plan& plan_;
  const config::Settings& settings_;
  const int rank_;
  const Exec exec_;
  const memory::Arena& arena_;
  const optim::StateView scalars_;
  const kernels::Value<Real, Exec> grad_scale_;
  const kernels::Vector<Grad, Exec> grads_;
  const model::UnitPlaces<Scalar, Grad> places_;
  const ClearLists clear_lists_;
  const kernels::Vector<const kernels::ClearSpan, Exec> cleared_;
  model::Transformer<Scalar, Grad> transformer_;
  OptimizerStep& optimizer_;
  bool has_sequences_ = true;  // in the micro-step being enqueued
};

}  // namespace

std::unique_ptr<Step> make_step(const Plan& plan, const config::Settings& settings, int rank, const Exec& exec,
                                const memory::Arena& arena, OptimizerStep& optimizer) {
  return with_types(plan.options.dtype, plan.options.has_narrow_gradients, [&]<class Scalar, class Grad>() {
    return std::unique_ptr<Step>(std::make_unique<StepOf<Scalar, Grad>>(plan, settings, rank, exec, arena, optimizer));
  });
}

}  // namespace tessera::train
