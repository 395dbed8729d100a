/// Model FLOP utilisation.
///
///   MFU = (6 (P - V C) + 6 L C T) x tokens/s / (dense peak of the datasheet x GPUs)
///
/// P: parameters; the embedding's V C are in no product. 6 L C T: causal attention. Recomputation does not count.
///
/// Source  Chowdhery et al. 2022, arXiv:2204.02311, appendix B, with attention halved because it is causal.
#pragma once

#include <string>

#include "config/settings.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

class Mfu {
 public:
  /// The peak is that of precision.compute. Queries the device: Kokkos must be initialised.
  Mfu(const config::Settings& settings, const parallel::World& world);

  /// MFU of steps of `flop` over all ranks (train::step_flop) that take `step_s`; NaN if the peak is unknown.
  double of(double flop, double step_s) const { return flop / step_s / peak_; }

  double peak() const { return peak_; }  // of all devices [flop/s]; NaN if unknown

  /// "MFU = ... / (989 TFLOP/s dense x 4 GPUs)"; empty if the peak is unknown.
  std::string formula() const;

 private:
  int devices_;
  double peak_;
};

}  // namespace tessera::jobs
