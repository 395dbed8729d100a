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
#include <utility>
#include <vector>

#include "kernels/core/tensor.hpp"
#include "kernels/master_weights.hpp"
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

/// For a rank's shard, on arrays of these types.
template <class Scalar, class Moment>
class State {
 public:
  using Exec = kernels::Device;

  /// Keeps references to tensors of `basis`.
  State(const Basis& basis, int shard, const memory::Arena<Exec>& arena);

  /// Initialises the owned weights from seed and label; everything else, and padding, is zero.
  /// Async  fences.
  void initialize(const Exec& exec, std::uint64_t seed);

  /// The weights' arrays, the compute weights and what the master adds: broadcast if every rank owns all.
  std::vector<parallel::Span> weights() const;

  /// What is owned of the tensors whose number `is_wanted` accepts. Valid while this exists and is not modified.
  std::vector<SavedTensor> saved(const std::function<bool(std::size_t)>& is_wanted);

  /// The same from a copy, made in `room` on the host (declare_copy): `data` may be called on any thread, and stays
  /// valid whatever steps follow.
  /// Async  fences.
  std::vector<SavedTensor> copied(const Exec& exec, const std::function<bool(std::size_t)>& is_wanted,
                                  std::span<std::byte> room) const;

  /// Calls `visit` with host memory for each tensor's owned elements, which it fills. Padding is zero.
  /// Async  fences.
  void load(const Exec& exec, const std::function<void(const StateTensor&)>& visit);

  /// Sum of hashes of the owned weights, by bits and position. Modulo 2^64, the sum over the ranks that share a model
  /// does not depend on how they divide it.
  std::uint64_t fingerprint() const;

 private:
  using Real = Accum<Scalar>;
  using Weights = kernels::MasterWeights<Exec, Scalar>;
  using Moments = kernels::Vector<Moment, Exec>;
  struct HostCopy;

  void clear(const Exec& exec);
  bool has_master() const { return master_.data() != nullptr; }
  Weights weights_of(const OwnedSpan& span) const;
  void load_weights(const OwnedSpan& span, const std::vector<float>& values) const;
  /// All wanted tensors; their `data` is what `of_weights` and `of_moments` return for each span.
  template <class OfWeights, class OfMoments>
  std::vector<SavedTensor> collect(const std::function<bool(std::size_t)>& is_wanted, const OfWeights& of_weights,
                                   const OfMoments& of_moments) const;
  // A span's weights or moments as floats on the host, valid until the next call.
  std::span<const float> weights_on_host(const OwnedSpan& span);
  std::span<const float> moments_on_host(const OwnedSpan& span, const Moments& moments);

  const std::vector<OwnedSpan> spans_;
  const kernels::Vector<Scalar, Exec> working_;
  const kernels::Vector<kernels::MasterWord<Scalar>, Exec> master_;
  std::vector<std::pair<std::string, Moments>> moments_;  // by group
  std::vector<float> saved_;                              // the host's copy of the tensor that is being saved
};

}  // namespace tessera::train
