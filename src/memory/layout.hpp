/// The plan of one arena: every tensor of a training step with its label, shape, dtype, category and live range,
/// and the offset at which it lies. Pure C++: `--plan` prints exactly what the arena allocates.
///
/// A live range is counted in ticks, the numbered moments of a step (forward unit by unit, backward, update); two
/// tensors whose ranges do not meet may share memory. Placement is greedy, largest tensor first, at the lowest
/// free offset: the interval-colouring heuristic of buffer assignment in compilers. It is deterministic.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/core/scalar.hpp"

namespace tessera::memory {

enum class Category : std::uint8_t { parameters, gradients, optimizer, activations, workspace, data };
std::string_view name_of(Category category);
inline constexpr int kCategories = 6;

/// Ticks first..last, both included.
struct Lifetime {
  int first = 0;
  int last = std::numeric_limits<int>::max();

  static constexpr Lifetime whole_run() { return {}; }
  bool meets(const Lifetime& other) const { return first <= other.last && other.first <= last; }
  bool is_whole_run() const { return last == std::numeric_limits<int>::max(); }
};

using TensorId = int;
inline constexpr TensorId kAbsent = -1;

struct Tensor {
  std::string label;                // dotted model path: "block.03.qkv"
  std::vector<std::int64_t> shape;  // elements per dimension
  Dtype dtype;
  Category category;
  Lifetime lifetime;
  std::int64_t count = 0;   // elements
  std::int64_t bytes = 0;   // count * bytes_of(dtype), not rounded
  std::int64_t offset = 0;  // bytes from the start of the arena, after place()
};

class Layout {
 public:
  static constexpr std::int64_t kAlignment = 256;  // bytes; every offset is a multiple

  TensorId add(std::string label, std::vector<std::int64_t> shape, Dtype dtype, Category category, Lifetime lifetime);

  /// Memory that the step takes besides the arena, such as the kernels' pads: part of every sum but not of the arena.
  void add_outside(std::string label, std::int64_t bytes);

  /// Gives every tensor its offset. Call once, after the last add().
  void place();

  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Tensor& operator[](TensorId id) const { return tensors_[id]; }
  std::int64_t arena_bytes() const { return arena_bytes_; }
  std::int64_t total_bytes() const { return arena_bytes_ + outside_bytes_; }  // what a rank takes

  /// Largest sum over the ticks of what is live at once, per category and overall (index kCategories).
  std::vector<std::int64_t> peak_by_category() const;

  /// The table printed before step 0: bytes by category, the ratio parameters : gradients : optimizer, the arena.
  std::string table() const;

 private:
  std::vector<Tensor> tensors_;
  std::int64_t arena_bytes_ = 0, outside_bytes_ = 0;
  std::string outside_labels_;
};

/// "12.3 MiB", "4.0 KiB", "17 B".
std::string readable_bytes(std::int64_t bytes);

}  // namespace tessera::memory
