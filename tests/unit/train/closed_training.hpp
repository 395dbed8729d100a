/// A training in which a weight that is read while its unit is closed is NaN, in every stage: of ZeRO-3 the strategy
/// poisons what is not gathered (Training::planned), of the others an observer closes the units.
#pragma once

#include <optional>
#include <vector>

#include "unit/model/closed_units.hpp"
#include "unit/train/training.hpp"

namespace tessera::test {

/// Closes the units of a trainer that keeps whole weights, once it exists.
/// Limits  offloaded state is updated while units are closed: with it this closes none.
class ClosesUnits : public model::Hooks {
 public:
  void before(model::Pass pass, int unit) override {
    if (units_) units_->before(pass, unit);
  }
  void after(model::Pass pass, int unit) override {
    if (units_) units_->after(pass, unit);
  }
  void gradient_enqueued(int param) override {
    if (units_) units_->gradient_enqueued(param);
  }

 protected:
  void close_units_of(const Training& training) {
    const train::Sharing& sharing = training.plan.sharing;
    if (sharing.shards_weights() || train::offloaded_bytes(training.plan) > 0) return;
    const parallel::Span weights = training.trainer->weights()[0];
    std::vector<ClosedUnits::Bytes> units;
    for (int unit = 0; unit < sharing.ownership.units(); ++unit) {
      const parallel::Span whole = weights.part(sharing.ownership.whole_first(unit), sharing.ownership.padded(unit));
      units.emplace_back(static_cast<unsigned char*>(whole.data), static_cast<std::size_t>(whole.bytes()));
    }
    units_.emplace(training.plan.table, units);
    are_gathered_ = sharing.is_sharded();
  }
  void begin_passes() {
    if (!units_) return;
    are_gathered_ ? units_->expect_gathers() : units_->close_all();
  }
  int passes() const { return units_ ? units_->passes : 0; }
  bool closes() const { return units_.has_value(); }

 private:
  std::optional<ClosedUnits> units_;
  bool are_gathered_ = false;  // before the first pass of a step, a validation or a sample
};

class ClosedTraining final : private ClosesUnits, public Training {
 public:
  explicit ClosedTraining(const config::Settings& deck, Dtype dtype = Dtype::fp32)
      : Training(deck, dtype, static_cast<ClosesUnits*>(this)) {
    close_units_of(*this);
  }
  Step step() {
    begin_passes();
    return Training::step();
  }
  train::ValidationSum validate(std::int64_t windows) {
    begin_passes();
    return trainer->validate(sampler, windows);
  }
  /// On every rank.
  std::vector<int> generate(const std::vector<int>& prompt, const model::GenerateOptions& options) {
    begin_passes();
    trainer->begin_generation();
    return trainer->generate(prompt, options);
  }
  using ClosesUnits::closes;
  using ClosesUnits::passes;  // that the observer saw
};

}  // namespace tessera::test
