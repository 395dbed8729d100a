#include "model/params.hpp"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>

#include "kernels/core/round_up.hpp"

namespace tessera::model {

ParamTable::ParamTable(const Shape& s) {
  const auto linear = [](std::int64_t in, std::int64_t out) { return std::sqrt(2.0 / static_cast<double>(in + out)); };
  const Axis vocabulary{"vocabulary", s.V}, channel{"channel", s.C}, qkv{"qkv_channel", 3 * s.C},
      heads{"attention_channel", s.C}, gate_up{"gate_up_channel", 2 * s.F}, mlp{"mlp_channel", s.F};
  int unit = 0;
  add("embedding.weight", {vocabulary, channel}, unit, 1.0);
  for (int block = 0; block < s.L; ++block) {
    const std::string path = fmt::format("block.{:02}.", block);
    ++unit;
    add(path + "attn.norm.gain", {channel}, unit, 0);
    add(path + "attn.qkv.weight", {qkv, channel}, unit, linear(s.C, s.C));
    add(path + "attn.out.weight", {channel, heads}, unit, linear(s.C, s.C));
    add(path + "mlp.norm.gain", {channel}, unit, 0);
    add(path + "mlp.gate_up.weight", {gate_up, channel}, unit, linear(s.C, s.F));
    add(path + "mlp.down.weight", {channel, mlp}, unit, linear(s.F, s.C));
  }
  ++unit;
  add("head.norm.gain", {channel}, unit, 0);
  add("head.weight", {vocabulary, channel}, unit, linear(s.C, s.V));

  for (const Param& param : params_) {
    if (param.unit == static_cast<int>(units_.size())) {
      units_.push_back(
          {param.label.substr(0, param.label.find('.', param.label.starts_with("block.") ? 6 : 0)), param.first, 0});
    }
  }
  for (std::size_t i = 0; i < units_.size(); ++i) {
    units_[i].count = (i + 1 < units_.size() ? units_[i + 1].first : flat_count_) - units_[i].first;
  }
}

void ParamTable::add(std::string label, const std::vector<Axis>& axes, int unit, double initial_std) {
  std::vector<std::int64_t> shape;
  std::vector<std::string> names;
  std::int64_t count = 1;
  for (const Axis& axis : axes) {
    shape.push_back(axis.extent);
    names.emplace_back(axis.name);
    count *= axis.extent;
  }
  const bool has_decay = initial_std > 0;
  params_.push_back({static_cast<int>(params_.size()), std::move(label), std::move(shape), std::move(names), unit,
                     has_decay, initial_std, flat_count_, count});
  parameter_count_ += count;
  flat_count_ += kernels::round_up(count, kAlignment);
}

const Param& ParamTable::operator[](std::string_view label) const {
  for (const Param& param : params_) {
    if (param.label == label) return param;
  }
  throw std::out_of_range(fmt::format("no parameter is called '{}'", label));
}

BlockParams block_params(const ParamTable& table, int block) {
  const Param* first = &table.params()[1 + 6 * static_cast<std::size_t>(block)];
  return {first[0], first[1], first[2], first[3], first[4], first[5]};
}

std::vector<memory::Part> parts_of(const ParamTable& table, const std::string& prefix) {
  std::vector<memory::Part> parts;
  const auto& params = table.params();
  for (std::size_t i = 0; i < params.size(); ++i) {
    const std::int64_t end = i + 1 < params.size() ? params[i + 1].first : table.flat_count();
    parts.push_back({prefix + params[i].label, end - params[i].first});
  }
  return parts;
}

}  // namespace tessera::model
