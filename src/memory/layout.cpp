#include "memory/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>

#include "errors.hpp"
#include "kernels/core/round_up.hpp"

namespace tessera::memory {
namespace {

/// Limit on the bytes of tensors and their padding.
constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max() / Layout::kAlignment * Layout::kAlignment;

std::int64_t padded(std::int64_t bytes) { return kernels::round_up(bytes, Layout::kAlignment); }

constexpr std::string_view kWeightKeys = "model.vocab_size, model.d_model, model.d_ff and model.num_layers";
constexpr std::string_view kActivationKeys =
    "the batch of a rank (train.micro_batch_size, bench.batch), model.context_length (in standard attention: its "
    "square), model.num_heads, and the width and number of layers";

std::string_view keys_of(Category category) {
  const bool is_of_weights =
      category == Category::parameters || category == Category::gradients || category == Category::optimizer;
  return is_of_weights ? kWeightKeys : kActivationKeys;
}

}  // namespace

std::string_view name_of(Category category) {
  constexpr std::string_view names[kCategories] = {"parameters",  "gradients", "optimizer",
                                                   "activations", "workspace", "data"};
  return names[static_cast<int>(category)];
}

TensorId Layout::add(std::string label, std::vector<std::int64_t> shape, Dtype dtype, Category category,
                     Lifetime lifetime, Space space) {
  if (is_placed_) throw std::logic_error("layout: add('" + label + "') after place()");
  Tensor tensor{std::move(label), std::move(shape), dtype, category, lifetime, space};
  tensor.count = 1;
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0) throw std::invalid_argument("layout: impossible shape for '" + tensor.label + "'");
    if (extent > 0 && tensor.count > kMostBytes / bytes_of(dtype) / extent) {
      throw Failure(Exit::usage, "{} [{}] of {} is more than 64 bits of bytes. It grows with {}: make these smaller",
                    tensor.label, fmt::join(tensor.shape, ", "), name_of(dtype), keys_of(category));
    }
    tensor.count *= extent;
  }
  tensor.bytes = tensor.count * bytes_of(dtype);
  claim(tensor.bytes, tensor.label);
  tensors_.push_back(std::move(tensor));
  return static_cast<TensorId>(tensors_.size()) - 1;
}

TensorId Layout::add_flat(std::string label, std::vector<Part> parts, Dtype dtype, Category category, Lifetime lifetime,
                          Space space) {
  std::int64_t count = 0;
  for (const Part& part : parts) count += part.count;
  const TensorId id = add(std::move(label), {count}, dtype, category, lifetime, space);
  tensors_[id].parts = std::move(parts);
  return id;
}

void Layout::add_outside(std::string label, std::int64_t bytes, Space space) {
  claim(bytes, label);
  std::string& labels = outside_labels_[static_cast<int>(space)];
  labels += (labels.empty() ? "" : ", ") + std::move(label);
  outside_bytes_[static_cast<int>(space)] += bytes;
}

void Layout::claim(std::int64_t bytes, const std::string& label) {
  if (bytes > kMostBytes - claimed_bytes_) {
    throw Failure(Exit::usage,
                  "a rank's tensors, up to {}, are together more than 64 bits of bytes. Weights, gradients and "
                  "optimizer grow with {}; the rest with {}: make these smaller",
                  label, kWeightKeys, kActivationKeys);
  }
  claimed_bytes_ += padded(bytes);
}

namespace {

/// Disjoint ranges of bytes that do not touch: begin -> end.
class Ranges {
 public:
  void add(std::int64_t begin, std::int64_t end) {
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.begin() && std::prev(next)->second >= begin) {
      --next;
      begin = next->first;
    }
    while (next != ranges_.end() && next->first <= end) {
      end = std::max(end, next->second);
      next = ranges_.erase(next);
    }
    ranges_.emplace(begin, end);
  }
  void add(const Ranges& other) {
    for (const auto& [begin, end] : other.ranges_) add(begin, end);
  }
  /// The lowest offset at which `bytes` are free.
  std::int64_t lowest_gap(std::int64_t bytes) const {
    std::int64_t offset = 0;
    for (const auto& [begin, end] : ranges_) {
      if (offset + bytes <= begin) break;
      offset = end;
    }
    return offset;
  }

 private:
  std::map<std::int64_t, std::int64_t> ranges_;
};

/// Bytes in use by tick: a segment tree over the ticks. Each node holds the ranges of tensors that live for all of its
/// ticks (`whole`) and of those that live for any (`some`).
class Occupancy {
 public:
  explicit Occupancy(int ticks) : ticks_(ticks), nodes_(4 * static_cast<std::size_t>(ticks)) {}

  std::int64_t lowest_gap(const Lifetime& life, std::int64_t bytes) const {
    Ranges taken;
    collect(1, 0, ticks_ - 1, life, taken);
    return taken.lowest_gap(bytes);
  }
  void take(const Lifetime& life, std::int64_t begin, std::int64_t end) { take(1, 0, ticks_ - 1, life, begin, end); }

 private:
  struct Node {
    Ranges whole, some;
  };

  void collect(std::size_t node, int first, int last, const Lifetime& life, Ranges& taken) const {
    if (life.last < first || last < life.first) return;
    if (life.first <= first && last <= life.last) return taken.add(nodes_[node].some);
    taken.add(nodes_[node].whole);
    const int middle = (first + last) / 2;
    collect(2 * node, first, middle, life, taken);
    collect(2 * node + 1, middle + 1, last, life, taken);
  }
  void take(std::size_t node, int first, int last, const Lifetime& life, std::int64_t begin, std::int64_t end) {
    if (life.last < first || last < life.first) return;
    nodes_[node].some.add(begin, end);
    if (life.first <= first && last <= life.last) return nodes_[node].whole.add(begin, end);
    const int middle = (first + last) / 2;
    take(2 * node, first, middle, life, begin, end);
    take(2 * node + 1, middle + 1, last, life, begin, end);
  }

  int ticks_;
  std::vector<Node> nodes_;
};

/// One more than the last tick at which a lifetime begins or ends.
int ticks_of(const std::vector<Tensor>& tensors) {
  int last = 0;
  for (const Tensor& tensor : tensors) {
    last = std::max(last, tensor.lifetime.is_whole_run() ? tensor.lifetime.first : tensor.lifetime.last);
  }
  return last + 1;
}

}  // namespace

void Layout::place() {
  is_placed_ = true;
  // What lives for the whole run goes to the bottom; the rest follows by size, so that small tensors fill the gaps.
  std::vector<Tensor*> order;
  for (Tensor& tensor : tensors_) {
    if (!tensor.lifetime.is_whole_run() || tensor.lifetime.first > 0) {
      order.push_back(&tensor);
      continue;
    }
    std::int64_t& end = arena_bytes_[static_cast<int>(tensor.space)];
    tensor.offset = end;
    end += padded(tensor.bytes);
  }
  std::stable_sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) { return a->bytes > b->bytes; });

  const std::int64_t bottom[kSpaces] = {arena_bytes_[0], arena_bytes_[1]};
  std::vector<Occupancy> taken(kSpaces, Occupancy(ticks_of(tensors_)));
  for (Tensor* tensor : order) {
    const int space = static_cast<int>(tensor->space);
    const std::int64_t bytes = padded(tensor->bytes);
    const std::int64_t offset = taken[space].lowest_gap(tensor->lifetime, bytes);
    if (bytes > 0) taken[space].take(tensor->lifetime, offset, offset + bytes);
    tensor->offset = bottom[space] + offset;
    arena_bytes_[space] = std::max(arena_bytes_[space], tensor->offset + bytes);
  }
}

std::vector<std::int64_t> Layout::peak_by_category() const {
  const int ticks = ticks_of(tensors_);
  std::vector<std::vector<std::int64_t>> change(kCategories + 1, std::vector<std::int64_t>(ticks + 1, 0));
  for (const Tensor& tensor : tensors_) {
    if (tensor.space != Space::device) continue;
    for (const int row : {static_cast<int>(tensor.category), kCategories}) {
      change[row][tensor.lifetime.first] += tensor.bytes;
      change[row][std::min(tensor.lifetime.last, ticks - 1) + 1] -= tensor.bytes;
    }
  }
  std::vector<std::int64_t> peaks(kCategories + 1, 0);
  for (int row = 0; row <= kCategories; ++row) {
    std::int64_t live = 0;
    for (const std::int64_t bytes : change[row]) peaks[row] = std::max(peaks[row], live += bytes);
  }
  return peaks;
}

std::string Layout::table() const {
  const std::vector<std::int64_t> peaks = peak_by_category();
  std::vector<std::int64_t> tensors(kCategories, 0), sums(kCategories, 0);
  int on_host = 0;
  for (const Tensor& tensor : tensors_) {
    if (tensor.space == Space::host) {
      ++on_host;
      continue;
    }
    ++tensors[static_cast<int>(tensor.category)];
    sums[static_cast<int>(tensor.category)] += tensor.bytes;
  }
  std::string text = fmt::format("{:<15}{:>8}{:>14}{:>14}\n", "memory per rank", "tensors", "sum", "peak");
  const auto add = [&](std::string_view what, const auto& count, std::int64_t sum, std::int64_t peak,
                       const std::string& note = "") {
    text += fmt::format("  {:<12}{:>9}{:>14}{:>14}{}\n", what, count, readable_bytes(sum), readable_bytes(peak), note);
  };
  for (int i = 0; i < kCategories; ++i) {
    if (tensors[i] > 0) add(name_of(static_cast<Category>(i)), tensors[i], sums[i], peaks[i]);
  }
  add("arena", tensors_.size() - on_host, arena_bytes(), peaks[kCategories]);
  if (on_host > 0) add("on the host", on_host, arena_bytes(Space::host), arena_bytes(Space::host));
  for (const Space space : {Space::device, Space::host}) {
    const std::int64_t bytes = outside_bytes_[static_cast<int>(space)];
    const std::string& labels = outside_labels_[static_cast<int>(space)];
    const char* where = space == Space::host ? "on the host: " : "";
    if (bytes > 0) add("outside", "", bytes, bytes, fmt::format("  ({}{})", where, labels));
  }
  const double parameters = static_cast<double>(sums[static_cast<int>(Category::parameters)]);
  if (parameters > 0) {
    text += fmt::format("  parameters : gradients : optimizer = 1 : {:.2f} : {:.2f}\n",
                        sums[static_cast<int>(Category::gradients)] / parameters,
                        sums[static_cast<int>(Category::optimizer)] / parameters);
  }
  return text;
}

std::string readable_bytes(double bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) bytes /= 1024, ++unit;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

}  // namespace tessera::memory
