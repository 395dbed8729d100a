/// Hooks that overwrite the weights of every closed unit with NaN, so that a kernel that reads a weight while its unit
/// is closed produces NaN. Between passes all weights are restored.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "model/hooks.hpp"
#include "unit/model/pass.hpp"

namespace tessera::test {

template <class Scalar>
class ClosedUnits final : public model::Hooks {
 public:
  /// `params`: the flat array of `table`, on the device.
  ClosedUnits(const model::ParamTable& table, Scalar* params)
      : table_(table), params_(params, table.flat_count()), kept_("kept", table.flat_count()) {}

  void before(model::Pass pass, int unit) override {
    Kokkos::fence();
    if (!is_in_pass_) {
      Kokkos::deep_copy(kept_, params_);
      for (const model::UnitSpan& span : table_.units()) close(span);
      is_in_pass_ = true;
      last_unit_ = pass == model::Pass::inference ? static_cast<int>(table_.units().size()) - 1 : 0;
      last_pass_ = pass == model::Pass::inference ? pass : model::Pass::backward;
    }
    EXPECT_EQ(open_.count({pass, unit}), 0u) << "unit " << unit << " is opened twice";
    if (!is_open(unit)) Kokkos::deep_copy(part(params_, unit), part(kept_, unit));
    open_.insert({pass, unit});
  }
  void after(model::Pass pass, int unit) override {
    Kokkos::fence();
    EXPECT_EQ(open_.erase({pass, unit}), 1u) << "unit " << unit << " is closed and was not open";
    if (!is_open(unit)) close(table_.units()[unit]);
    if (pass != last_pass_ || unit != last_unit_) return;
    EXPECT_TRUE(open_.empty()) << "a pass ends with units open";
    Kokkos::deep_copy(params_, kept_);
    is_in_pass_ = false;
    ++passes;
  }
  void gradient_ready(int param) override {
    EXPECT_TRUE(open_.count({model::Pass::backward, table_.params()[param].unit})) << table_.params()[param].label;
  }
  int passes = 0;  // completed

 private:
  using Weights = kernels::Vector<Scalar, Device>;

  bool is_open(int unit) const {
    return std::any_of(open_.begin(), open_.end(), [&](const auto& one) { return one.second == unit; });
  }
  Weights part(const Weights& all, int unit) const {
    const model::UnitSpan& span = table_.units()[unit];
    return Weights(all.data() + span.first, span.count);
  }
  void close(const model::UnitSpan& span) {
    Kokkos::deep_copy(Weights(params_.data() + span.first, span.count), static_cast<Scalar>(std::nanf("")));
  }

  const model::ParamTable& table_;
  Weights params_;
  Kokkos::View<Scalar*, Device::memory_space> kept_;
  std::set<std::pair<model::Pass, int>> open_;
  bool is_in_pass_ = false;
  model::Pass last_pass_ = model::Pass::backward;
  int last_unit_ = 0;
};

}  // namespace tessera::test
