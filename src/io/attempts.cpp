#include "io/attempts.hpp"

#include <chrono>
#include <numeric>

#include "io/table.hpp"

namespace tessera::io {

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void write_attempts(h5::Group& file, const std::vector<Attempt>& attempts) {
  std::vector<std::int64_t> numbers(attempts.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  Table table(file, "attempts", "attempt", numbers, {"1", "starts of the run: 0 the first, one more at each resume"});
  table.add("start", column(attempts, &Attempt::start_s), {kWallClock, "when the start opened this file, UTC"});
  table.add("end", column(attempts, &Attempt::end_s), {kWallClock, "when it last wrote this file, UTC"});
  table.add("reason", column(attempts, &Attempt::reason), {"1", "how it ended"});
  table.add("from_step", column(attempts, &Attempt::from_step), {"1", "optimizer steps done when it started"});
  table.add("hosts", column(attempts, &Attempt::hosts), {"1", "hosts, each with its ranks"});
  table.add("ranks", column(attempts, &Attempt::ranks), {"1", "ranks of the launch; 0: not recorded"});
  table.add("job", column(attempts, &Attempt::job), {"1", "number of the Slurm job; empty without Slurm"});
  table.add("commit", column(attempts, &Attempt::commit), {"1", "git commit of the program"});
}

std::vector<Attempt> load_attempts(const h5::Group& file, std::int64_t count) {
  std::vector<Attempt> attempts(static_cast<std::size_t>(count));
  if (!file.has("attempts")) {
    for (Attempt& attempt : attempts) attempt.reason = "not recorded";
    return attempts;
  }
  const h5::Group table = file.group("attempts");
  const auto start = table.dataset("start").values<double>(), end = table.dataset("end").values<double>();
  const auto reason = table.dataset("reason").strings(), hosts = table.dataset("hosts").strings(),
             job = table.dataset("job").strings(), commit = table.dataset("commit").strings();
  const auto from = table.dataset("from_step").values<std::int64_t>(),
             ranks = table.dataset("ranks").values<std::int64_t>();
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    attempts[i] = {start.at(i), end.at(i),   reason.at(i) == kRunning ? "killed" : reason.at(i),
                   from.at(i),  hosts.at(i), ranks.at(i),
                   job.at(i),   commit.at(i)};
  }
  return attempts;
}

}  // namespace tessera::io
