/// What a rank keeps from step to step: weights and the optimizer's two moments, or its parts of them. They are
/// initialised, cleared, saved to a checkpoint, loaded from one, and compared between ranks.
///
/// Arrays: the working copy of the weights, what their master has besides it (kernels/master_weights.hpp), and the
/// moments. owned_spans() says which elements of which tensors are this rank's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "parallel/collective.hpp"
#include "train/arrays.hpp"

namespace tessera::train {

/// What a rank keeps of a tensor of the training state, as loaded from a checkpoint, on the host: its elements
/// first .. first + data.size() - 1, unpadded.
struct StateTensor {
  std::string group;  // "params" (the master weights), "moments/m", "moments/v"
  const model::Param* param;
  std::int64_t first;
  std::span<float> data;
};

/// The same to be saved to a checkpoint. `data` copies it from the device: the host holds at most one tensor at a time.
struct SavedTensor {
  std::string group;
  const model::Param* param;
  std::int64_t first, count;
  std::function<std::span<const float>()> data;  // valid until that of another one is called
};

class State {
 public:
  using Exec = kernels::Device;
  virtual ~State() = default;

  /// Sets everything to zero, including padding.
  /// Async  fences.
  virtual void clear(const Exec& exec) = 0;

  /// Initialises the owned weights from seed and label.
  /// Async  returns after enqueue.
  virtual void initialize(const Exec& exec, std::uint64_t seed) = 0;

  /// The arrays of the weights, for a broadcast if every rank owns all: the working copy and what its master adds.
  virtual std::vector<parallel::Span> weights() const = 0;

  /// What is owned of the tensors whose number `is_wanted` accepts. Valid while this exists and is not modified.
  virtual std::vector<SavedTensor> saved(const std::function<bool(std::size_t)>& is_wanted) = 0;

  /// Calls `visit` with host memory for what is owned of every tensor, which it fills with the new state. Padding is
  /// left unchanged.
  virtual void load(const std::function<void(const StateTensor&)>& visit) = 0;

  /// A sum of hashes of the owned weights, by bits and position: modulo 2^64, the sum over the ranks that share a model
  /// does not depend on how it is divided.
  virtual std::uint64_t fingerprint() const = 0;
};

/// For the rank that holds shard `shard`. Keeps references to basis and arena.
std::unique_ptr<State> make_state(const Basis& basis, int shard, const memory::Arena<kernels::Device>& arena);

}  // namespace tessera::train
