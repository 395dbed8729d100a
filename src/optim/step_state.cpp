#include "optim/step_state.hpp"  // the contract is there; here is how

#include "kernels/core/compat.hpp"
#include "kernels/core/random.hpp"

namespace tessera::optim {

template <class Exec, class Real>
void BeginStep<Exec, Real>::launch(const Exec& exec) const {
  Kokkos::parallel_for("tessera::optim::begin_step", Kokkos::RangePolicy<Exec>(exec, 0, 1), *this);
}

template <class Exec, class Real>
KOKKOS_FUNCTION void BeginStep<Exec, Real>::operator()(int) const {
  state().loss_sum = 0;
  grad_scale() = static_cast<Real>(state().loss_scale / tokens);
}

template <class Exec>
void PrepareUpdate<Exec>::launch(const Exec& exec) const {
  Kokkos::parallel_for("tessera::optim::prepare_update", Kokkos::RangePolicy<Exec>(exec, 0, 1), *this);
}

template <class Exec>
KOKKOS_FUNCTION void PrepareUpdate<Exec>::operator()(int) const {
  StepState& s = state();
  const double scale = s.loss_scale;
  s.grad_norm = kernels::sqrt(s.norm_squared) / scale;
  const bool is_finite = precedes_norm || s.norm_squared - s.norm_squared == 0;

  s.update.skip = is_finite ? 0 : 1;
  if (is_finite) {
    ++s.optimizer_steps;
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

template <class Exec>
void FinishUpdate<Exec>::launch(const Exec& exec) const {
  Kokkos::parallel_for("tessera::optim::finish_update", Kokkos::RangePolicy<Exec>(exec, 0, 1), *this);
}

template <class Exec>
KOKKOS_FUNCTION void FinishUpdate<Exec>::operator()(int) const {
  StepState& s = state();
  s.grad_norm = kernels::sqrt(s.norm_squared) / s.loss_scale;
  if (s.norm_squared - s.norm_squared == 0) return;
  s.update.skip = 1;
  --s.optimizer_steps;
}

template struct BeginStep<kernels::Device, float>;
template struct BeginStep<kernels::Device, double>;
template struct PrepareUpdate<kernels::Device>;
template struct FinishUpdate<kernels::Device>;

}  // namespace tessera::optim
