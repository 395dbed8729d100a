/// The scalars of a training step, in device memory: loss, norm, learning rate, loss scale, the update's factors.
///
/// One struct, updated by one-thread kernels, so that a step needs no round trip to the host:
///   BeginStep      clears the loss and sets what every gradient of the step is multiplied by
///   PrepareUpdate  norm -> clip factor, overflow -> skip and a smaller loss scale, spike -> skip, schedule -> learning
///                  rate
///   FinishUpdate   the part that PrepareUpdate omits if it precedes the norm
///
/// Sources  clipping: Pascanu et al. 2013, arXiv:1211.5063; dynamic loss scaling: Micikevicius et al. 2018,
///          arXiv:1710.03740, section 3.2.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>

#include "kernels/core/compat.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/update_blocks.hpp"

namespace tessera::optim {

/// Learning rate as a function of the step: linear warm-up, then a cosine down to the minimum.
struct Schedule {
  double peak, minimum;
  std::int64_t warmup_steps, steps;

  /// Rate of step 0, 1, ...: the last warm-up step has the peak; from `steps` on it is the minimum.
  /// Source: Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, one cycle.
  KOKKOS_INLINE_FUNCTION double learning_rate_at(std::int64_t step) const {
    if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    if (step >= steps) return minimum;
    const double done = static_cast<double>(step - warmup_steps) / static_cast<double>(steps - warmup_steps);
    return minimum + 0.5 * (peak - minimum) * (1 + kernels::cos(3.14159265358979323846 * done));
  }
};

/// Why a step changes no weights, where that is for the run to answer (train.on_bad_step).
enum class BadStep : std::int64_t { no, not_finite, spike };

struct StepState {
  double loss_sum;               // over this rank's tokens of the step, nats
  double norm_squared;           // of the summed, scaled gradients
  double grad_norm;              // of the mean gradients, before clipping
  double loss_scale;             // 1 unless fp16
  std::int64_t good_steps;       // since the loss scale last changed
  std::int64_t optimizer_steps;  // updates that were not skipped
  std::int64_t step;             // completed steps, the schedule's index
  BadStep bad;                   // the latest
  std::int64_t norms;            // written so far to PrepareUpdate::norms
  kernels::UpdateScalars update;
};

using StateView = kernels::Value<StepState, kernels::Device>;

/// The state at its address in an arena, whose layout declares it as 8-byte numbers.
inline StateView state_at(double* memory) { return StateView(reinterpret_cast<StepState*>(memory)); }

/// grad_scale = loss_scale / tokens: the gradients, summed over ranks, are then those of the mean loss, scaled.
template <class Real>
struct BeginStep {
  StateView state;
  kernels::Value<Real, kernels::Device> grad_scale;
  double tokens;  // of the whole step, over all ranks

  void launch(const kernels::Device& exec) const;
  KOKKOS_FUNCTION void operator()(int) const;
};

struct PrepareUpdate {
  StateView state;
  Schedule schedule;
  double beta1, beta2;
  double clip_norm;            // 0: off
  bool scales_dynamically;     // fp16
  std::uint64_t seed;          // of stochastic rounding
  bool precedes_norm = false;  // no clipping, no fp16: nothing here needs the norm; FinishUpdate follows
  // A norm above the mean of the last good ones by more than so many deviations is a spike; 0: none is.
  double spike_deviations = 0;
  kernels::Vector<double, kernels::Device> norms = {};  // [window] the good ones, in a ring

  static constexpr double kMaxLossScale = 1 << 24;
  static constexpr std::int64_t kGrowthInterval = 2000;  // good steps before the loss scale doubles

  void launch(const kernels::Device& exec) const;
  KOKKOS_FUNCTION void operator()(int) const;

 private:
  KOKKOS_FUNCTION bool is_spike(const StepState& s) const;
};

/// The norm, and whether it is finite: if not, later updates are skipped.
struct FinishUpdate {
  StateView state;

  void launch(const kernels::Device& exec) const;
  KOKKOS_FUNCTION void operator()(int) const;
};

}  // namespace tessera::optim
