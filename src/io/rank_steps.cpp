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
constexpr auto kMost = static_cast<std::int64_t>(kMostRanks);
static_assert(kCount == std::size(kRankQuantities));

// A table of ranks, and of their spread: its group, and its axis beside `step`.
constexpr const char *kByRank = "by_rank", *kRank = "rank", *kOverRanks = "over_ranks", *kStatistic = "statistic",
                     *kSlowest = "slowest_rank";

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

void RankSteps::resize(std::int64_t count) {
  written_ = std::min(written_, count);
  rows_.resize(static_cast<std::size_t>(count - written_));
}

void RankSteps::set_written() {
  written_ += std::ssize(rows_);
  rows_.clear();
}

void RankSteps::write(h5::Group& steps, const std::vector<std::int64_t>& step, std::int64_t ranks,
                      const h5::Group* earlier) const {
  std::int64_t width = ranks;
  for (const Row& row : rows_) width = std::max(width, row.is_spread ? kMost + 1 : std::ssize(row.entries));
  if (written_ > 0) {
    width = std::max(width, earlier->has(kOverRanks) ? kMost + 1 : earlier->group(kByRank).dataset(kRank).size());
  }
  const bool is_spread = width > kMost;
  if (is_spread) width = 3;

  Table table(steps, is_spread ? kOverRanks : kByRank, "step", step, {"1", "optimizer steps done, over all resumes"});
  h5::Dataset axis = is_spread ? table.group().write(kStatistic, std::vector<std::string>{"min", "mean", "max"},
                                                     {"1", "over the ranks"})
                               : table.group().write(kRank, numbers_up_to(width), {"1", "MPI rank"});
  axis.make_scale(is_spread ? kStatistic : kRank);
  std::vector<h5::Dataset> made;
  for (const auto& [name, meaning] : kColumns) {
    made.push_back(table.group().make<float>(name, {std::ssize(step), width}, meaning));
    made.back().attach_scale(table.scale(), 0);
    made.back().attach_scale(axis, 1);
  }
  if (is_spread) {
    made.push_back(table.group().make<std::int32_t>(kSlowest, {std::ssize(step)},
                                                    {"1", "that computed for longest; -1: unknown"}));
    made.back().attach_scale(table.scale(), 0);
  }

  std::vector<Row> rows;
  for (std::int64_t first = 0; first < std::ssize(step); first += std::ssize(rows)) {
    constexpr std::int64_t kPiece = 1 << 12;
    const std::int64_t next = first - written_;  // of rows_
    if (next < 0) {
      rows = rows_in(*earlier, first, std::min(kPiece, -next));
    } else {
      const auto at = [&](std::int64_t i) { return rows_.begin() + std::min(i, std::ssize(rows_)); };
      rows.assign(at(next), at(next + kPiece));
      rows.resize(static_cast<std::size_t>(std::min(kPiece, std::ssize(step) - first)));
    }
    if (is_spread) {
      for (Row& row : rows) {
        if (!row.is_spread) row = row_of(spread_of(row.entries));
      }
      made[kCount].write_from(first, std::span<const std::int32_t>(column(rows, &Row::slowest)));
    }
    for (std::size_t quantity = 0; quantity < kCount; ++quantity) {
      std::vector<float> values;
      for (Row& row : rows) {
        row.entries.resize(static_cast<std::size_t>(width));
        for (const RankRecord& entry : row.entries) values.push_back(entry.*kRankQuantities[quantity]);
      }
      made[quantity].write_from(first * width, std::span<const float>(values));
    }
  }
}

void RankSteps::load(const h5::Group& steps, std::int64_t count) {
  const bool is_spread = steps.has(kOverRanks);
  if (!is_spread && !steps.has(kByRank)) return resize(count);
  const h5::Group group = steps.group(is_spread ? kOverRanks : kByRank);
  const std::int64_t width = group.dataset(is_spread ? kStatistic : kRank).size();
  for (const auto& [name, meaning] : kColumns) {
    if (group.dataset(name).size() != count * width) throw std::out_of_range(name);
  }
  if (is_spread && group.dataset(kSlowest).size() != count) throw std::out_of_range(kSlowest);
  written_ = count;
}

std::vector<RankSteps::Row> RankSteps::rows_in(const h5::Group& steps, std::int64_t first, std::int64_t count) {
  const bool is_spread = steps.has(kOverRanks);
  const h5::Group group = steps.group(is_spread ? kOverRanks : kByRank);
  const std::int64_t width = group.dataset(is_spread ? kStatistic : kRank).size();
  std::vector<Row> rows(static_cast<std::size_t>(count),
                        {std::vector<RankRecord>(static_cast<std::size_t>(width)), is_spread});
  std::vector<float> values(static_cast<std::size_t>(count * width));
  for (std::size_t quantity = 0; quantity < kCount; ++quantity) {
    group.dataset(kColumns[quantity].first).read_from(first * width, std::span<float>(values));
    auto value = values.begin();
    for (Row& row : rows) {
      for (RankRecord& entry : row.entries) entry.*kRankQuantities[quantity] = *value++;
    }
  }
  if (!is_spread) return rows;
  std::vector<std::int32_t> slowest(rows.size());
  group.dataset(kSlowest).read_from(first, std::span<std::int32_t>(slowest));
  for (std::size_t row = 0; row < rows.size(); ++row) rows[row].slowest = slowest[row];
  return rows;
}

}  // namespace tessera::io
