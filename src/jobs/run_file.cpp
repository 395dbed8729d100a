#include "jobs/run_file.hpp"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "errors.hpp"
#include "kernels/core/device_info.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/core/words.hpp"
#include "optim/step_state.hpp"

namespace tessera::jobs {
namespace {

constexpr double kRefresh_s = 1;

float resident_bytes_of_process() {
  std::int64_t whole = 0, resident = 0;  // pages
  if (!(std::ifstream("/proc/self/statm") >> whole >> resident)) return io::kNoNumber;
  return static_cast<float>(resident * sysconf(_SC_PAGESIZE));
}

void gather_whole(const parallel::World& world, const std::vector<io::RankRecord>& mine, io::RankSteps* steps) {
  std::string bytes(mine.size() * sizeof(io::RankRecord), '\0');
  std::memcpy(bytes.data(), mine.data(), bytes.size());
  const std::vector<std::string> all = world.all_gather(bytes);
  if (steps == nullptr) return;
  for (std::size_t step = 0; step < mine.size(); ++step) {
    std::vector<io::RankRecord> ranks(all.size());
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      std::memcpy(&ranks[rank], all[rank].data() + step * sizeof(io::RankRecord), sizeof(io::RankRecord));
    }
    steps->add(std::move(ranks));
  }
}

/// Extremes over the ranks travel as maxima, those of -x included; who has not measured sends -inf, and counts for
/// nothing in the mean.
void gather_spread(const parallel::World& world, const std::vector<io::RankRecord>& mine, io::RankSteps* steps) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<double> sums, extremes;  // [step][quantity] value and count; largest and -smallest
  for (const io::RankRecord& record : mine) {
    for (const auto quantity : io::kRankQuantities) {
      const double value = record.*quantity;
      const bool is_measured = !std::isnan(value);
      sums.insert(sums.end(), {is_measured ? value : 0, is_measured ? 1.0 : 0.0});
      extremes.insert(extremes.end(), {is_measured ? value : kNone, is_measured ? -value : kNone});
    }
  }
  sums = world.sum(std::move(sums));
  extremes = world.max(std::move(extremes));
  std::vector<io::RankSpread> spreads(mine.size());
  std::vector<double> slowest;  // [step] -rank, so that the first of several counts
  std::size_t at = 0;
  for (std::size_t step = 0; step < mine.size(); ++step) {
    for (const auto quantity : io::kRankQuantities) {
      if (sums[at + 1] > 0) {
        spreads[step].max.*quantity = static_cast<float>(extremes[at]);
        spreads[step].min.*quantity = static_cast<float>(-extremes[at + 1]);
        spreads[step].mean.*quantity = static_cast<float>(sums[at] / sums[at + 1]);
      }
      at += 2;
    }
    slowest.push_back(mine[step].compute_s == spreads[step].max.compute_s ? -world.rank() : kNone);
  }
  slowest = world.max(std::move(slowest));
  if (steps == nullptr) return;
  for (std::size_t step = 0; step < mine.size(); ++step) {
    if (slowest[step] > kNone) spreads[step].slowest = static_cast<std::int32_t>(-slowest[step]);
    steps->add(spreads[step]);
  }
}

}  // namespace

void MemorySample::refresh() {
  const double now_s = events::now_s();
  if (read_s_ >= 0 && now_s - read_s_ < kRefresh_s) return;
  read_s_ = now_s;
  resident_ = resident_bytes_of_process();
  if constexpr (!kernels::kIsHost<kernels::Device>) {
    device_free_ = static_cast<float>(kernels::device_info().free_bytes);
  }
}

io::StepRecord step_record(std::int64_t step, const train::StepNumbers& numbers, double loss,
                           const config::Settings& settings, bool is_profiled) {
  optim::BadStep bad = numbers.bad;
  if (bad == optim::BadStep::no && !std::isfinite(loss)) bad = optim::BadStep::not_finite;  // fp16: the scale halves
  io::StepRecord record{.step = step,
                        .loss = loss,
                        .grad_norm = numbers.grad_norm,
                        .learning_rate = numbers.learning_rate,
                        .wall_time_s = io::wall_clock_s(),
                        .bad = static_cast<double>(bad)};
  if (settings.precision.compute == config::Precision::fp16) record.loss_scale = numbers.loss_scale;
  if (is_profiled) return record;
  record.step_time_s = numbers.step_s;
  record.forward_s = numbers.forward_s;
  record.backward_s = numbers.backward_s;
  record.exposed_comm_s = numbers.exposed_comm_s;
  record.optimizer_s = numbers.optimizer_s;
  const std::int64_t tokens = settings.train.batch_size * settings.model.context_length;
  record.tokens_per_second = static_cast<double>(tokens) / numbers.step_s;
  return record;
}

io::RankRecord rank_record(const train::StepNumbers& numbers, bool is_profiled, const MemorySample& memory) {
  io::RankRecord record{.device_free_bytes = memory.device_free_bytes(), .resident_bytes = memory.resident_bytes()};
  if (is_profiled) return record;
  record.step_time_s = static_cast<float>(numbers.step_s);
  record.compute_s = static_cast<float>(numbers.forward_s + numbers.backward_s + numbers.optimizer_s);
  record.exposed_comm_s = static_cast<float>(numbers.exposed_comm_s);
  record.data_s = static_cast<float>(numbers.data_s);
  return record;
}

void require_profiled_ranks(parallel::World& world, const config::Trace& keys) {
  for (const std::int64_t rank : keys.profile_ranks) {
    if (rank < world.size()) continue;
    world.fail(Failure(Exit::usage,
                       "trace.profile_ranks: there is no rank {} in this run of {}; name ranks from 0 to {}", rank,
                       counted(world.size(), "rank"), world.size() - 1));
  }
}

void gather(const parallel::World& world, const std::vector<io::RankRecord>& mine, io::RankSteps* steps,
            std::size_t most_ranks) {
  if (mine.empty()) return;
  static_cast<std::size_t>(world.size()) <= most_ranks ? gather_whole(world, mine, steps)
                                                       : gather_spread(world, mine, steps);
}

}  // namespace tessera::jobs
