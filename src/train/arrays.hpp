/// The arrays of a training step, declared to the layout; views of them in the arena; operations on whole arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "config/settings.hpp"
#include "kernels/core/byte_copies.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/master_weights.hpp"
#include "memory/arena.hpp"
#include "memory/layout.hpp"
#include "model/activations.hpp"
#include "model/params.hpp"
#include "optim/optimizer.hpp"
#include "train/batch_plan.hpp"
#include "train/offload.hpp"
#include "train/sharing.hpp"

namespace tessera::train {

/// How the arrays are stored.
struct Storage {
  optim::Traits optimizer;
  Dtype weights, gradients, moments;
  bool has_master;  // bf16 weights have one; fp16 weights always do, and fp32 weights are their own
  bool has_wire;    // gradients cross the network in bf16
  config::Offload offload;
  std::int64_t offload_slots;
};

/// An array of the optimizer's besides the master weights.
struct MomentTensor {
  std::string group;  // of a checkpoint: "moments/m"
  memory::TensorId tensor;
};

/// Weights, gradients and optimizer state. W counts the elements of all units, each padded to equal parts for the ranks
/// that share them, and O those of this rank's parts (parallel/strategies/ownership.hpp); if nothing is sharded, both
/// are table.flat_count().
struct ArrayTensors {
  memory::TensorId params;            // [W], or [O] if parameters are sharded: dtype of the activations
  memory::TensorId master;            // [O]  what params lack of the weights that are updated (master_weights.hpp)
  memory::TensorId grads;             // [W], or [O] if gradients are sharded: precision.gradients
  memory::TensorId wire;              // [W]  bf16: what crosses the network; kAbsent if gradients are sent as they are
  std::vector<MomentTensor> moments;  // [O] each: precision.moments
  std::vector<memory::TensorId> gathered;    // [places] of whole units' weights, if parameters are sharded
  std::vector<memory::TensorId> unit_grads;  // [places] of whole units' gradients, if gradients are sharded
  std::vector<memory::TensorId> unit_wires;  // [places] of the same on the network; empty if sent as they are
  StagedTensors staged;                      // of params, master and moments those that are kept on the host
};
ArrayTensors declare_arrays(const model::ParamTable& table, const Sharing& sharing, const BatchPlan& batch,
                            const Storage& storage, memory::Layout& layout);

/// When gradients are in transit: the last transfers of a micro-step may still be in progress when the next has begun.
memory::Lifetime transit_of(const BatchPlan& batch, const model::ParamTable& table);

/// The numbers of a step.
struct NumberTensors {
  memory::TensorId state;            // optim::StepState, as fp64
  memory::TensorId grad_scale;       // one number
  memory::TensorId validation_loss;  // one number
};
NumberTensors declare_numbers(Dtype weights, memory::Layout& layout);

/// What the parts of a step share: the model, its batch, and the arrays, with how the ranks share them.
struct Basis {
  model::Shape shape;
  model::ParamTable table;
  BatchPlan batch;
  optim::Traits optimizer;
  model::ActivationOptions options;
  Sharing sharing;
  model::ActivationTensors activations = {};
  ArrayTensors arrays = {};
  NumberTensors numbers = {};
};

/// All of a tensor.
template <class Number>
kernels::Vector<Number, kernels::Device> array_of(const memory::Arena<kernels::Device>& arena, memory::TensorId id) {
  const std::size_t count = id == memory::kAbsent ? 0 : static_cast<std::size_t>(arena.layout()[id].count);
  return kernels::Vector<Number, kernels::Device>(arena.template data<std::remove_const_t<Number>>(id), count);
}

/// What the optimizer keeps of the master weights: the weights themselves if they have its type.
template <class Scalar>
kernels::Vector<kernels::MasterWord<Scalar>, kernels::Device> master_of(const ArrayTensors& arrays,
                                                                        const memory::Arena<kernels::Device>& arena) {
  constexpr bool is_one_array = kernels::MasterWeights<kernels::Device, Scalar>::kIsOneArray;
  return array_of<kernels::MasterWord<Scalar>>(arena, is_one_array ? arrays.params : arrays.master);
}

/// Sets every byte of an array on the device to zero.
/// Async  returns after enqueue on `exec`.
template <class Array>
void clear_bytes(const kernels::Device& exec, const Array& array) {
  kernels::clear_bytes(exec, array.data(), array.size() * sizeof(*array.data()));
}

/// Copies `from` to an array of the same length on the device.
///
/// Async   fences.
/// Throws  std::logic_error if the lengths differ.
template <class Number, class Array>
void upload(const std::vector<Number>& from, const Array& to) {
  static_assert(std::is_same_v<Number, typename Array::value_type>);
  if (from.size() != to.size()) throw std::logic_error("upload: an array of another length");
  kernels::upload_bytes(from.data(), to.data(), from.size() * sizeof(Number));
}

/// An array of the device, on the host.
/// Async  fences.
template <class Array>
auto on_host(const Array& array) {
  std::vector<std::remove_const_t<typename Array::value_type>> host(array.size());
  kernels::download_bytes(array.data(), host.data(), host.size() * sizeof(*array.data()));
  return host;
}

/// Copies a list of small structs to its place in the arena, where it is declared as integers.
/// Async  fences.
template <class Item>
kernels::Vector<const Item, kernels::Device> upload_list(const std::vector<Item>& items,
                                                         const memory::Arena<kernels::Device>& arena,
                                                         memory::TensorId id) {
  const kernels::Vector<Item, kernels::Device> target(reinterpret_cast<Item*>(arena.template data<std::int32_t>(id)),
                                                      items.size());
  upload(items, target);
  return target;
}

}  // namespace tessera::train
