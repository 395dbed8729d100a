#include "io/attempts.hpp"

#include <chrono>
#include <stdexcept>

#include "io/table.hpp"

namespace tessera::io {
namespace {

const Column<Attempt> kColumns[] = {
    {"start", {kWallClock, "when the start opened this file, UTC"}, &Attempt::start_s},
    {"end", {kWallClock, "when it last wrote this file, UTC"}, &Attempt::end_s},
    {"reason", {"1", "how it ended"}, &Attempt::reason},
    {"from_step", {"1", "optimizer steps done when it started"}, &Attempt::from_step},
    {"hosts", {"1", "hosts, each with its ranks"}, &Attempt::hosts},
    {"ranks", {"1", "ranks of the launch; 0: not recorded"}, &Attempt::ranks},
    {"job", {"1", "number of the Slurm job; empty without Slurm"}, &Attempt::job},
    {"commit", {"1", "git commit of the program"}, &Attempt::commit},
};

}  // namespace

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void write_attempts(h5::Group& file, const std::vector<Attempt>& attempts) {
  Table(file, "attempts", "attempt", numbers_up_to(attempts.size()),
        {"1", "starts of the run: 0 the first, one more at each resume"})
      .add(kColumns, attempts);
}

std::vector<Attempt> load_attempts(const h5::Group& file, std::int64_t count) {
  if (!file.has("attempts")) {
    std::vector<Attempt> attempts(static_cast<std::size_t>(count));
    for (Attempt& attempt : attempts) attempt.reason = "not recorded";
    return attempts;
  }
  std::vector<Attempt> attempts = load_rows(file.group("attempts"), "reason", kColumns);
  if (std::ssize(attempts) < count) throw std::out_of_range("attempts");
  attempts.resize(static_cast<std::size_t>(count));
  for (Attempt& attempt : attempts) {
    if (attempt.reason == kRunning) attempt.reason = "killed";
  }
  return attempts;
}

}  // namespace tessera::io
