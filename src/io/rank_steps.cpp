#include "io/rank_steps.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "io/table.hpp"

namespace tessera::io {
namespace {

const std::pair<const char*, h5::Meaning> kColumns[] = {
    {"step_time", {"s", "duration of the step"}},
    {"compute_time", {"s", "forward, backward and update, waits for communication excepted"}},
    {"exposed_comm", {"s", "time in which the rank only waited for communication"}},
    {"data_time", {"s", "time in which the host fetched the step's tokens"}},
    {"device_free_bytes", {"byte", "free memory of the rank's GPU, read once a second at most"}},
    {"resident_bytes", {"byte", "memory of the process on its host, read once a second at most"}},
};  // of kRankQuantities
constexpr std::size_t kCount = std::size(kColumns);
static_assert(kCount == std::size(kRankQuantities));

// A table of ranks, and of their spread: its group, and its axis beside `step`.
constexpr const char *kByRank = "by_rank", *kRank = "rank", *kOverRanks = "over_ranks", *kStatistic = "statistic";

}  // namespace

RankSpread spread_of(std::span<const RankRecord> ranks) {
  RankSpread spread;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const float most = spread.slowest < 0 ? -1 : ranks[spread.slowest].compute_s;
    if (ranks[rank].compute_s > most) spread.slowest = static_cast<std::int32_t>(rank);
  }
  for (const auto quantity : kRankQuantities) {
    double sum = 0;
    int count = 0;
    for (const RankRecord& record : ranks) {
      const float value = record.*quantity;
      if (std::isnan(value)) continue;
      spread.min.*quantity = std::fmin(spread.min.*quantity, value);  // of a number and NaN: the number
      spread.max.*quantity = std::fmax(spread.max.*quantity, value);
      sum += value;
      ++count;
    }
    if (count > 0) spread.mean.*quantity = static_cast<float>(sum / count);
  }
  return spread;
}

void RankSteps::write(h5::Group& steps, const std::vector<std::int64_t>& step, std::int64_t ranks) const {
  auto width = static_cast<std::size_t>(ranks);
  for (const Row& row : rows_) width = std::max(width, row.is_spread ? kMostRanks + 1 : row.entries.size());
  const bool is_spread = width > kMostRanks;
  std::vector<Row> spreads;
  if (is_spread) {
    width = 3;
    for (const Row& row : rows_) spreads.push_back(row.is_spread ? row : row_of(spread_of(row.entries)));
  }
  const std::vector<Row>& rows = is_spread ? spreads : rows_;

  Table table(steps, is_spread ? kOverRanks : kByRank, "step", step, {"1", "optimizer steps done, over all resumes"});
  h5::Dataset axis = is_spread ? table.group().write(kStatistic, std::vector<std::string>{"min", "mean", "max"},
                                                     {"1", "over the ranks"})
                               : table.group().write(kRank, numbers_up_to(width), {"1", "MPI rank"});
  axis.make_scale(is_spread ? kStatistic : kRank);
  for (std::size_t column = 0; column < kCount; ++column) {
    std::vector<float> values(step.size() * width, kNoNumber);
    for (std::size_t row = 0; row < std::min(rows.size(), step.size()); ++row) {
      for (std::size_t i = 0; i < rows[row].entries.size(); ++i) {
        values[row * width + i] = rows[row].entries[i].*kRankQuantities[column];
      }
    }
    const auto& [name, meaning] = kColumns[column];
    h5::Dataset made = table.group().write(name, {std::ssize(step), static_cast<std::int64_t>(width)},
                                           std::span<const float>(values), meaning);
    made.attach_scale(table.scale(), 0);
    made.attach_scale(axis, 1);
  }
  if (!is_spread) return;
  std::vector<std::int32_t> slowest = column(rows, &Row::slowest);
  slowest.resize(step.size(), -1);
  table.add("slowest_rank", slowest, {"1", "that computed for longest; -1: unknown"});
}

void RankSteps::load(const h5::Group& steps, std::size_t count) {
  rows_.assign(count, {});
  const bool is_spread = steps.has(kOverRanks);
  if (!is_spread && !steps.has(kByRank)) return;
  const h5::Group group = steps.group(is_spread ? kOverRanks : kByRank);
  const auto width = static_cast<std::size_t>(group.dataset(is_spread ? kStatistic : kRank).size());
  rows_.assign(count, {std::vector<RankRecord>(width), is_spread});
  for (std::size_t column = 0; column < kCount; ++column) {
    const auto values = group.dataset(kColumns[column].first).values<float>();
    for (std::size_t i = 0; i < count * width; ++i) {
      rows_[i / width].entries[i % width].*kRankQuantities[column] = values.at(i);
    }
  }
  if (!is_spread) return;
  const auto slowest = group.dataset("slowest_rank").values<std::int32_t>();
  for (std::size_t row = 0; row < count; ++row) rows_[row].slowest = slowest.at(row);
}

}  // namespace tessera::io
