#include "jobs/mfu.hpp"

#include <fmt/format.h>

#include <cmath>

#include "jobs/jobs.hpp"
#include "kernels/core/device_info.hpp"
#include "kernels/core/gpus.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::jobs {

Mfu::Mfu(const config::Settings& settings, const parallel::World& world)
    : devices_(world.device_count()),
      peak_(1e12 * devices_ *
            kernels::dense_peak_tflops(kernels::device_info().name, word_of("precision.compute", settings))) {}

std::string Mfu::formula() const {
  if (std::isnan(peak_)) return "";
  return fmt::format("MFU = (6 (P - V C) + 6 L C T) x tokens/s / ({:.4g} TFLOP/s dense x {} {})",
                     1e-12 * peak_ / devices_, devices_, devices_ == 1 ? "GPU" : "GPUs");
}

}  // namespace tessera::jobs
