#include "io/rank_steps.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "io/table.hpp"

namespace tessera::io {
namespace {

using Quantities = std::array<float, kRankQuantities>;

struct Quantity {
  const char* name;
  h5::Meaning meaning;
};
const Quantity kColumns[kRankQuantities] = {
    {"step_time", {"s", "duration of the step"}},
    {"compute_time", {"s", "forward, backward and update, waits for communication excepted"}},
    {"exposed_comm", {"s", "time in which the rank only waited for communication"}},
    {"data_time", {"s", "time in which the host fetched the step's tokens"}},
    {"device_free_bytes", {"byte", "free memory of the rank's GPU, read once a second at most"}},
    {"resident_bytes", {"byte", "memory of the process on its host, read once a second at most"}},
};
constexpr int kCompute = 1;  // in the order of kColumns

const h5::Meaning kStep{"1", "optimizer steps done, over all resumes"};
constexpr const char* kByRank = "by_rank";
constexpr const char* kOverRanks = "over_ranks";
constexpr const char* kStatistics[] = {"min", "mean", "max"};

Quantities no_numbers() {
  Quantities all;
  all.fill(kNoNumber);
  return all;
}

}  // namespace

Quantities quantities_of(const RankRecord& record) { return std::bit_cast<Quantities>(record); }

RankSpread spread_of(std::span<const RankRecord> ranks) {
  RankSpread spread{no_numbers(), no_numbers(), no_numbers()};
  std::array<double, kRankQuantities> sums{};
  std::array<int, kRankQuantities> counts{};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Quantities mine = quantities_of(ranks[rank]);
    if (!std::isnan(mine[kCompute]) && !(mine[kCompute] <= spread.max[kCompute])) {
      spread.slowest = static_cast<std::int32_t>(rank);
    }
    for (int i = 0; i < kRankQuantities; ++i) {
      if (std::isnan(mine[i])) continue;
      spread.min[i] = std::fmin(spread.min[i], mine[i]);  // of a number and NaN: the number
      spread.max[i] = std::fmax(spread.max[i], mine[i]);
      sums[i] += mine[i];
      ++counts[i];
    }
  }
  for (int i = 0; i < kRankQuantities; ++i) {
    if (counts[i] > 0) spread.mean[i] = static_cast<float>(sums[i] / counts[i]);
  }
  return spread;
}

void RankSteps::write(h5::Group& steps, const std::vector<std::int64_t>& step, std::int64_t ranks) const {
  auto most = static_cast<std::size_t>(ranks);
  for (const Row& row : rows_) most = std::max(most, row.is_spread ? kMostRanks + std::size_t{1} : row.ranks.size());
  if (most <= kMostRanks) return write_by_rank(steps, step, most);
  write_over_ranks(steps, step);
}

void RankSteps::write_by_rank(h5::Group& steps, const std::vector<std::int64_t>& step, std::size_t ranks) const {
  Table table(steps, kByRank, "step", step, kStep);
  h5::Dataset rank = table.group().write("rank", numbers_up_to(ranks), {"1", "MPI rank"});
  rank.make_scale("rank");
  for (int i = 0; i < kRankQuantities; ++i) {
    std::vector<float> values(step.size() * ranks, kNoNumber);
    for (std::size_t row = 0; row < std::min(rows_.size(), step.size()); ++row) {
      for (std::size_t r = 0; r < rows_[row].ranks.size(); ++r) {
        values[row * ranks + r] = quantities_of(rows_[row].ranks[r])[i];
      }
    }
    h5::Dataset made = table.group().write(kColumns[i].name, {std::ssize(step), static_cast<std::int64_t>(ranks)},
                                           std::span<const float>(values), kColumns[i].meaning);
    made.attach_scale(table.scale(), 0);
    made.attach_scale(rank, 1);
  }
}

void RankSteps::write_over_ranks(h5::Group& steps, const std::vector<std::int64_t>& step) const {
  Table table(steps, kOverRanks, "step", step, kStep);
  h5::Dataset statistic = table.group().write(
      "statistic", std::vector<std::string>(std::begin(kStatistics), std::end(kStatistics)), {"1", "over the ranks"});
  statistic.make_scale("statistic");
  std::vector<RankSpread> spreads;
  for (const Row& row : rows_) spreads.push_back(row.is_spread ? row.spread : spread_of(row.ranks));
  spreads.resize(step.size(), spread_of({}));
  for (int i = 0; i < kRankQuantities; ++i) {
    std::vector<float> values;
    for (const RankSpread& spread : spreads)
      values.insert(values.end(), {spread.min[i], spread.mean[i], spread.max[i]});
    h5::Dataset made = table.group().write(kColumns[i].name, {std::ssize(step), std::ssize(kStatistics)},
                                           std::span<const float>(values), kColumns[i].meaning);
    made.attach_scale(table.scale(), 0);
    made.attach_scale(statistic, 1);
  }
  table.add("slowest_rank", column(spreads, &RankSpread::slowest), {"1", "that computed for longest; -1: unknown"});
}

void RankSteps::load(const h5::Group& steps, std::size_t count) {
  rows_.assign(count, {});
  if (steps.has(kOverRanks)) {
    const h5::Group group = steps.group(kOverRanks);
    const auto slowest = group.dataset("slowest_rank").values<std::int32_t>();
    for (std::size_t row = 0; row < count; ++row) {
      rows_[row] = {{}, spread_of({}), true};
      rows_[row].spread.slowest = slowest.at(row);
    }
    for (int i = 0; i < kRankQuantities; ++i) {
      const auto values = group.dataset(kColumns[i].name).values<float>();
      for (std::size_t row = 0; row < count; ++row) {
        rows_[row].spread.min[i] = values.at(3 * row);
        rows_[row].spread.mean[i] = values.at(3 * row + 1);
        rows_[row].spread.max[i] = values.at(3 * row + 2);
      }
    }
  } else if (steps.has(kByRank)) {
    const h5::Group group = steps.group(kByRank);
    const auto ranks = static_cast<std::size_t>(group.dataset("rank").size());
    std::vector<Quantities> all(count * ranks);
    for (int i = 0; i < kRankQuantities; ++i) {
      const auto values = group.dataset(kColumns[i].name).values<float>();
      for (std::size_t entry = 0; entry < all.size(); ++entry) all[entry][i] = values.at(entry);
    }
    for (std::size_t row = 0; row < count; ++row) {
      for (std::size_t r = 0; r < ranks; ++r) {
        rows_[row].ranks.push_back(std::bit_cast<RankRecord>(all[row * ranks + r]));
      }
    }
  }
}

}  // namespace tessera::io
