#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "io/checkpoint.hpp"  // write_checkpoint
#include "io/checkpoint_detail.hpp"
#include "io/files.hpp"
#include "io/table.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

using namespace detail;

// --- which rank's file holds which elements of which tensor: what ranks exchange before they write ---

std::string rank_name(int rank) { return fmt::format("rank_{:05d}.h5", rank); }

/// One CheckpointTensor, as a dataset of its rank's file.
struct Part {
  const CheckpointTensor* tensor;
  std::string path;       // group/label; for further parts of one tensor in one file, group/label.from_<first>
  std::int64_t first;     // of the tensor's elements
  std::int64_t count;     // 0: no dataset
  bool is_whole = false;  // a dataset of the tensor's shape; a part's is 1-D
};

/// A tensor as the index shows it.
struct IndexedTensor {
  std::string group, label;
  h5::Shape shape;
  std::vector<std::string> axes;    // "-": without a name
  std::vector<h5::Source> sources;  // hold every element exactly once, ascending
};

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

/// Throws  std::logic_error if a range exceeds its tensor.
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

/// One line per part: "group label path first count", followed by "extent axis" for each dimension, where '-' is an
/// axis without a name.
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

/// The tensors of all ranks' manifests, in order of first appearance.
/// Throws  std::logic_error with tensor, elements and ranks: for elements that no rank or two parts write, and for
///         shapes or axes that differ between ranks.
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

// --- the files ---

/// What cannot be deleted stays until the next write.
void remove_temporaries(const fs::path& checkpoints) {
  std::vector<fs::path> temporaries;  // first: dismantling may add folders
  std::error_code ignored;
  for (fs::directory_iterator entry(checkpoints, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    if (home_of_temporary(entry->path().filename())) temporaries.push_back(entry->path());
  }
  for (const fs::path& folder : temporaries) {
    try {
      dismantle(folder, checkpoints / *home_of_temporary(folder.filename()));
    } catch (const Failure&) {
    }
  }
}

/// Rank 0, first: creates the temporary folder, after removing what a killed run left.
void prepare(const fs::path& checkpoints, const fs::path& temporary) {
  make_folder(checkpoints);
  remove_temporaries(checkpoints);
  make_folder(temporary);
}

/// Every rank: writes and syncs its file. Returns "bytes checksum". Syncs now and then meanwhile: other files' syncs
/// may otherwise wait for all of it.
std::string write_rank_file(const fs::path& path, std::int64_t step, const Peers& peers, std::span<const Part> parts) {
  auto file = h5::File::create(path);
  file.set_attribute("format", kFormat);
  file.set_attribute("format_version", kVersion);
  file.set_attribute("step", step);
  file.set_attribute("rank", std::int64_t{peers.rank});
  std::int64_t unsynced = 0;
  for (const Part& part : parts) {
    if (part.count == 0) continue;
    std::string description = part.tensor->group + " of " + part.tensor->label;
    if (!part.is_whole) description += fmt::format(", elements {}..{}", part.first, part.first + part.count - 1);
    file.write(part.path, part.is_whole ? part.tensor->shape : h5::Shape{part.count}, part.tensor->data(),
               {"1", description});
    peers.progress();
    unsynced += part.count * static_cast<std::int64_t>(sizeof(float));
    if (unsynced < kProgressBytes) continue;
    sync_file(path);
    unsynced = 0;
  }
  file.close();
  const std::string sum = checksum(path, peers.progress);  // from memory, most likely
  sync_file(path);
  return fmt::format("{} {}", fs::file_size(path), sum);
}

/// Reads a file anew, from the disk where the system allows it.
/// Throws  Failure(Exit::files) if its checksum is not the one that was written.
void verify_written(const fs::path& path, const std::string& expected, const Peers& peers) {
  forget_cached(path);
  const std::string found = checksum(path, peers.progress);
  if (found == expected) return;
  throw Failure(Exit::files,
                "{}: reads back with the checksum {}, but was written with {}. Check the disk (dmesg, smartctl), and "
                "continue from the checkpoint before (--resume auto)",
                path.string(), found, expected);
}

/// The dimension scales of an index, created in its root when a tensor first names them.
class Axes {
 public:
  explicit Axes(h5::File& file) : file_(file) {}

  void attach(h5::Dataset& tensor, int dimension, const std::string& name, std::int64_t extent) {
    tensor.set_label(dimension, name);
    auto at = scales_.find(name);
    if (at == scales_.end()) {
      std::vector<std::int32_t> numbers(static_cast<std::size_t>(extent));
      std::iota(numbers.begin(), numbers.end(), 0);
      auto scale = file_.write(name, numbers, {"1", "number of the " + name});
      scale.make_scale(name);
      at = scales_.emplace(name, Scale{std::move(scale), extent}).first;
    }
    if (at->second.extent != extent) {
      throw std::logic_error(fmt::format("checkpoint: {} has {} entries along {}, a tensor before it {}",
                                         tensor.where(), extent, name, at->second.extent));
    }
    if (at->second.tensors++ < kMaxTensors) tensor.attach_scale(at->second.dataset, dimension);
  }

 private:
  /// A scale lists the datasets it is attached to in an attribute, 16 bytes each; an attribute holds at most 64 KiB.
  static constexpr int kMaxTensors = 4000;
  struct Scale {
    h5::Dataset dataset;
    std::int64_t extent;
    int tensors = 0;
  };
  h5::File& file_;
  std::map<std::string, Scale> scales_;
};

/// Rank 0: writes the index over all rank files. `files`: what write_rank_file returned on each rank.
void write_index(const fs::path& path, const CheckpointState& state, const std::vector<IndexedTensor>& tensors,
                 const std::vector<std::string>& files) {
  auto file = h5::File::create(path);
  write_state(file, state);
  Axes axes(file);
  for (const auto& [group, label, shape, names_of_axes, sources] : tensors) {
    auto dataset =
        file.write_virtual(group + "/" + label, h5::Type::float32, shape, sources, {"1", group + " of " + label});
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (names_of_axes[i] != "-") axes.attach(dataset, static_cast<int>(i), names_of_axes[i], shape[i]);
    }
  }
  std::vector<std::string> names, checksums;
  std::vector<std::int64_t> bytes;
  for (const std::string& text : files) {
    names.push_back(rank_name(static_cast<int>(names.size())));
    std::istringstream(text) >> bytes.emplace_back() >> checksums.emplace_back();
  }
  Table table(file, "files", "name", names, {"1", "rank files of this checkpoint"});
  table.add("bytes", bytes, {"byte", "size of the rank file"});
  table.add("xxh3", checksums, {"1", "XXH3 of the rank file, 64 bit, as xxhsum -H3 prints it"});
  file.close();
  sync_file(path);
}

/// Renames the finished folder. A checkpoint of the same step is exchanged for it atomically if the file system can do
/// so; otherwise there is a moment in which only older checkpoints exist. What the user put beside its files stays.
void publish_folder(const fs::path& temporary, const fs::path& folder) {
  sync_folder(temporary);
  if (!fs::exists(folder)) return publish(temporary, folder);
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
      throw file_failure(folder, "replacing the checkpoint", errno);
    publish(folder, folder.parent_path() / dying_name(*step_of(folder.filename().string())));
    publish(temporary, folder);
  }
  sync_folder(folder.parent_path());
}

/// Deletes temporary folders and all but the newest `keep` checkpoints up to `step`. Later ones, from a write that was
/// killed before `latest` moved, stay until they are written again.
void prune(const fs::path& checkpoints, std::int64_t step, int keep) {
  std::error_code ignored;
  auto steps = steps_in(checkpoints);
  std::erase_if(steps, [&](std::int64_t s) { return s > step; });
  const auto kept = std::min(steps.size(), static_cast<std::size_t>(std::max(keep, 1)));
  steps.resize(steps.size() - kept);
  for (const std::int64_t old : steps) {
    // renamed to a temporary name first: a kill during deletion leaves no partial checkpoint under a valid name
    fs::rename(checkpoints / step_name(old), checkpoints / dying_name(old), ignored);
  }
  remove_temporaries(checkpoints);
}

}  // namespace

void write_checkpoint(const fs::path& run_directory, const CheckpointState& state,
                      std::span<const CheckpointTensor> mine, const Peers& peers, int keep) {
  const fs::path checkpoints = checkpoints_in(run_directory);
  const fs::path folder = checkpoints / step_name(state.step);
  const fs::path temporary = checkpoints / temporary_name(state.step);
  const bool is_first = peers.rank == 0;
  try {
    std::vector<Part> parts;
    const auto manifests = all_gather(peers, [&] {
      parts = parts_of(mine);
      if (is_first) prepare(checkpoints, temporary);
      return manifest_of(parts);
    });
    std::vector<IndexedTensor> tensors;
    const auto files = all_gather(peers, [&] {
      tensors = tensors_of(manifests);  // on every rank, so that none writes what cannot be used
      return write_rank_file(temporary / rank_name(peers.rank), state.step, peers, parts);
    });
    all_gather(peers, [&] {
      const std::string& written = files[peers.rank];
      verify_written(temporary / rank_name(peers.rank), written.substr(written.find(' ') + 1), peers);
      return std::string();
    });
    const fs::path index = temporary / "index.h5";
    std::string written_index;
    all_gather(peers, [&] {
      if (!is_first) return std::string();
      CheckpointState complete = state;
      complete.ranks = peers.ranks;
      complete.directory = fs::canonical(run_directory).string();
      write_index(index, complete, tensors, files);
      written_index = checksum(index);
      write_text(temporary / "index.xxh3", written_index + "  index.h5\n");
      return std::string();
    });
    all_gather(peers, [&] {
      if (!is_first) return std::string();
      verify_written(index, written_index, peers);
      publish_folder(temporary, folder);
      write_text(checkpoints / "latest", step_name(state.step) + "\n");
      prune(checkpoints, state.step, keep);
      return std::string();
    });
  } catch (...) {
    if (is_first) remove_temporaries(checkpoints);
    throw;
  }
}

}  // namespace tessera::io
