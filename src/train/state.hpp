/// A rank's weights and moments, or its parts of them: initialised, saved to a checkpoint, loaded from one, and
/// compared between ranks.
///
/// Arrays: the working copy of the weights, what the master adds to it (kernels/master_weights.hpp), and the moments.
/// owned_spans() lists this rank's elements of each tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "parallel/collectives/collective.hpp"
#include "train/arrays.hpp"

namespace tessera::train {

/// A rank's part of a tensor loaded from a checkpoint, on the host: elements first .. first + data.size() - 1,
/// unpadded.
struct StateTensor {
  std::string group;  // "params" (the master weights), "moments/m", ...
  const model::Param* param;
  std::int64_t first;
  std::span<float> data;
};

/// The same to be saved. `data` copies it from the device, so the host holds at most one tensor at a time.
struct SavedTensor {
  std::string group;
  const model::Param* param;
  std::int64_t first, count;
  std::function<std::span<const float>()> data;  // valid until that of another one is called
};

/// Numbers of an array, and what a master adds to them; no `data` there: nothing.
struct Piece {
  parallel::Span numbers, master = {};
};

/// For a rank's shard.
class State {
 public:
  using Exec = kernels::Device;

  /// Keeps references to tensors of `basis`.
  State(const Basis& basis, int shard, const memory::Arena& arena);

  /// Initialises the owned weights from seed and label; everything else, and padding, is zero.
  /// Async  fences.
  void initialize(const Exec& exec, std::uint64_t seed) const;

  /// The weights' arrays, the compute weights and what the master adds: broadcast if every rank owns all.
  std::vector<parallel::Span> weights() const;

  /// What is owned of the tensors whose number `is_wanted` accepts. Valid while this exists and is not modified; if the
  /// layout has room for a copy (declare_copy), from one made now: `data` may then be called on any thread, and stays
  /// valid whatever steps follow.
  /// Async  fences.
  std::vector<SavedTensor> saved(const Exec& exec, const std::function<bool(std::size_t)>& is_wanted) const;

  /// Calls `visit` with host memory for each tensor's owned elements, which it fills. Padding is zero.
  /// Async  fences.
  void load(const Exec& exec, const std::function<void(const StateTensor&)>& visit) const;

  /// Sum of hashes of the owned weights, by bits and position. Modulo 2^64, the sum over the ranks that share a model
  /// does not depend on how they divide it.
  std::uint64_t fingerprint() const;

 private:
  struct Group {
    std::string name;
    Piece arrays;
  };

  void clear(const Exec& exec) const;
  /// A span's part of a group.
  Piece part_of(const Group& group, const OwnedSpan& span) const;

  const std::vector<OwnedSpan> spans_;
  std::vector<Group> groups_;  // the weights, then the moments
  const parallel::Span copy_;  // of bytes, in pinned memory
};

}  // namespace tessera::train
