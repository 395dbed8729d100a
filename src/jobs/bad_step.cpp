#include "jobs/bad_step.hpp"

#include <fmt/format.h>

#include <cmath>

#include "io/checkpoint.hpp"
#include "kernels/core/words.hpp"
#include "optim/step_state.hpp"

namespace tessera::jobs {

std::string note_on_bad_step(const io::StepRecord& step, std::int64_t first, std::int64_t end, std::int64_t bad_steps,
                             const config::Train& keys) {
  return fmt::format("bad step   {}: loss {}, gradient norm {}; samples {}..{} are left out ({} of at most {})\n",
                     step.step, without_sign_of_nan(step.loss), without_sign_of_nan(step.grad_norm), first, end - 1,
                     bad_steps, keys.bad_steps_limit);
}

Failure failure_at_bad_step(const io::StepRecord& step, bool has_checkpoint, const config::Train& keys) {
  const bool is_spike = step.bad == static_cast<double>(optim::BadStep::spike);
  const char *what = "unusable", *advice = "A smaller optimizer.learning_rate or a longer warm-up usually helps";
  if (keys.on_bad_step != config::OnBadStep::stop) {
    what = "one bad step more than train.bad_steps_limit";
    advice =
        "With the same keys it would end here again: raise train.bad_steps_limit, lower optimizer.learning_rate or "
        "warm up for longer";
  } else if (is_spike) {
    what = "a spike";
    advice =
        "With the same keys it would end here again: train.on_bad_step=skip leaves these samples out, a larger "
        "train.spike_deviations lets them pass";
  }
  return Failure(Exit::numbers,
                 "step {}: loss {} and gradient norm {} are {}, and no checkpoint contains their results{}. {}",
                 step.step, without_sign_of_nan(step.loss), without_sign_of_nan(step.grad_norm), what,
                 !has_checkpoint            ? ""
                 : std::isfinite(step.loss) ? "; continue from the newest (--resume auto)"
                                            : "; continue from one before it diverged (--resume PATH)",
                 advice);
}

Failure failure_at_validation(std::int64_t step, double loss, bool has_checkpoint) {
  return Failure(
      Exit::numbers,
      "step {}: the validation loss is {}: the weights have diverged{}. A smaller optimizer.learning_rate or "
      "a longer warm-up usually helps",
      step, without_sign_of_nan(loss),
      has_checkpoint ? "; continue from a checkpoint before they did (--resume PATH)" : "");
}

std::string checkpoint_before_bad_step(const std::string& run_directory, std::int64_t last_step) {
  if (const auto newest = io::newest_checkpoint(run_directory)) return newest->string();
  throw Failure(Exit::files,
                "{}/checkpoints: what this run wrote there, the last of step {}, is gone, and after a bad step it goes "
                "back to one. Start again, or put them back and resume",
                run_directory, last_step);
}

}  // namespace tessera::jobs
