#include "train/step.hpp"  // the contract is there; here is how

#include <type_traits>

#include "kernels/core/compat.hpp"
#include "optim/step_state.hpp"
#include "train/compute.hpp"
#include "train/dtypes.hpp"
#include "train/update.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;

template <class Scalar, class Grad, class Moment, bool kHasMaster>
class StepOf final : public Step {
 public:
  StepOf(const Plan& plan, const config::Settings& settings, int rank, const Exec& exec,
         const memory::Arena<Exec>& arena)
      : plan_(plan),
        rank_(rank),
        exec_(exec),
        arena_(arena),
        state_(plan, plan.sharing.shard_of(rank), arena),
        compute_(plan, plan.cleared, settings, arena),
        update_(plan, plan.update, settings, plan.sharing.shard_of(rank), arena),
        deferred_(plan, settings, arena, [this](const Exec& instance, std::size_t chunk, int slot) {
          update_.launch(instance, chunk, slot);
        }) {
    compute_.clear_gradients(exec_);
    exec_.fence();
  }

  void enqueue(const HostTensors& slot, StepMarks& marks, parallel::Strategy& strategy, StepHooks& hooks) override {
    const BatchPlan& batch = plan_.batch;
    hooks.begin_step();
    marks.waits().begin_step();
    marks.mark(exec_, marks.begin());
    phase("begin", [&] {
      deferred_.begin(exec_);
      compute_.begin_step(exec_, static_cast<double>(batch.global_sequences * plan_.shape.T));
      if (!deferred_.is_on()) compute_.clear_sums(exec_);
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
      update_.norm(exec_, strategy.squares());
      strategy.sum();
      if (deferred_.end(exec_)) update_.launch(exec_, 0, 0);
    });
    Kokkos::deep_copy(exec_, scalars_in(arena_, slot), optim::state_at(arena_.data<double>(plan_.numbers.state)));
    marks.mark(exec_, marks.end());
    hooks.end_step();
  }

  /// If gradients are sharded, a unit's place may hold another unit's.
  void clear_unit(int unit) override {
    if (plan_.sharing.shards_gradients()) compute_.clear_unit(exec_, unit, !has_sequences_);
  }

  DeferredUpdate& update() override { return deferred_; }

  void validate(const HostTokens& tokens, int sequences, model::Hooks& hooks) override {
    compute_.load(exec_, tokens, 0, sequences);
    compute_.validate(exec_, hooks);
  }

  std::vector<int> generate(const std::vector<int>& prompt, const model::GenerateOptions& options,
                            model::Hooks& hooks) override {
    return compute_.generate(exec_, prompt, options, hooks);
  }

  void initialize(std::uint64_t seed) override { state_.initialize(exec_, seed); }
  std::vector<parallel::Span> weights() const override { return state_.weights(); }
  std::vector<SavedTensor> saved(const std::function<bool(std::size_t)>& is_wanted) override {
    return state_.saved(is_wanted);
  }
  void load(const std::function<void(const StateTensor&)>& visit) override { state_.load(exec_, visit); }
  std::uint64_t fingerprint() const override { return state_.fingerprint(); }

 private:
  void forward(const HostTensors& slot, int micro, StepHooks& hooks) {
    const BatchPlan& batch = plan_.batch;
    phase("forward", [&] {
      compute_.load(exec_, tokens_in(arena_, slot), micro * batch.micro_sequences, batch.sequences_of(rank_, micro));
      compute_.forward(exec_, hooks);
      if (micro == 0 && deferred_.is_on()) {  // it has read the gradients of the step before
        deferred_.join(exec_);
        compute_.clear_sums(exec_);
      }
      hooks.set_phase("backward");
    });
  }

  void backward(int micro, StepHooks& hooks) {
    phase("backward", [&] {
      if (micro + 1 == plan_.batch.micro_steps) deferred_.begin_last_backward(exec_);
      compute_.backward(exec_, micro > 0 && !plan_.sharing.shards_gradients(), hooks);
    });
  }

  /// A micro-step in which this rank has no sequences: it announces all the same what the others do together.
  void walk(int micro, StepHooks& hooks) {
    if (micro == 0) {
      deferred_.join(exec_);
      if (!plan_.sharing.shards_gradients()) compute_.clear_gradients(exec_);
    }
    hooks.skip_ticks();
    compute_.walk(hooks);
  }

  const Plan& plan_;
  const int rank_;
  const Exec exec_;
  const memory::Arena<Exec>& arena_;
  State<Scalar, Moment> state_;
  Compute<Scalar, Grad> compute_;
  Update<Scalar, Grad, Moment, kHasMaster> update_;
  DeferredUpdate deferred_;
  bool has_sequences_ = true;  // in the micro-step being enqueued
};

}  // namespace

std::unique_ptr<Step> make_step(const Plan& plan, const config::Settings& settings, int rank, const Exec& exec,
                                const memory::Arena<Exec>& arena) {
  return with_types(plan, plan.layout, [&]<class Scalar, class Grad, class Moment, bool kHasMaster>() {
    return std::unique_ptr<Step>(
        std::make_unique<StepOf<Scalar, Grad, Moment, kHasMaster>>(plan, settings, rank, exec, arena));
  });
}

}  // namespace tessera::train
