/// The numbers of one optimizer step, as trace and console take them. NaN where not measured.
#pragma once

#include <cstdint>
#include <limits>

namespace tessera::io {

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

struct StepRecord {
  std::int64_t step = 0;                  // optimizer steps done, counted from 1 over all resumes
  double loss = kNotMeasured;             // nats per token, mean over the global batch
  double validation_loss = kNotMeasured;  // nats per token
  double grad_norm = kNotMeasured;        // global, before clipping
  double learning_rate = kNotMeasured;
  double tokens = kNotMeasured;  // trained on since step 0, over all ranks
  double step_time_s = kNotMeasured;
  double forward_s = kNotMeasured;
  double backward_s = kNotMeasured;
  double exposed_comm_s = kNotMeasured;  // waiting for communication and nothing else
  double optimizer_s = kNotMeasured;
  double tokens_per_second = kNotMeasured;  // over all ranks
  double mfu = kNotMeasured;                // fraction of the dense peak of all GPUs
  double peak_bytes = kNotMeasured;         // rank 0's arena
  double loss_scale = kNotMeasured;         // fp16 only
  double wall_time_s = kNotMeasured;        // when it had ended, since 1970
  double first_sample = kNotMeasured;       // of its batch
  double bad = kNotMeasured;                // optim::BadStep
  std::int32_t attempt = 0;                 // start of the run that made it; the trace sets it
};

}  // namespace tessera::io
