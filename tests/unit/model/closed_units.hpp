/// Hooks that overwrite the weights of every closed unit with NaN, so that a kernel that reads a weight while its unit
/// is closed produces NaN. Between passes all weights are restored.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "model/hooks.hpp"
#include "unit/model/pass.hpp"

namespace tessera::test {

class ClosedUnits final : public model::Hooks {
 public:
  using Bytes = kernels::Vector<unsigned char, Device>;

  /// `units`: the memory of each unit of `table`, of any floating-point type.
  ClosedUnits(const model::ParamTable& table, const std::vector<Bytes>& units) : table_(table) {
    for (const Bytes& unit : units) units_.push_back({unit, allocate_bytes(unit.size())});
  }
  /// `params`: the flat array of `table`, on the device.
  template <class Scalar>
  ClosedUnits(const model::ParamTable& table, Scalar* params) : ClosedUnits(table, units_of(table, params)) {}

  /// Closes all units ahead of a pass, which otherwise begins with its first opening.
  void close_all() {
    Kokkos::fence();
    for (Unit& unit : units_) close(unit);
  }
  /// The weights are about to be gathered: each unit, under way until it is opened, is left alone until then.
  void expect_gathers() {
    for (Unit& unit : units_) unit.is_there = false;
  }

  void before(model::Pass pass, int unit) override {
    Kokkos::fence();
    if (!is_in_pass_) {
      close_all();
      is_in_pass_ = true;
      last_unit_ = pass == model::Pass::inference ? static_cast<int>(units_.size()) - 1 : 0;
      last_pass_ = pass == model::Pass::inference ? pass : model::Pass::backward;
    }
    EXPECT_EQ(open_.count({pass, unit}), 0u) << "unit " << unit << " is opened twice";
    reopen(units_[unit]);
    units_[unit].is_there = true;
    open_.insert({pass, unit});
  }
  void after(model::Pass pass, int unit) override {
    Kokkos::fence();
    EXPECT_EQ(open_.erase({pass, unit}), 1u) << "unit " << unit << " is closed and was not open";
    if (!is_open(unit)) close(units_[unit]);
    if (pass != last_pass_ || unit != last_unit_) return;
    EXPECT_TRUE(open_.empty()) << "a pass ends with units open";
    for (Unit& each : units_) reopen(each);
    is_in_pass_ = false;
    ++passes;
  }
  void gradient_enqueued(int param) override {
    EXPECT_TRUE(open_.count({model::Pass::backward, table_.params()[param].unit})) << table_.params()[param].label;
  }
  int passes = 0;  // completed

 private:
  struct Unit {
    Bytes weights;
    DeviceBytes kept;  // while it is closed
    bool is_there = true, is_closed = false;
  };

  template <class Scalar>
  static std::vector<Bytes> units_of(const model::ParamTable& table, Scalar* params) {
    std::vector<Bytes> units;
    for (const model::UnitSpan& span : table.units()) {
      units.emplace_back(reinterpret_cast<unsigned char*>(params + span.first), span.count * sizeof(Scalar));
    }
    return units;
  }

  bool is_open(int unit) const {
    return std::any_of(open_.begin(), open_.end(), [&](const auto& one) { return one.second == unit; });
  }
  static void close(Unit& unit) {
    if (!unit.is_there || std::exchange(unit.is_closed, true)) return;
    Kokkos::deep_copy(unit.kept, unit.weights);
    Kokkos::deep_copy(unit.weights, static_cast<unsigned char>(0xFF));  // NaN in every format
  }
  static void reopen(Unit& unit) {
    if (std::exchange(unit.is_closed, false)) Kokkos::deep_copy(unit.weights, unit.kept);
  }

  const model::ParamTable& table_;
  std::vector<Unit> units_;
  std::set<std::pair<model::Pass, int>> open_;
  bool is_in_pass_ = false;
  model::Pass last_pass_ = model::Pass::backward;
  int last_unit_ = 0;
};

}  // namespace tessera::test
