/// What a rank keeps of a run from step to step: weights and the optimizer's two moments, or its parts of them. How they
/// begin, are cleared, given out for a checkpoint, taken from one, and compared between ranks.
///
/// Arrays: the working copy of the weights, what lies beside it of their master (kernels/master_weights.hpp), and the
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
#include "train/plan.hpp"

namespace tessera::train {

/// What a rank keeps of a tensor of the training state, on the host, on its way out of a checkpoint: unpadded elements
/// first .. first + data.size() - 1 of it.
struct StateTensor {
  std::string group;  // "params" (the master weights), "moments/m", "moments/v"
  const model::Param* param;
  std::int64_t first;
  std::span<float> data;
};

/// The same on its way into one. `data` fetches it from the device: the host never holds more than one tensor of it.
struct SavedTensor {
  std::string group;
  const model::Param* param;
  std::int64_t first, count;
  std::function<std::span<const float>()> data;  // valid until that of another one is asked for
};

class State {
 public:
  using Exec = kernels::Device;
  virtual ~State() = default;

  /// All of it becomes zero, padding included. Fences.
  virtual void clear(const Exec& exec) = 0;

  /// Weights from seed and label: all that is owned. Returns after enqueue.
  virtual void initialize(const Exec& exec, std::uint64_t seed) = 0;

  /// The arrays of the weights, for a broadcast where every rank owns all: the working copy, and what lies beside it.
  virtual std::vector<parallel::Span> weights() const = 0;

  /// What is owned of the tensors whose number `is_wanted`. Their data is good while this lives and nobody changes it.
  virtual std::vector<SavedTensor> saved(const std::function<bool(std::size_t)>& is_wanted) = 0;

  /// Calls `visit` with host memory for what is owned of every tensor, to fill; what it fills is the state. Padding stays
  /// as it is.
  virtual void load(const std::function<void(const StateTensor&)>& visit) = 0;

  /// A sum of hashes of the owned weights, of bits and place: modulo 2^64, the sum over the ranks that share a model is
  /// the same however it is cut.
  virtual std::uint64_t fingerprint() const = 0;
};

/// For the rank that holds shard `shard`. Keeps references to plan and arena.
std::unique_ptr<State> make_state(const Plan& plan, int shard, const memory::Arena<kernels::Device>& arena);

}  // namespace tessera::train
