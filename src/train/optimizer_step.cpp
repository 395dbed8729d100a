#include "train/optimizer_step.hpp"  // the contract is there; here is how

namespace tessera::train {

using Part = Offload::Part;

bool updates_early(const Basis& basis, const config::Settings& settings) {
  const config::Train& train = settings.train;
  const bool stops = train.on_bad_step == config::OnBadStep::stop && train.spike_deviations == 0;
  return stops && basis.batch.ranks == 1 && settings.optimizer.clip_norm == 0 && basis.options.dtype != Dtype::fp16;
}

OptimizerStep::OptimizerStep(const Basis& basis, const UpdateTensors& tensors, const config::Settings& settings,
                             int shard, const memory::Arena& arena)
    : settings_(settings),
      state_(optim::state_at(arena.data<double>(basis.numbers.state))),
      norms_(arena.array<double>(basis.numbers.norms)),
      update_(basis, tensors, settings, shard, arena),
      scales_loss_(basis.options.dtype == Dtype::fp16),
      is_early_(!basis.arrays.staged.is_empty() && updates_early(basis, settings)) {
  const StagedTensors& staged = basis.arrays.staged;
  if (staged.is_empty()) return;
  offload_.emplace(staged, basis.sharing.ownership, arena, staged.holds(basis.arrays.params), is_early_);
}

void OptimizerStep::begin(const Exec& exec) {
  // A graph contains the update whether or not one is due.
  if (offload_ && (is_due_ || settings_.train.graph)) start(exec, Part::forward, copies());
}

void OptimizerStep::begin_last_backward(const Exec& exec) {
  if (!is_early_) return;
  prepare(exec);
  start(exec, Part::backward, copies());
}

void OptimizerStep::end(const Exec& exec) {
  if (is_early_) {
    offload_->join(exec);
    optim::FinishUpdate{state_}.launch(exec);
  } else {
    prepare(exec);
  }
  if (!is_deferred()) update_.launch(exec, 0, 0);
}

void OptimizerStep::settle(const Exec& exec) {
  if (!is_due_) return;
  start(exec, Part::forward, Offload::Copies::joined);
  offload_->join(exec);
  Kokkos::deep_copy(exec, kernels::Value<int, Exec>(&state_.data()->update.skip), 1);  // a graph's begin() does nothing
  exec.fence();
  is_due_ = false;
}

void OptimizerStep::prepare(const Exec& exec) const {
  const config::Optimizer& o = settings_.optimizer;
  optim::PrepareUpdate{.state = state_,
                       .schedule = {.peak = o.learning_rate,
                                    .minimum = o.min_learning_rate,
                                    .warmup_steps = o.warmup_steps,
                                    .steps = settings_.train.steps},
                       .beta1 = o.beta1,
                       .beta2 = o.beta2,
                       .clip_norm = o.clip_norm,
                       .scales_dynamically = scales_loss_,
                       .seed = settings_.job.seed,
                       .precedes_norm = is_early_,
                       .spike_deviations = settings_.train.spike_deviations,
                       .norms = norms_}
      .launch(exec);
}

void OptimizerStep::start(const Exec& exec, Part part, Offload::Copies copies) {
  offload_->start(exec, part, copies,
                  [this](const Exec& instance, std::size_t chunk, int slot) { update_.launch(instance, chunk, slot); });
}

}  // namespace tessera::train
