/// What a training run says of its bad steps (train.on_bad_step).
#pragma once

#include <cstdint>
#include <string>

#include "config/settings.hpp"
#include "errors.hpp"
#include "io/step_record.hpp"

namespace tessera::jobs {

/// The line of a bad step whose samples, first .. end - 1, are left out from now on.
std::string note_on_bad_step(const io::StepRecord& step, std::int64_t first, std::int64_t end, std::int64_t bad_steps,
                             const config::Train& keys);

/// What ends the run at a bad step: train.on_bad_step = "stop", or more of them than train.bad_steps_limit.
Failure failure_at_bad_step(const io::StepRecord& step, bool has_checkpoint, const config::Train& keys);

/// What ends the run, before it saves, at a validation whose loss is not finite: the weights have diverged, although
/// the numbers of the steps, of other samples, may not show it.
Failure failure_at_validation(std::int64_t step, double loss, bool has_checkpoint);

/// The checkpoint to go back to, for rank 0. `last_step`: of the newest that the run wrote.
/// Throws  Failure(Exit::files) if there is none any more.
std::string checkpoint_before_bad_step(const std::string& run_directory, std::int64_t last_step);

}  // namespace tessera::jobs
