/// What a run keeps on the device from step to step: the weights and the optimizer's two moments. How they begin, are
/// cleared, given out for a checkpoint, taken from one, and compared between ranks.
///
/// Flat arrays of table.flat_count() elements: the working copy of the weights, what lies beside it of their master
/// (kernels/master_weights.hpp), and the moments. This rank owns all of them.
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
#include "parallel/ownership.hpp"
#include "train/plan.hpp"

namespace tessera::train {

/// A tensor of the training state on the host, on its way out of a checkpoint: unpadded.
struct StateTensor {
  std::string group;  // "params" (the master weights), "moments/m", "moments/v"
  const model::Param* param;
  std::span<float> data;
};

/// The same on its way into one. `data` fetches it from the device: the host never holds more than one tensor of it.
struct SavedTensor {
  std::string group;
  const model::Param* param;
  std::function<std::span<const float>()> data;  // valid until that of another one is asked for
};

class State {
 public:
  using Exec = kernels::Device;
  virtual ~State() = default;

  /// All of it becomes zero, padding included. Fences.
  virtual void clear(const Exec& exec) = 0;

  /// Weights from seed and label, where they lie. Returns after enqueue.
  virtual void initialize(const Exec& exec, std::uint64_t seed) = 0;

  /// The arrays of the weights, for a broadcast: the working copy, and what lies beside it.
  virtual std::vector<parallel::Span> weights() const = 0;

  /// The tensors whose number `is_wanted`. Their data is good while this lives and nobody changes it.
  virtual std::vector<SavedTensor> saved(const std::function<bool(std::size_t)>& is_wanted) = 0;

  /// Calls `visit` with host memory for every tensor, to fill; what it fills is the state. Padding stays as it is.
  virtual void load(const std::function<void(const StateTensor&)>& visit) = 0;

  /// A hash of the weights, bit for bit (FNV-1a, by numbers): equal on all ranks that hold the same model.
  virtual std::uint64_t fingerprint() const = 0;
};

/// Keeps references to both. Throws std::logic_error for a plan that owns less than the whole.
std::unique_ptr<State> make_state(const Plan& plan, const memory::Arena<kernels::Device>& arena);

}  // namespace tessera::train
