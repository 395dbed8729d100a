/// The table of the model's parameters: label, shape, unit, position in the flat arrays. Pure C++.
///
/// Weights, master weights, gradients and moments are flat arrays in the same order, so a tensor has one offset in all
/// of them. The tensors of a unit are contiguous: a unit's gradient is one span to communicate.
///
///   unit        label                        shape      decay  initial
///   embedding   embedding.weight             [V,C]      yes    truncated normal, std 1
///   block.NN    block.NN.attn.norm.gain      [C]        no     1
///               block.NN.attn.qkv.weight     [3C,C]     yes    truncated normal, std sqrt(2/(in+out)) per projection
///               block.NN.attn.out.weight     [C,C]      yes
///               block.NN.mlp.norm.gain       [C]        no     1
///               block.NN.mlp.gate_up.weight  [2F,C]     yes
///               block.NN.mlp.down.weight     [C,F]      yes
///   head        head.norm.gain               [C]        no     1
///               head.weight                  [V,C]      yes
///
/// Axes have names, which files use as dimension labels: V vocabulary, C channel, 3C qkv_channel, F mlp_channel, 2F
/// gate_up_channel, and attention_channel [C] for the concatenated heads, the input of attn.out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "memory/layout.hpp"

namespace tessera::model {

/// The sizes of a model; letters as in kernels/core/tensor.hpp.
struct Shape {
  std::int64_t V, T, C, L, H, F;
  double rope_theta, norm_eps;

  std::int64_t D() const { return C / H; }
  int units() const { return static_cast<int>(L) + 2; }  // embedding, blocks, head
};

struct Param {
  int number;  // index in ParamTable::params()
  std::string label;
  std::vector<std::int64_t> shape;
  std::vector<std::string> axes;  // name of each dimension
  int unit;
  bool has_decay;
  double initial_std;  // 0: constant 1 (gains)
  std::int64_t first;  // elements from the start of the flat arrays
  std::int64_t count;
};

/// Whether backward adds to a parameter's gradient in every micro-step, so that it must be cleared before the first.
inline bool is_added_to(const Param& param) { return param.shape.size() == 1 || param.label == "embedding.weight"; }

/// The elements of a unit, padding included.
struct UnitSpan {
  std::string label;
  std::int64_t first, count;
};

class ParamTable {
 public:
  /// Alignment of every tensor in elements (wide loads need it).
  static constexpr std::int64_t kAlignment = 64;

  explicit ParamTable(const Shape& shape);

  const std::vector<Param>& params() const { return params_; }
  const std::vector<UnitSpan>& units() const { return units_; }  // embedding, block.00 ..., head
  const Param& operator[](std::string_view label) const;         // throws std::out_of_range
  std::int64_t flat_count() const { return flat_count_; }        // elements of a flat array, padding included
  std::int64_t parameter_count() const { return parameter_count_; }
  std::int64_t offset(const Param& param) const { return param.first - units_[param.unit].first; }  // in its unit

 private:
  struct Axis {
    const char* name;
    std::int64_t extent;
  };
  void add(std::string label, const std::vector<Axis>& axes, int unit, double initial_std);

  std::vector<Param> params_;
  std::vector<UnitSpan> units_;
  std::int64_t flat_count_ = 0, parameter_count_ = 0;
};

/// Indices of one block's tensors in ParamTable::params().
struct BlockParams {
  const Param &attn_norm, &qkv, &out, &mlp_norm, &gate_up, &down;
};
BlockParams block_params(const ParamTable& table, int block);

/// The tensors of a flat array for the layout: "PREFIXblock.00.attn.qkv.weight", each with the padding after it.
std::vector<memory::Part> parts_of(const ParamTable& table, const std::string& prefix);

/// Device addresses of each unit's first weight and first gradient; its tensors follow as in ParamTable. Units may
/// share a place, whose contents belong to a unit only while that unit is open (model/hooks.hpp).
template <class Scalar, class Grad>
struct UnitPlaces {
  std::vector<const Scalar*> weights;  // [units]
  std::vector<Grad*> grads;            // [units]; empty: forward passes only
};

/// All units at their offsets in flat arrays of `table`; `grads` null: forward passes only.
template <class Scalar, class Grad>
UnitPlaces<Scalar, Grad> places_in(const ParamTable& table, const Scalar* params, Grad* grads) {
  UnitPlaces<Scalar, Grad> places;
  for (const UnitSpan& unit : table.units()) {
    places.weights.push_back(params + unit.first);
    if (grads) places.grads.push_back(grads + unit.first);
  }
  return places;
}

}  // namespace tessera::model
