/// What every rank measured of every step: /steps/by_rank of run.h5, or for more than kMostRanks /steps/over_ranks.
///
///   /steps/by_rank/*    [step, rank] fp32: step_time, compute_time, exposed_comm, data_time, device_free_bytes,
///                       resident_bytes; NaN where a rank did not measure, or did not exist
///   /steps/over_ranks/* [step, statistic] fp32: the same as min, mean and max over the ranks; slowest_rank [step], the
///                       one that computed longest
///
/// A file has one of the two. Where starts of a run had different numbers of ranks, by_rank has as many as the largest;
/// once a step of more than kMostRanks ranks is kept, all steps are in over_ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "io/h5.hpp"

namespace tessera::io {

constexpr std::size_t kMostRanks = 16;
constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

/// One rank's numbers of one step. NaN where not measured.
struct RankRecord {
  float step_time_s = kNoNumber;
  float compute_s = kNoNumber;       // forward, backward and update, waits for communication excepted
  float exposed_comm_s = kNoNumber;  // waiting for communication and nothing else
  float data_s = kNoNumber;          // the host fetched the step's tokens
  float device_free_bytes = kNoNumber;
  float resident_bytes = kNoNumber;  // of the process
};
using RankQuantity = float RankRecord::*;
constexpr RankQuantity kRankQuantities[] = {&RankRecord::step_time_s,       &RankRecord::compute_s,
                                            &RankRecord::exposed_comm_s,    &RankRecord::data_s,
                                            &RankRecord::device_free_bytes, &RankRecord::resident_bytes};

/// The same over all ranks. NaN where none measured.
struct RankSpread {
  RankRecord min, mean, max;
  std::int32_t slowest = -1;  // rank with the largest compute_s, the first of several; -1: none measured
};
RankSpread spread_of(std::span<const RankRecord> ranks);

/// One row per step, in the order of /steps.
class RankSteps {
 public:
  void add(std::vector<RankRecord> ranks) { rows_.push_back({std::move(ranks)}); }
  void add(const RankSpread& spread) { rows_.push_back(row_of(spread)); }
  /// Keeps the first `count` rows; adds empty ones up to that.
  void resize(std::size_t count) { rows_.resize(count); }

  /// Below the group /steps, whose rows have the numbers `step`: rows not added yet are NaN. `ranks`: of the latest
  /// start.
  void write(h5::Group& steps, const std::vector<std::int64_t>& step, std::int64_t ranks) const;
  /// Those of an earlier file, `count` rows; empty ones from a file of an older version.
  void load(const h5::Group& steps, std::size_t count);

 private:
  struct Row {
    std::vector<RankRecord> entries = {};  // by rank, or min, mean, max
    bool is_spread = false;
    std::int32_t slowest = -1;  // of a spread
  };
  static Row row_of(const RankSpread& spread) { return {{spread.min, spread.mean, spread.max}, true, spread.slowest}; }

  std::vector<Row> rows_;
};

}  // namespace tessera::io
