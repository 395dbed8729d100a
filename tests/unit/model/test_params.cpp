#include "model/params.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>

#include "model/initial_values.hpp"

namespace tessera::model {
namespace {

const Shape kShape{.V = 61, .T = 24, .C = 20, .L = 3, .H = 2, .F = 27, .rope_theta = 1e4, .norm_eps = 1e-5};

TEST(ParamTable, lists_labels_shapes_units_and_decay_in_the_documented_order) {
  struct Row {
    std::string label;
    std::vector<std::int64_t> shape;
    int unit;
    bool has_decay;
  };
  std::vector<Row> expected = {{"embedding.weight", {61, 20}, 0, true}};
  for (int block = 0; block < 3; ++block) {
    const std::string path = "block.0" + std::to_string(block) + ".";
    expected.push_back({path + "attn.norm.gain", {20}, block + 1, false});
    expected.push_back({path + "attn.qkv.weight", {60, 20}, block + 1, true});
    expected.push_back({path + "attn.out.weight", {20, 20}, block + 1, true});
    expected.push_back({path + "mlp.norm.gain", {20}, block + 1, false});
    expected.push_back({path + "mlp.gate_up.weight", {54, 20}, block + 1, true});
    expected.push_back({path + "mlp.down.weight", {20, 27}, block + 1, true});
  }
  expected.push_back({"head.norm.gain", {20}, 4, false});
  expected.push_back({"head.weight", {61, 20}, 4, true});

  const ParamTable table(kShape);
  ASSERT_EQ(table.params().size(), expected.size());
  std::map<std::string, std::int64_t> extents;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Param& param = table.params()[i];
    EXPECT_EQ(param.label, expected[i].label);
    EXPECT_EQ(param.shape, expected[i].shape) << param.label;
    ASSERT_EQ(param.axes.size(), param.shape.size()) << param.label;
    for (std::size_t axis = 0; axis < param.axes.size(); ++axis) {
      const std::int64_t extent = extents.emplace(param.axes[axis], param.shape[axis]).first->second;
      EXPECT_EQ(param.shape[axis], extent) << param.label << ": a word has one extent, " << param.axes[axis];
      EXPECT_EQ(std::count(param.axes.begin(), param.axes.end(), param.axes[axis]), 1) << param.label;
    }
    EXPECT_EQ(param.unit, expected[i].unit) << param.label;
    EXPECT_EQ(param.has_decay, expected[i].has_decay) << param.label;
    EXPECT_EQ(param.initial_std == 0, !param.has_decay) << param.label;
  }
}

TEST(ParamTable, tensors_are_aligned_in_order_and_without_overlap) {
  const ParamTable table(kShape);
  std::int64_t end = 0, parameters = 0;
  for (const Param& param : table.params()) {
    std::int64_t count = 1;
    for (const std::int64_t extent : param.shape) count *= extent;
    EXPECT_EQ(param.count, count) << param.label;
    EXPECT_EQ(param.first % ParamTable::kAlignment, 0) << param.label;
    EXPECT_GE(param.first, end) << param.label;
    EXPECT_LT(param.first - end, ParamTable::kAlignment) << param.label << " leaves a gap larger than the padding";
    end = param.first + param.count;
    parameters += count;
  }
  EXPECT_EQ(table.parameter_count(), parameters);
  EXPECT_GE(table.flat_count(), end);
  EXPECT_EQ(table.flat_count() % ParamTable::kAlignment, 0);
}

TEST(ParamTable, units_are_one_span_each_and_cover_everything) {
  const ParamTable table(kShape);
  ASSERT_EQ(table.units().size(), 5u);
  const char* labels[] = {"embedding", "block.00", "block.01", "block.02", "head"};
  std::int64_t end = 0;
  for (std::size_t unit = 0; unit < 5; ++unit) {
    const UnitSpan& span = table.units()[unit];
    EXPECT_EQ(span.label, labels[unit]);
    EXPECT_EQ(span.first, end);
    end = span.first + span.count;
    for (const Param& param : table.params()) {
      const bool is_inside = param.first >= span.first && param.first + param.count <= end;
      EXPECT_EQ(is_inside, param.unit == static_cast<int>(unit)) << param.label << " and unit " << span.label;
    }
  }
  EXPECT_EQ(end, table.flat_count());
}

TEST(ParamTable, finds_by_label) {
  const ParamTable table(kShape);
  EXPECT_EQ(table["block.01.mlp.down.weight"].label, "block.01.mlp.down.weight");
  EXPECT_THROW(table["block.03.mlp.down.weight"], std::out_of_range);
  EXPECT_THROW(table[""], std::out_of_range);
}

TEST(ParamTable, gives_a_block_its_tensors) {
  const ParamTable table(kShape);
  for (int block = 0; block < 3; ++block) {
    const BlockParams p = block_params(table, block);
    const std::string path = "block.0" + std::to_string(block) + ".";
    EXPECT_EQ(p.attn_norm.label, path + "attn.norm.gain");
    EXPECT_EQ(p.qkv.label, path + "attn.qkv.weight");
    EXPECT_EQ(p.out.label, path + "attn.out.weight");
    EXPECT_EQ(p.mlp_norm.label, path + "mlp.norm.gain");
    EXPECT_EQ(p.gate_up.label, path + "mlp.gate_up.weight");
    EXPECT_EQ(p.down.label, path + "mlp.down.weight");
  }
}

TEST(ParamTable, block_numbers_of_deep_models_sort_as_text) {
  Shape deep = kShape;
  deep.L = 12;
  EXPECT_EQ(ParamTable(deep)["block.11.attn.norm.gain"].unit, 12);
}

Param param_of(const std::string& label, double std) {
  return {.number = 0,
          .label = label,
          .shape = {1000, 1000},
          .axes = {"row", "column"},
          .unit = 0,
          .has_decay = true,
          .initial_std = std,
          .first = 0,
          .count = 1000000};
}

TEST(InitialValue, gains_are_one) {
  const ParamTable table(kShape);
  for (std::int64_t i = 0; i < 20; ++i) EXPECT_EQ(InitialValues(7, table["head.norm.gain"])(i), 1.0);
}

TEST(InitialValue, std_of_linear_layers_is_that_of_their_fan) {
  const ParamTable table(kShape);
  EXPECT_EQ(table["embedding.weight"].initial_std, 1.0);
  EXPECT_DOUBLE_EQ(table["block.00.attn.qkv.weight"].initial_std, std::sqrt(2.0 / (20 + 20)));  // q, k, v one by one
  EXPECT_DOUBLE_EQ(table["block.00.mlp.gate_up.weight"].initial_std, std::sqrt(2.0 / (20 + 27)));
  EXPECT_DOUBLE_EQ(table["block.00.mlp.down.weight"].initial_std, std::sqrt(2.0 / (20 + 27)));
  EXPECT_DOUBLE_EQ(table["head.weight"].initial_std, std::sqrt(2.0 / (20 + 61)));
}

TEST(InitialValue, is_a_normal_distribution_cut_at_three_standard_deviations) {
  const Param param = param_of("block.00.attn.qkv.weight", 0.25);
  const std::int64_t n = 400000;
  double sum = 0, sum_sq = 0, sum_4 = 0, largest = 0;
  std::int64_t beyond_two = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double z = InitialValues(42, param)(i) / param.initial_std;
    sum += z, sum_sq += z * z, sum_4 += z * z * z * z;
    largest = std::max(largest, std::fabs(z));
    beyond_two += std::fabs(z) > 2;
  }
  // Moments of the normal distribution cut at 3: variance 1 - 6 phi(3)/P, fourth moment 3 - (54 + 18) phi(3)/P with
  // phi(3) = 0.00443185, P = 0.9973002; bounds are five standard errors of n draws.
  const double cut = 0.00443185 / 0.9973002, variance = 1 - 6 * cut, fourth = 3 - 72 * cut;
  EXPECT_NEAR(sum / n, 0, 5 * std::sqrt(variance / n));
  EXPECT_NEAR(sum_sq / n, variance, 5 * std::sqrt((fourth - variance * variance) / n));
  EXPECT_NEAR(sum_4 / n, fourth, 5 * std::sqrt(60.0 / n));
  const double p = (0.0455003 - 0.0026998) / 0.9973002;
  EXPECT_NEAR(static_cast<double>(beyond_two) / n, p, 5 * std::sqrt(p / n));
  EXPECT_LE(largest, 3);
  EXPECT_GT(largest, 2.9);
}

TEST(InitialValue, depends_on_seed_label_and_index_alone) {
  const Param a = param_of("block.00.attn.qkv.weight", 1), b = param_of("block.01.attn.qkv.weight", 1);
  Param moved = a;
  moved.first = 4096, moved.unit = 3;
  std::set<double> seen;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const double value = InitialValues(1, a)(i);
    EXPECT_EQ(InitialValues(1, a)(i), value);      // evaluated again, in any order
    EXPECT_EQ(InitialValues(1, moved)(i), value);  // wherever the tensor lies
    EXPECT_NE(InitialValues(2, a)(i), value);
    EXPECT_NE(InitialValues(1, b)(i), value);
    seen.insert(value);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(InitialValue, neighbours_seeds_and_labels_are_uncorrelated) {
  const Param a = param_of("head.weight", 1), b = param_of("head.weighs", 1);
  const std::int64_t n = 100000;
  double next = 0, seed = 0, label = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = InitialValues(3, a)(i);
    next += value * InitialValues(3, a)(i + 1);
    seed += value * InitialValues(4, a)(i);
    label += value * InitialValues(3, b)(i);
  }
  const double bound = 5 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(next / n, 0, bound);
  EXPECT_NEAR(seed / n, 0, bound);
  EXPECT_NEAR(label / n, 0, bound);
}

}  // namespace
}  // namespace tessera::model
