/// Model flop utilisation: the share of the GPUs' dense peak that the model's own arithmetic takes.
///
///   MFU = (6 (P - V C) + 6 L C T) x tokens/s / (dense peak of the datasheet x GPUs)
///
/// P parameters, of which the embedding's V C multiply nothing; 6 L C T is causal attention. Recomputation does not
/// count. Source: Chowdhery et al. 2022, arXiv:2204.02311, appendix B, with attention halved because it is causal.
#pragma once

#include <string>

#include "config/settings.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

std::string format_of(config::Precision precision);  // "bf16": what matrix units multiply

class Mfu {
 public:
  /// Asks the device, so Kokkos runs; the peak is that of precision.compute.
  Mfu(const config::Settings& settings, const parallel::World& world);

  /// Of steps of `flop` over all ranks (train::step_flop) that take `step_s`; NaN where the peak is not known.
  double of(double flop, double step_s) const { return flop / step_s / peak_; }

  /// "MFU = ... / (989 TFLOP/s dense x 4 GPUs)"; empty where the peak is not known.
  std::string formula() const;

 private:
  int devices_;
  double peak_;  // of all devices [flop/s]
};

}  // namespace tessera::jobs
