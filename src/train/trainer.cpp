#include "train/trainer.hpp"  // the contract is there; here is how

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/core/compat.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/ranges.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/gemm/gemm.hpp"
#include "train/arrays.hpp"
#include "train/strategy.hpp"

namespace tessera::train {
namespace {

/// Reports a phase as a region, and as a profiler's range, on the host's clock: on a device, that is when the phase was enqueued, unless every
/// kernel is fenced, as in profiled steps.
template <class Work>
void phase(const char* label, const Work& work) {
  const double start_s = events::now_s();
  const ranges::Range range(label);
  work();
  events::report(events::Region{label, "compute", start_s, events::now_s()});
}

}  // namespace

Trainer::Trainer(const Plan& plan, const config::Settings& settings, parallel::World& world, model::Hooks* observer)
    : plan_(plan),
      settings_(settings),
      world_(world),
      stream_(priority_of(settings.parallel, world.collectives())),
      arena_(plan.layout),
      scalars_(optim::state_at(arena_.data<double>(plan.numbers.state))),
      state_(make_state(plan, plan.sharing.shard_of(world.rank()), arena_)),
      compute_(make_compute(plan, plan.cleared, settings, arena_)),
      update_(make_update(plan, plan.update, settings, plan.sharing.shard_of(world.rank()), arena_)),
      strategy_(make_strategy(plan, settings, world, exec_, arena_,
                              [this](const Exec& exec, int unit) { update_->await(exec, unit); })),
      pipeline_(exec_, world, plan.batch.micro_steps, strategy_->most_waits(), settings.train.graph),
      row_(plan.shape.T + 1) {
  kernels::set_gemm_selection(selection_of(settings.train));
  compute_->clear_gradients(exec_);  // the padding between tensors stays zero
  exec_.fence();
  set_scalars({.loss_scale = plan.options.dtype == Dtype::fp16 ? settings.precision.initial_loss_scale : 1.0});
  hooks_.emplace(plan.layout, model::Timeline{plan.shape.units()}.update(), *strategy_, plan.table,
                 StepHooks::UnitCalls{.await_weights = [this](int unit) { update_->await(exec_, unit); },
                                      .clear_gradients = [this](int unit) { clear_unit(unit); },
                                      .end_backward = [this](int unit) { update_->early(exec_, unit); }},
                 observer);
}

Trainer::~Trainer() { exec_.fence(); }

void Trainer::disconnect() {
  exec_.fence();
  pipeline_.forget_graphs();  // they contain the transfers
  hooks_.reset();
  strategy_.reset();
}

void Trainer::initialize(std::uint64_t seed) {
  // Every part is a pure function of the seed; if nothing is sharded or offloaded, a broadcast makes sure.
  const bool is_broadcast = !plan_.sharing.is_sharded() && offloaded_bytes(plan_) == 0;
  settle();
  state_->clear(exec_);
  if (!is_broadcast || world_.rank() == 0) state_->initialize(exec_, seed);
  exec_.fence();
  if (!is_broadcast) return;
  for (const parallel::Span& weights : state_->weights()) world_.collectives().broadcast(weights);
}

void Trainer::start(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch) {
  if (!strategy_ || !strategy_->is_connected()) throw std::logic_error("trainer: connect it before the first step");
  const ranges::Range range("step");
  const HostTensors& slot = plan_.slots[pipeline_.next_slot()];
  pipeline_.begin();
  const std::int64_t sample = first_sample + plan_.batch.first_sample(world_.rank());
  const auto sequences = static_cast<int>(plan_.batch.sequences_of(world_.rank()));
  fill(host_tokens(slot), sequences, [&](int i) { sampler.fill(sample + i, row_); });
  pipeline_.start(launch_by_launch, [&](StepMarks& marks) { enqueue(slot, marks); });
  is_update_due_ = update_->is_deferred();
}

void Trainer::settle() {
  if (!is_update_due_) return;
  update_->settle(exec_);
  update_->drop(exec_);
  exec_.fence();
  is_update_due_ = false;
}

/// Every launch of a step, in order. Nothing here waits, queries the device or allocates, so it can be recorded.
void Trainer::enqueue(const HostTensors& slot, StepMarks& marks) {
  const BatchPlan& batch = plan_.batch;
  const double tokens = static_cast<double>(batch.global_sequences * plan_.shape.T);
  hooks_->begin_step();
  marks.waits().begin_step();
  marks.mark(exec_, marks.begin());
  phase("begin", [&] {
    // A graph is replayed whether or not an update is due.
    if (is_update_due_ || settings_.train.graph) update_->begin(exec_);
    compute_->begin_step(exec_, tokens);
    if (!update_->is_deferred()) compute_->clear_sums(exec_);
    strategy_->begin_step(&marks.waits());
  });
  for (int micro = 0, first = 0; micro < batch.micro_steps; ++micro) {
    strategy_->begin(micro + 1 == batch.micro_steps);
    hooks_->begin_micro_step();
    const int sequences = batch.sequences_of(world_.rank(), micro);
    has_sequences_ = sequences > 0;
    marks.mark(exec_, marks.forward(micro));
    if (!has_sequences_) {
      if (micro == 0) update_->join(exec_);
      if (micro == 0 && !plan_.sharing.shards_gradients()) compute_->clear_gradients(exec_);
      hooks_->skip_ticks();
      compute_->walk(*hooks_);
      marks.mark(exec_, marks.backward(micro));
      continue;
    }
    phase("forward", [&] {
      compute_->load(exec_, host_tokens(slot), first, sequences);
      compute_->forward(exec_, *hooks_);
      if (micro == 0 && update_->is_deferred()) begin_backward();
      hooks_->set_phase("backward");
    });
    marks.mark(exec_, marks.backward(micro));
    const bool accumulates = micro > 0 && !plan_.sharing.shards_gradients();
    phase("backward", [&] {
      if (micro + 1 == batch.micro_steps) update_->begin_early(exec_);
      compute_->backward(exec_, accumulates, *hooks_);
    });
    first += sequences;
  }
  marks.mark(exec_, marks.forward(batch.micro_steps));
  phase("reduce", [&] { strategy_->finish(); });
  marks.mark(exec_, marks.reduced());
  hooks_->set_phase("optimizer");
  hooks_->tick(model::Timeline{plan_.shape.units()}.update());
  phase("optimizer", [&] {
    update_->norm(exec_, strategy_->squares());
    strategy_->sum();
    update_->apply(exec_);
  });
  Kokkos::deep_copy(exec_, host_scalars(slot), scalars_);
  marks.mark(exec_, marks.end());
  hooks_->end_step();
}

/// Deferred updates read the gradients of the step before.
void Trainer::begin_backward() {
  update_->join(exec_);
  compute_->clear_sums(exec_);
}

/// If gradients are sharded, a unit's place may hold another unit's gradients.
void Trainer::clear_unit(int unit) {
  if (plan_.sharing.shards_gradients()) compute_->clear_unit(exec_, unit, !has_sequences_);
}

StepNumbers Trainer::collect() {
  const Pipeline::Ended ended = pipeline_.collect();
  if (started() == 0 && ended.was_by_launch && world_.size() > 1) strategy_->collect();
  const optim::StepState& s = *host_scalars(plan_.slots[ended.slot]).data();
  StepNumbers n{ended.phases};
  n.loss_sum = s.loss_sum;
  n.grad_norm = s.grad_norm;
  n.learning_rate = s.adamw.learning_rate;
  n.loss_scale = s.loss_scale;
  n.was_skipped = s.adamw.skip != 0;
  n.was_cold = ended.was_cold;
  n.step_s = ended.step_s;
  return n;
}

ValidationSum Trainer::validate(const data::Sampler& sampler, std::int64_t windows) {
  const auto [first, last, most] = share_of(windows, world_.rank(), world_.size());
  const HostTokens tokens = host_tokens(plan_.validation);
  settle();
  compute_->clear_validation(exec_);
  strategy_->begin_inference();
  std::int64_t window = first;
  for (std::int64_t done = 0; done < most; done += plan_.batch.micro_sequences) {  // as often on every rank
    const int sequences = static_cast<int>(std::min<std::int64_t>(plan_.batch.micro_sequences, last - window));
    if (sequences <= 0) {
      compute_->walk_validation(*hooks_);
      continue;
    }
    exec_.fence();             // the previous tokens have been copied
    phase("validation", [&] {  // also reports progress to the watchdog
      fill(tokens, sequences, [&](int i) { sampler.fill_validation(window + i, row_); });
      compute_->load(exec_, tokens, 0, sequences);
      compute_->validate(exec_, *hooks_);
    });
    window += sequences;
  }
  double loss_sum = 0;
  Kokkos::deep_copy(exec_, Loss(&loss_sum),
                    kernels::Value<const double, Exec>(arena_.data<double>(plan_.numbers.validation_loss)));
  exec_.fence();
  return {loss_sum, static_cast<double>((last - first) * plan_.shape.T)};
}

std::vector<SavedTensor> Trainer::saved_state(bool mine_only) {
  settle();
  const int shards = plan_.sharing.ownership.shards(), copies = world_.size() / shards;
  return state_->saved(
      [&](std::size_t number) { return !mine_only || static_cast<int>(number % copies) == world_.rank() / shards; });
}

std::uint64_t Trainer::joined_fingerprint(std::uint64_t own) const {
  const int shards = plan_.sharing.ownership.shards();
  if (shards == 1) return own;
  const std::vector<std::string> all = world_.all_gather(std::to_string(own));
  std::uint64_t sum = 0;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (rank / shards == world_.rank() / shards) sum += std::stoull(all[rank]);
  }
  return sum;
}

void Trainer::load_state(const std::function<void(const StateTensor&)>& visit) {
  settle();
  state_->clear(exec_);
  state_->load(visit);
}

StateScalars Trainer::scalars() const {
  optim::StepState s;
  Kokkos::deep_copy(exec_, Kokkos::View<optim::StepState, Kokkos::HostSpace, kernels::Unmanaged>(&s), scalars_);
  exec_.fence();
  return {s.step, s.optimizer_steps, s.good_steps, s.loss_scale};
}

void Trainer::set_scalars(const StateScalars& scalars) {
  settle();
  optim::StepState s{};
  s.adamw.skip = 1;  // no update is due
  s.step = scalars.step;
  s.optimizer_steps = scalars.optimizer_steps;
  s.good_steps = scalars.good_steps;
  s.loss_scale = scalars.loss_scale;
  Kokkos::deep_copy(scalars_, Kokkos::View<optim::StepState, Kokkos::HostSpace, kernels::Unmanaged>(&s));
}

HostTokens Trainer::host_tokens(const HostTensors& tensors) const {
  return {arena_.data<std::int32_t>(tensors.inputs), arena_.data<std::int32_t>(tensors.targets)};
}

Trainer::HostScalars Trainer::host_scalars(const HostTensors& tensors) const {
  return HostScalars(reinterpret_cast<optim::StepState*>(arena_.data<double>(tensors.scalars)));
}

/// Fills rows 0..sequences-1: input ids 0..T-1 and target ids 1..T of each row that `next_row` puts into row_.
template <class NextRow>
void Trainer::fill(const HostTokens& tokens, int sequences, const NextRow& next_row) {
  for (int i = 0; i < sequences; ++i) {
    next_row(i);
    tokens.set_row(i, row_);
  }
}

}  // namespace tessera::train
