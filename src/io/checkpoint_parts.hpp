/// Which rank's file holds which elements of which tensor: what ranks exchange before they write.
/// Only for src/io/checkpoint*.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.hpp"
#include "io/h5.hpp"

namespace tessera::io::detail {

std::string rank_name(int rank);  // of a rank's file

/// One CheckpointTensor, as a dataset of its rank's file.
struct Part {
  const CheckpointTensor* tensor;
  std::string path;       // group/label; for further parts of one tensor in one file, group/label.from_<first>
  std::int64_t first;     // of the tensor's elements
  std::int64_t count;     // 0: no dataset
  bool is_whole = false;  // a dataset of the tensor's shape; a part's is 1-D
};

/// Throws  std::logic_error if a range exceeds its tensor.
std::vector<Part> parts_of(std::span<const CheckpointTensor> mine);

/// One line per part: "group label path first count", followed by "extent axis" for each dimension, where '-' is an
/// axis without a name.
std::string manifest_of(std::span<const Part> parts);

/// A tensor as the index shows it.
struct IndexedTensor {
  std::string group, label;
  h5::Shape shape;
  std::vector<std::string> axes;    // "-": without a name
  std::vector<h5::Source> sources;  // hold every element exactly once, ascending
};

/// The tensors of all ranks' manifests, in order of first appearance.
/// Throws  std::logic_error with tensor, elements and ranks: for elements that no rank or two parts write, and for
///         shapes or axes that differ between ranks.
std::vector<IndexedTensor> tensors_of(const std::vector<std::string>& manifests);

}  // namespace tessera::io::detail
