#include "train/trainer.hpp"  // the contract is there; here is how

#include <algorithm>
#include <stdexcept>

#include "kernels/core/compat.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/gemm/gemm.hpp"
#include "train/arrays.hpp"

namespace tessera::train {
namespace {

/// Reports a phase as a region by the host's clock: what it says of a device is when the phase was enqueued, unless
/// every kernel is fenced, as in profiled steps.
template <class Work>
void phase(const char* label, const Work& work) {
  const double start_s = events::now_s();
  work();
  events::report(events::Region{label, "compute", start_s, events::now_s()});
}

/// What is reduced; nothing without other ranks.
std::vector<parallel::Span> spans_to_reduce(const Compute& compute, const parallel::World& world) {
  return world.size() == 1 ? std::vector<parallel::Span>() : compute.gradients();
}

}  // namespace

Trainer::Trainer(const Plan& plan, const config::Settings& settings, parallel::World& world, model::Hooks* observer)
    : plan_(plan),
      settings_(settings),
      world_(world),
      arena_(plan.layout),
      scalars_(optim::state_at(arena_.data<double>(plan.state.state))),
      state_(make_state(plan, arena_)),
      compute_(make_compute(plan, settings, arena_)),
      update_(make_update(plan, settings, arena_)),
      pipeline_(exec_, world, plan.batch.micro_steps, settings.train.graph),
      row_(plan.shape.T + 1) {
  kernels::set_gemm_selection(selection_of(settings.train));
  compute_->clear_gradients(exec_);  // the padding between tensors stays so
  exec_.fence();
  set_scalars({.loss_scale = plan.options.dtype == Dtype::fp16 ? settings.precision.initial_loss_scale : 1.0});
  const auto bucket_bytes = static_cast<std::int64_t>(settings.parallel.bucket_mbyte * 1e6);
  queue_.emplace(world.collectives(), exec_, spans_to_reduce(*compute_, world), bucket_bytes, wire());
  hooks_.emplace(plan.layout, model::Timeline{plan.shape.units()}.update(), *queue_, plan.table, observer);
}

Trainer::~Trainer() { exec_.fence(); }

void Trainer::disconnect() {
  exec_.fence();
  pipeline_.forget_graphs();  // they hold the sums, too
  hooks_->forget_queue();
  queue_.reset();
}

void Trainer::initialize(std::uint64_t seed) {
  state_->clear(exec_);
  if (world_.rank() == 0) state_->initialize(exec_, seed);  // the others get theirs from rank 0
  exec_.fence();
  for (const parallel::Span& weights : state_->weights()) world_.collectives().broadcast(weights);
}

void Trainer::start(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch) {
  if (!queue_ || !queue_->is_connected()) throw std::logic_error("trainer: connect it before the first step");
  const HostTensors& slot = plan_.state.slots[pipeline_.next_slot()];
  pipeline_.begin();
  const std::int64_t sample = first_sample + plan_.batch.first_sample(world_.rank());
  const auto sequences = static_cast<int>(plan_.batch.sequences_of(world_.rank()));
  fill(host_tokens(slot), sequences, [&](int i) { sampler.fill(sample + i, row_); });
  pipeline_.start(launch_by_launch, [&](StepMarks& marks) { enqueue(slot, marks); });
}

/// Every launch of a step, in order. Nothing here waits, asks the device or allocates, so it can be recorded.
void Trainer::enqueue(const HostTensors& slot, StepMarks& marks) {
  const BatchPlan& batch = plan_.batch;
  const double tokens = static_cast<double>(batch.global_sequences * plan_.shape.T);
  hooks_->begin_step();
  marks.mark(exec_, marks.begin());
  phase("begin", [&] { compute_->begin_step(exec_, tokens); });
  for (int micro = 0, first = 0; micro < batch.micro_steps; ++micro) {
    const bool reduces = world_.size() > 1 && micro + 1 == batch.micro_steps;
    if (reduces) queue_->begin();
    hooks_->begin_micro_step(reduces);
    const int sequences = batch.sequences_of(world_.rank(), micro);
    marks.mark(exec_, marks.forward(micro));
    if (sequences == 0) {
      if (micro == 0) compute_->clear_gradients(exec_);
      hooks_->skip_ticks();
      compute_->walk(*hooks_);
      marks.mark(exec_, marks.backward(micro));
      continue;
    }
    phase("forward", [&] {
      compute_->load(exec_, host_tokens(slot), first, sequences);
      compute_->forward(exec_, *hooks_);
      hooks_->set_phase("backward");
    });
    marks.mark(exec_, marks.backward(micro));
    phase("backward", [&] { compute_->backward(exec_, micro > 0, *hooks_); });
    first += sequences;
  }
  marks.mark(exec_, marks.forward(batch.micro_steps));
  phase("reduce", [&] { queue_->finish(); });
  marks.mark(exec_, marks.reduced());
  hooks_->set_phase("optimizer");
  hooks_->tick(model::Timeline{plan_.shape.units()}.update());
  phase("optimizer", [&] { update_->enqueue(exec_); });
  Kokkos::deep_copy(exec_, host_scalars(slot), scalars_);
  marks.mark(exec_, marks.end());
  hooks_->end_step();
}

StepNumbers Trainer::collect() {
  const Pipeline::Ended ended = pipeline_.collect();
  if (started() == 0 && ended.was_by_launch && world_.size() > 1) queue_->collect();
  const optim::StepState& s = *host_scalars(plan_.state.slots[ended.slot]).data();
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
  const std::int64_t share = kernels::ceil_div(windows, world_.size());
  const std::int64_t first = std::min(windows, share * world_.rank()), last = std::min(windows, first + share);
  const HostTokens tokens = host_tokens(plan_.state.validation);
  compute_->clear_validation(exec_);
  for (std::int64_t window = first; window < last;) {
    const int sequences = static_cast<int>(std::min<std::int64_t>(plan_.batch.micro_sequences, last - window));
    exec_.fence();             // the tokens before have been copied
    phase("validation", [&] {  // tells the watchdog, too, that there is progress
      fill(tokens, sequences, [&](int i) { sampler.fill_validation(window + i, row_); });
      compute_->load(exec_, tokens, 0, sequences);
      compute_->validate(exec_, *hooks_);
    });
    window += sequences;
  }
  double loss_sum = 0;
  Kokkos::deep_copy(exec_, Loss(&loss_sum),
                    kernels::Value<const double, Exec>(arena_.data<double>(plan_.state.validation_loss)));
  exec_.fence();
  return {loss_sum, static_cast<double>((last - first) * plan_.shape.T)};
}

std::vector<SavedTensor> Trainer::saved_state(bool mine_only) {
  return state_->saved(
      [&](std::size_t number) { return !mine_only || static_cast<int>(number % world_.size()) == world_.rank(); });
}

void Trainer::load_state(const std::function<void(const StateTensor&)>& visit) {
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
  optim::StepState s{};
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
  const std::int64_t T = plan_.shape.T;
  for (int i = 0; i < sequences; ++i) {
    next_row(i);
    std::copy(row_.begin(), row_.end() - 1, tokens.inputs + i * T);
    std::copy(row_.begin() + 1, row_.end(), tokens.targets + i * T);
  }
}

parallel::Span Trainer::wire() const {
  if (plan_.state.wire == memory::kAbsent) return {};
  return {"grads.wire", arena_.data<bfloat16>(plan_.state.wire), plan_.table.flat_count(), Dtype::bf16};
}

}  // namespace tessera::train
