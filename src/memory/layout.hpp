/// The plan of an arena: every tensor of a training step with label, shape, dtype, category, memory space, live range
/// and offset. Pure C++: `--plan` prints exactly what the arena allocates.
///
/// A live range is counted in ticks, the numbered moments of a step (forward unit by unit, backward, update); two
/// tensors of one space whose ranges do not overlap may share memory. Placement is greedy, largest tensor first, at the
/// lowest free offset: the interval-colouring heuristic of buffer assignment in compilers.
///
/// Order   deterministic.
/// Cost    O(n log n) for n tensors, times the number of free gaps at a time, which is small.
/// Throws  Failure: Exit::usage beyond the limit, with the tensor and the keys that make it so large;
///         std::invalid_argument for a negative extent.
/// Limits  all bytes, in the arena and outside, must add up to at most 64 bits.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/core/dtype.hpp"

namespace tessera::memory {

enum class Category : std::uint8_t { parameters, gradients, optimizer, activations, workspace, data };
std::string_view name_of(Category category);
inline constexpr int kCategories = 6;

/// A tensor's memory: where the model computes, or the host's (pinned for a GPU's DMA; plain if the model computes on
/// the host).
enum class Space : std::uint8_t { device, host };
inline constexpr int kSpaces = 2;

/// Ticks first..last, both included.
struct Lifetime {
  int first = 0;
  int last = std::numeric_limits<int>::max();

  static constexpr Lifetime whole_run() { return {}; }
  bool is_whole_run() const { return last == std::numeric_limits<int>::max(); }
};

using TensorId = int;
inline constexpr TensorId kAbsent = -1;

/// One of the tensors that make up a flat array, as the memory timeline names it.
struct Part {
  std::string label;
  std::int64_t count;  // elements, including the padding after it
};

struct Tensor {
  std::string label;                // dotted model path: "block.03.qkv"
  std::vector<std::int64_t> shape;  // elements per dimension
  Dtype dtype;
  Category category;
  Lifetime lifetime;
  Space space = Space::device;
  std::int64_t count = 0;        // elements
  std::int64_t bytes = 0;        // count * bytes_of(dtype), not rounded
  std::int64_t offset = 0;       // bytes from the start of its space's memory, after place()
  std::vector<Part> parts = {};  // of a flat array, in order, covering all of it; else empty
};

class Layout {
 public:
  static constexpr std::int64_t kAlignment = 256;  // bytes; every offset is a multiple

  TensorId add(std::string label, std::vector<std::int64_t> shape, Dtype dtype, Category category, Lifetime lifetime,
               Space space = Space::device);

  /// A flat array of contiguous `parts`; `label` is that of the whole.
  TensorId add_flat(std::string label, std::vector<Part> parts, Dtype dtype, Category category, Lifetime lifetime,
                    Space space = Space::device);

  /// Memory that a step takes outside the arena, such as the kernels' pads; included in sums.
  void add_outside(std::string label, std::int64_t bytes, Space space = Space::device);

  /// Gives every tensor its offset. Call once, after the last add().
  void place();

  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Tensor& operator[](TensorId id) const { return tensors_[id]; }
  std::int64_t arena_bytes(Space space = Space::device) const { return arena_bytes_[static_cast<int>(space)]; }
  /// A rank's bytes on its device, or besides on its host, including memory outside the arena.
  std::int64_t total_bytes(Space space = Space::device) const {
    return arena_bytes(space) + outside_bytes_[static_cast<int>(space)];
  }

  /// Peak bytes live at one tick on the device, per category and overall (index kCategories).
  std::vector<std::int64_t> peak_by_category() const;

  /// One rank's table, printed before step 0: bytes by category, of the arena, outside it and on the host, and the
  /// ratio parameters : gradients : optimizer.
  std::string table() const;

 private:
  std::vector<Tensor> tensors_;
  bool is_placed_ = false;
  void claim(std::int64_t bytes, const std::string& label);

  std::int64_t claimed_bytes_ = 0;  // as if nothing shared memory
  std::int64_t arena_bytes_[kSpaces] = {0, 0}, outside_bytes_[kSpaces] = {0, 0};
  std::string outside_labels_[kSpaces];
};

/// "12.3 MiB", "4.0 KiB", "17 B"; up to YiB, for sums over ranks.
std::string readable_bytes(double bytes);

}  // namespace tessera::memory
