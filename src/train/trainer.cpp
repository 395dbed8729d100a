#include "train/trainer.hpp"  // the contract is there; here is how

#include <algorithm>
#include <stdexcept>
#include <string>
#include "kernels/core/events.hpp"
#include "kernels/core/ranges.hpp"
#include "kernels/gemm/gemm.hpp"
#include "train/arrays.hpp"
#include "train/exchange.hpp"

namespace tessera::train {

Trainer::Trainer(const Plan& plan, const config::Settings& settings, parallel::World& world, model::Hooks* observer)
    : plan_(plan),
      world_(world),
      stream_(priority_of(settings.parallel, world.collectives())),
      arena_(plan.layout),
      scalars_(optim::state_at(arena_.data<double>(plan.numbers.state))),
      validation_loss_(arena_.data<double>(plan.numbers.validation_loss)),
      norms_(arena_.array<double>(plan.numbers.norms)),
      state_(plan, plan.sharing.shard_of(world.rank()), arena_),
      optimizer_(plan, plan.update, settings, plan.sharing.shard_of(world.rank()), arena_),
      step_(make_step(plan, settings, world.rank(), exec_, arena_, optimizer_)),
      strategy_(make_exchange(plan, settings, world, exec_, arena_, optimizer_)),
      pipeline_(exec_, world, plan.batch.micro_steps, strategy_->most_waits(), settings.train.graph),
      row_(plan.shape.T + 1) {
  kernels::set_gemm_selection(selection_of(settings.train));
  set_scalars({.loss_scale = plan.options.dtype == Dtype::fp16 ? settings.precision.initial_loss_scale : 1.0});
  hooks_.emplace(
      plan, exec_, *strategy_, optimizer_, [this](int unit) { step_->clear_unit(unit); }, observer);
}

Trainer::~Trainer() { exec_.fence(); }

void Trainer::disconnect() {
  exec_.fence();
  pipeline_.forget_graphs();  // they contain the transfers
  hooks_.reset();
  strategy_.reset();
}

void Trainer::initialize(std::uint64_t seed) {
  settle();
  state_.initialize(exec_, seed);
  // Every part is a pure function of the seed; if nothing is sharded or offloaded, a broadcast makes sure.
  if (plan_.sharing.is_sharded() || offloaded_bytes(plan_) > 0) return;
  for (const parallel::Span& weights : state_.weights()) world_.collectives().broadcast(weights);
}

void Trainer::start(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch) {
  if (!strategy_ || !strategy_->is_connected()) throw std::logic_error("trainer: connect it before the first step");
  const ranges::Range range("step");
  const int number = pipeline_.next_slot();
  const HostTensors& slot = plan_.slots[number];
  pipeline_.begin();
  const std::int64_t before = plan_.batch.first_sample(world_.rank());  // samples of the ranks before
  const auto sequences = static_cast<int>(plan_.batch.sequences_of(world_.rank()));
  const double fetch_s = events::now_s();
  tokens_in(arena_, slot).fill(sequences, [&](int i) {
    return sampler.fill(sampler.after(first_sample, before + i), row_), std::span(row_);
  });
  data_s_[number] = events::now_s() - fetch_s;
  pipeline_.start(launch_by_launch, [&](StepMarks& marks) { step_->enqueue(slot, marks, *strategy_, *hooks_); });
  optimizer_.note_step();
}

StepNumbers Trainer::collect() {
  const Pipeline::Ended ended = pipeline_.collect();
  if (started() == 0 && ended.was_by_launch && world_.size() > 1) strategy_->collect();
  const optim::StepState& s = *scalars_in(arena_, plan_.slots[ended.slot]).data();
  StepNumbers n{ended.phases};
  n.loss_sum = s.loss_sum;
  n.grad_norm = s.grad_norm;
  n.learning_rate = s.update.learning_rate;
  n.loss_scale = s.loss_scale;
  n.was_skipped = s.update.skip != 0;
  n.bad = s.bad;
  n.was_cold = ended.was_cold;
  n.step_s = ended.step_s;
  n.data_s = data_s_[ended.slot];
  return n;
}

ValidationSum Trainer::validate(const data::Sampler& sampler, std::int64_t windows) {
  const auto [first, last, most] = share_of(windows, world_.rank(), world_.size());
  const HostTokens tokens = tokens_in(arena_, plan_.validation);
  settle();
  Kokkos::deep_copy(exec_, validation_loss_, 0.0);
  strategy_->begin_inference();
  std::int64_t window = first;
  for (std::int64_t done = 0; done < most; done += plan_.batch.micro_sequences) {  // as often on every rank
    const int sequences = static_cast<int>(std::min<std::int64_t>(plan_.batch.micro_sequences, last - window));
    if (sequences <= 0) {
      follow();
      continue;
    }
    exec_.fence();             // the previous tokens have been copied
    phase("validation", [&] {  // also reports progress to the watchdog
      tokens.fill(sequences, [&](int i) { return sampler.fill_validation(window + i, row_), std::span(row_); });
      step_->validate(tokens, sequences, *hooks_);
    });
    window += sequences;
  }
  double loss_sum = 0;
  Kokkos::deep_copy(exec_, Kokkos::View<double, Kokkos::HostSpace, kernels::Unmanaged>(&loss_sum), validation_loss_);
  exec_.fence();
  return {loss_sum, static_cast<double>((last - first) * plan_.shape.T)};
}

void Trainer::follow() { model::walk_forward(plan_.table, model::Pass::inference, *hooks_); }

std::vector<SavedTensor> Trainer::saved_state(bool mine_only) {
  settle();
  return state_.saved(exec_, [&](std::size_t number) {
    return !mine_only || saves(plan_.sharing, world_.size(), world_.rank(), number);
  });
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
  state_.load(exec_, visit);
}

StateScalars Trainer::scalars() const {
  optim::StepState s;
  Kokkos::deep_copy(exec_, Kokkos::View<optim::StepState, Kokkos::HostSpace, kernels::Unmanaged>(&s), scalars_);
  exec_.fence();
  StateScalars scalars{s.step, s.optimizer_steps, s.good_steps, s.loss_scale};
  if (norms_.size() == 0) return scalars;
  std::vector<double> ring(norms_.size());
  kernels::download_bytes(norms_.data(), ring.data(), ring.size() * sizeof(double));
  const auto window = static_cast<std::int64_t>(ring.size());
  for (std::int64_t i = std::max<std::int64_t>(0, s.norms - window); i < s.norms; ++i) {
    scalars.norms.push_back(ring[i % window]);
  }
  return scalars;
}

void Trainer::set_scalars(const StateScalars& scalars) {
  settle();
  optim::StepState s{};
  s.update.skip = 1;  // no update is due
  s.step = scalars.step;
  s.optimizer_steps = scalars.optimizer_steps;
  s.good_steps = scalars.good_steps;
  s.loss_scale = scalars.loss_scale;
  if (norms_.size() > 0) {
    std::vector<double> ring(norms_.size());
    s.norms = std::min(std::ssize(ring), std::ssize(scalars.norms));
    std::copy(scalars.norms.end() - s.norms, scalars.norms.end(), ring.begin());
    upload(ring, norms_);
  }
  Kokkos::deep_copy(scalars_, Kokkos::View<optim::StepState, Kokkos::HostSpace, kernels::Unmanaged>(&s));
}

}  // namespace tessera::train
