#include "memory/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "kernels/core/round_up.hpp"

namespace tessera::memory {

std::string_view name_of(Category category) {
  constexpr std::string_view names[kCategories] = {"parameters",  "gradients", "optimizer",
                                                   "activations", "workspace", "data"};
  return names[static_cast<int>(category)];
}

TensorId Layout::add(std::string label, std::vector<std::int64_t> shape, Dtype dtype, Category category,
                     Lifetime lifetime) {
  if (arena_bytes_ != 0) throw std::logic_error("layout: add('" + label + "') after place()");
  Tensor tensor{std::move(label), std::move(shape), dtype, category, lifetime};
  tensor.count = 1;
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0 || (extent > 0 && tensor.count > (std::int64_t{1} << 60) / extent)) {
      throw std::invalid_argument("layout: impossible shape for '" + tensor.label + "'");
    }
    tensor.count *= extent;
  }
  tensor.bytes = tensor.count * bytes_of(dtype);
  tensors_.push_back(std::move(tensor));
  return static_cast<TensorId>(tensors_.size()) - 1;
}

void Layout::add_outside(std::string label, std::int64_t bytes) {
  outside_labels_ += (outside_labels_.empty() ? "" : ", ") + std::move(label);
  outside_bytes_ += bytes;
}

void Layout::place() {
  std::vector<Tensor*> order;
  for (Tensor& tensor : tensors_) order.push_back(&tensor);
  // What lives for the whole run goes to the bottom; the rest by size, so that small tensors fill the gaps.
  std::stable_sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
    if (a->lifetime.is_whole_run() != b->lifetime.is_whole_run()) return a->lifetime.is_whole_run();
    return a->lifetime.is_whole_run() ? false : a->bytes > b->bytes;
  });

  const auto padded = [](std::int64_t bytes) { return kernels::round_up(bytes, kAlignment); };
  std::vector<const Tensor*> placed;  // sorted by offset
  for (Tensor* tensor : order) {
    std::int64_t offset = 0;
    for (const Tensor* other : placed) {
      if (!other->lifetime.meets(tensor->lifetime)) continue;
      if (offset + padded(tensor->bytes) <= other->offset) break;  // fits in the gap below
      offset = std::max(offset, other->offset + padded(other->bytes));
    }
    tensor->offset = offset;
    arena_bytes_ = std::max(arena_bytes_, offset + padded(tensor->bytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), tensor,
                                   [](const Tensor* a, const Tensor* b) { return a->offset < b->offset; }),
                  tensor);
  }
}

std::vector<std::int64_t> Layout::peak_by_category() const {
  int last_tick = 0;
  for (const Tensor& tensor : tensors_) {
    last_tick = std::max(last_tick, tensor.lifetime.is_whole_run() ? tensor.lifetime.first : tensor.lifetime.last);
  }
  std::vector<std::int64_t> peaks(kCategories + 1, 0);
  for (int tick = 0; tick <= last_tick; ++tick) {
    std::vector<std::int64_t> live(kCategories + 1, 0);
    for (const Tensor& tensor : tensors_) {
      if (tensor.lifetime.first > tick || tensor.lifetime.last < tick) continue;
      live[static_cast<int>(tensor.category)] += tensor.bytes;
      live[kCategories] += tensor.bytes;
    }
    for (int i = 0; i <= kCategories; ++i) peaks[i] = std::max(peaks[i], live[i]);
  }
  return peaks;
}

std::string Layout::table() const {
  const std::vector<std::int64_t> peaks = peak_by_category();
  std::vector<std::int64_t> tensors(kCategories, 0), sums(kCategories, 0);
  for (const Tensor& tensor : tensors_) {
    ++tensors[static_cast<int>(tensor.category)];
    sums[static_cast<int>(tensor.category)] += tensor.bytes;
  }
  std::string text = fmt::format("{:<14}{:>9}{:>14}{:>14}\n", "memory", "tensors", "sum", "peak at once");
  for (int i = 0; i < kCategories; ++i) {
    if (tensors[i] == 0) continue;
    text += fmt::format("  {:<12}{:>9}{:>14}{:>14}\n", name_of(static_cast<Category>(i)), tensors[i],
                        readable_bytes(sums[i]), readable_bytes(peaks[i]));
  }
  text += fmt::format("  {:<12}{:>9}{:>14}{:>14}\n", "arena", tensors_.size(), readable_bytes(arena_bytes_),
                      readable_bytes(peaks[kCategories]));
  if (outside_bytes_ > 0) {
    text += fmt::format("  {:<12}{:>9}{:>14}{:>14}  ({})\n", "outside", "", readable_bytes(outside_bytes_),
                        readable_bytes(outside_bytes_), outside_labels_);
  }
  const double parameters = static_cast<double>(sums[static_cast<int>(Category::parameters)]);
  if (parameters > 0) {
    text += fmt::format("  parameters : gradients : optimizer = 1 : {:.2f} : {:.2f}\n",
                        sums[static_cast<int>(Category::gradients)] / parameters,
                        sums[static_cast<int>(Category::optimizer)] / parameters);
  }
  return text;
}

std::string readable_bytes(std::int64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 5) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace tessera::memory
