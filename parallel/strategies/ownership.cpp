#include "parallel/strategies/ownership.hpp"

#include <algorithm>
#include <stdexcept>

#include "kernels/core/round_up.hpp"

namespace tessera::parallel {

Ownership::Ownership(std::vector<Unit> units, int shards) : units_(std::move(units)), shards_(shards) {
  if (shards < 1) throw std::invalid_argument("ownership: at least one shard");
  owned_first_.push_back(0);
  std::int64_t end = 0;
  for (const Unit& unit : units_) {
    if (unit.first != end || unit.count < 0) {
      throw std::invalid_argument("ownership: unit '" + unit.label + "' does not begin where the one before ends");
    }
    end += unit.count;
    parts_.push_back(kernels::round_up(kernels::ceil_div(unit.count, std::int64_t{shards}), kAlignment));
    owned_first_.push_back(owned_first_.back() + parts_.back());
  }
}

Range Ownership::owned(int unit, int shard) const {
  const std::int64_t count = units_[unit].count;
  const std::int64_t first = std::min(count, shard * parts_[unit]);
  const std::int64_t last = std::min(count, (shard + 1) * parts_[unit]);
  return {units_[unit].first + first, last - first};
}

std::vector<bool> stays_in_place(const std::vector<int>& openings, int times, const std::vector<int>& places) {
  std::vector<int> unit_in_place;  // [places], -1: none
  for (const int place : places) {
    unit_in_place.resize(std::max(unit_in_place.size(), static_cast<std::size_t>(place) + 1), -1);
  }
  std::vector<bool> stays;
  for (int i = 0; i < times; ++i) {
    for (const int unit : openings) {
      int& there = unit_in_place[places.at(static_cast<std::size_t>(unit))];
      stays.push_back(there == unit);
      there = unit;
    }
  }
  return stays;
}

}  // namespace tessera::parallel
