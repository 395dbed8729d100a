#include "io/checkpoint_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace tessera::io::detail {
namespace {

std::int64_t size_of(const h5::Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// A part that holds elements, decoded from a rank's manifest.
struct Written {
  std::int64_t first, count;
  int rank;
  std::string path;
};

/// The sources of a tensor, after checking that they hold each of its `size` elements exactly once.
std::vector<h5::Source> sources_of(const std::string& tensor, std::int64_t size, std::vector<Written> parts) {
  std::sort(parts.begin(), parts.end(),
            [](const Written& a, const Written& b) { return std::tie(a.first, a.rank) < std::tie(b.first, b.rank); });
  std::vector<h5::Source> sources;
  std::int64_t covered = 0;  // elements before this one
  int last_rank = 0;         // rank that writes the last of them
  const auto require_none_between = [&](std::int64_t next) {
    if (next <= covered) return;
    throw std::logic_error(fmt::format("checkpoint: no rank writes elements {}..{} of {}", covered, next - 1, tensor));
  };
  for (const Written& part : parts) {
    require_none_between(part.first);
    if (part.first < covered) {
      throw std::logic_error(fmt::format("checkpoint: elements {}..{} of {} are written twice, by rank {} and rank {}",
                                         part.first, std::min(covered, part.first + part.count) - 1, tensor, last_rank,
                                         part.rank));
    }
    covered = part.first + part.count;
    last_rank = part.rank;
    const bool is_whole = part.count == size;
    sources.push_back({rank_name(part.rank), "/" + part.path, part.first, is_whole ? -1 : part.count});
  }
  require_none_between(size);
  return sources;
}

}  // namespace

std::string rank_name(int rank) { return fmt::format("rank_{:05d}.h5", rank); }

std::vector<Part> parts_of(std::span<const CheckpointTensor> mine) {
  std::vector<Part> parts;
  std::set<std::string> taken;
  for (const CheckpointTensor& tensor : mine) {
    const std::int64_t size = size_of(tensor.shape);
    const std::int64_t count = tensor.count == -1 && tensor.first == 0 ? size : tensor.count;
    std::string path = tensor.group + "/" + tensor.label;
    if (tensor.first < 0 || count < 0 || tensor.first > size - count) {
      throw std::logic_error(fmt::format("checkpoint: {} of shape [{}] has no {} elements from {} on", path,
                                         fmt::join(tensor.shape, ", "), tensor.count, tensor.first));
    }
    if (count > 0 && !taken.insert(path).second) path += fmt::format(".from_{}", tensor.first);
    parts.push_back({&tensor, std::move(path), tensor.first, count, count == size});
  }
  return parts;
}

std::string manifest_of(std::span<const Part> parts) {
  std::string manifest;
  for (const auto& [tensor, path, first, count, is_whole] : parts) {
    manifest += fmt::format("{} {} {} {} {}", tensor->group, tensor->label, path, first, count);
    for (std::size_t axis = 0; axis < tensor->shape.size(); ++axis) {
      manifest += fmt::format(" {} {}", tensor->shape[axis], tensor->axes.empty() ? "-" : tensor->axes.at(axis));
    }
    manifest += '\n';
  }
  return manifest;
}

std::vector<IndexedTensor> tensors_of(const std::vector<std::string>& manifests) {
  std::vector<IndexedTensor> tensors;
  std::vector<std::vector<Written>> written;  // of each tensor
  std::map<std::pair<std::string, std::string>, std::size_t> numbers;
  for (std::size_t rank = 0; rank < manifests.size(); ++rank) {
    std::istringstream lines(manifests[rank]);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      IndexedTensor tensor;
      Written part{.first = 0, .count = 0, .rank = static_cast<int>(rank), .path = {}};
      words >> tensor.group >> tensor.label >> part.path >> part.first >> part.count;
      for (std::string axis; words >> tensor.shape.emplace_back() >> axis;) tensor.axes.push_back(axis);
      tensor.shape.pop_back();  // the extent that could not be read
      const auto [at, is_new] = numbers.try_emplace({tensor.group, tensor.label}, tensors.size());
      if (is_new) {
        tensors.push_back(tensor);
        written.emplace_back();
      }
      const IndexedTensor& before = tensors[at->second];
      if (tensor.shape != before.shape || tensor.axes != before.axes) {
        throw std::logic_error(
            fmt::format("checkpoint: {}/{} is [{}] along ({}) on rank {}, [{}] along ({}) on one before it",
                        tensor.group, tensor.label, fmt::join(tensor.shape, ", "), fmt::join(tensor.axes, ", "), rank,
                        fmt::join(before.shape, ", "), fmt::join(before.axes, ", ")));
      }
      if (part.count > 0) written[at->second].push_back(std::move(part));
    }
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    IndexedTensor& tensor = tensors[i];
    tensor.sources = sources_of(tensor.group + "/" + tensor.label, size_of(tensor.shape), std::move(written[i]));
  }
  return tensors;
}

}  // namespace tessera::io::detail
