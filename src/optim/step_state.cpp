#include "optim/step_state.hpp"  // the contract is there; here is how

#include "kernels/core/random.hpp"

namespace tessera::optim {

using Exec = kernels::Device;

template <class Real>
void BeginStep<Real>::launch(const Exec& exec) const {
  Kokkos::parallel_for("tessera::optim::begin_step", Kokkos::RangePolicy<Exec>(exec, 0, 1), *this);
}

template <class Real>
KOKKOS_FUNCTION void BeginStep<Real>::operator()(int) const {
  state().loss_sum = 0;
  grad_scale() = static_cast<Real>(state().loss_scale / tokens);
}

void PrepareUpdate::launch(const Exec& exec) const {
  Kokkos::parallel_for("tessera::optim::prepare_update", Kokkos::RangePolicy<Exec>(exec, 0, 1), *this);
}

KOKKOS_FUNCTION void PrepareUpdate::operator()(int) const {
  StepState& s = state();
  const double scale = s.loss_scale;
  s.grad_norm = kernels::sqrt(s.norm_squared) / scale;
  const bool is_finite = precedes_norm || s.norm_squared - s.norm_squared == 0;

  const bool is_rescaled = !is_finite && scales_dynamically && scale > 1;  // an overflow, to be expected
  s.bad = is_finite ? is_spike(s) ? BadStep::spike : BadStep::no : is_rescaled ? BadStep::no : BadStep::not_finite;
  const bool is_good = is_finite && s.bad == BadStep::no;
  s.update.skip = is_good ? 0 : 1;
  if (is_good) {
    ++s.optimizer_steps;
    if (spike_deviations > 0) norms(s.norms++ % norms.extent_int(0)) = s.grad_norm;
  }
  if (is_finite) {
    if (scales_dynamically && ++s.good_steps == kGrowthInterval) {
      s.good_steps = 0;
      s.loss_scale = scale < kMaxLossScale ? scale * 2 : scale;
    }
  } else if (scales_dynamically) {
    s.good_steps = 0;
    s.loss_scale = scale > 1 ? scale / 2 : scale;
  }

  const double clip = clip_norm / (s.grad_norm + 1e-6);  // torch.nn.utils.clip_grad_norm_ adds the same 1e-6
  s.update.grad_scale = (clip_norm > 0 && clip < 1 ? clip : 1.0) / scale;
  s.update.learning_rate = schedule.learning_rate_at(s.step);
  const double t = static_cast<double>(s.optimizer_steps);
  s.update.bias1 = 1 - kernels::exp(t * kernels::log(beta1));
  s.update.bias2 = 1 - kernels::exp(t * kernels::log(beta2));
  s.update.noise = mix(seed, static_cast<std::uint64_t>(s.step));
  ++s.step;
}

/// Sums run from the oldest norm on, so that a resumed run gets the same bits.
KOKKOS_FUNCTION bool PrepareUpdate::is_spike(const StepState& s) const {
  const int window = norms.extent_int(0);
  if (spike_deviations == 0 || s.norms < window) return false;
  double mean = 0, squares = 0;
  for (int i = 0; i < window; ++i) mean += norms((s.norms + i) % window);
  mean /= window;
  for (int i = 0; i < window; ++i) {
    const double difference = norms((s.norms + i) % window) - mean;
    squares += difference * difference;
  }
  return s.grad_norm > mean + spike_deviations * kernels::sqrt(squares / window);
}

void FinishUpdate::launch(const Exec& exec) const {
  Kokkos::parallel_for("tessera::optim::finish_update", Kokkos::RangePolicy<Exec>(exec, 0, 1), *this);
}

KOKKOS_FUNCTION void FinishUpdate::operator()(int) const {
  StepState& s = state();
  s.grad_norm = kernels::sqrt(s.norm_squared) / s.loss_scale;
  if (s.norm_squared - s.norm_squared == 0) return;
  s.update.skip = 1;
  s.bad = BadStep::not_finite;
  --s.optimizer_steps;
}

template struct BeginStep<float>;
template struct BeginStep<double>;

}  // namespace tessera::optim
