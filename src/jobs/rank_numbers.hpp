/// What this rank measures of its steps, kept in its memory until a flush of run.h5 brings it to rank 0.
#pragma once

#include <vector>

#include "io/rank_steps.hpp"
#include "io/step_record.hpp"
#include "parallel/world.hpp"
#include "train/trainer.hpp"

namespace tessera::jobs {

/// Free memory of this rank's GPU and memory of its process, read at most once a second.
class MemorySample {
 public:
  void refresh();
  float device_free_bytes() const { return device_free_; }  // NaN where it computes on a host
  float resident_bytes() const { return resident_; }

 private:
  double read_s_ = -1;  // events::now_s
  float device_free_ = io::kNoNumber, resident_ = io::kNoNumber;
};

/// Row `step` of /steps, as far as it follows from `numbers` and the mean loss of all ranks. Without times if the step
/// was profiled: its kernels were timed one by one.
io::StepRecord step_record(std::int64_t step, const train::StepNumbers& numbers, double loss,
                           const config::Settings& settings, bool is_profiled);

/// The same for this rank.
io::RankRecord rank_record(const train::StepNumbers& numbers, bool is_profiled, const MemorySample& memory);

/// Brings the records of all ranks, as many on each, to `steps` on rank 0; null on the others. Up to `most_ranks` ranks
/// send them whole, more reduce them first. Collective.
void gather(const parallel::World& world, const std::vector<io::RankRecord>& mine, io::RankSteps* steps,
            std::size_t most_ranks = io::kMostRanks);

}  // namespace tessera::jobs
