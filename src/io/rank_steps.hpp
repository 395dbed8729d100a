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

/// One row per step, in the order of /steps. Those that a file has are no longer in memory.
class RankSteps {
 public:
  void add(std::vector<RankRecord> ranks) { rows_.push_back({std::move(ranks)}); }
  void add(const RankSpread& spread) { rows_.push_back(row_of(spread)); }
  /// Keeps the first `count` rows; adds empty ones up to that.
  void resize(std::int64_t count);

  /// Below the group /steps, whose rows have the numbers `step`: rows not added yet are NaN. `ranks`: of the latest
  /// start. `earlier`: /steps of the file that has the rows before those added since; null if there is none.
  void write(h5::Group& steps, const std::vector<std::int64_t>& step, std::int64_t ranks,
             const h5::Group* earlier) const;
  /// All rows added are in a file now.
  void set_written();
  /// Those of an earlier file, `count` rows; empty ones from a file of an older version.
  /// Throws  std::out_of_range if it has another number of them.
  void load(const h5::Group& steps, std::int64_t count);

 private:
  struct Row {
    std::vector<RankRecord> entries = {};  // by rank, or min, mean, max
    bool is_spread = false;
    std::int32_t slowest = -1;  // of a spread
  };
  static Row row_of(const RankSpread& spread) { return {{spread.min, spread.mean, spread.max}, true, spread.slowest}; }
  static std::vector<Row> rows_in(const h5::Group& steps, std::int64_t first, std::int64_t count);

  std::int64_t written_ = 0;  // rows of a file
  std::vector<Row> rows_;     // those after them
};

}  // namespace tessera::io
