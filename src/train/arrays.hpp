/// Views of a training step's arrays in the arena, and operations on whole arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "kernels/core/byte_copies.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/master_weights.hpp"
#include "memory/arena.hpp"
#include "train/plan.hpp"

namespace tessera::train {

/// All of a tensor of the plan's state.
template <class Number>
kernels::Vector<Number, kernels::Device> array_of(const memory::Arena<kernels::Device>& arena, memory::TensorId id) {
  const std::size_t count = id == memory::kAbsent ? 0 : static_cast<std::size_t>(arena.layout()[id].count);
  return kernels::Vector<Number, kernels::Device>(arena.template data<std::remove_const_t<Number>>(id), count);
}

/// What the optimizer keeps of the master weights: the weights themselves if they have its type.
template <class Scalar>
kernels::Vector<kernels::MasterWord<Scalar>, kernels::Device> master_of(const Plan& plan,
                                                                        const memory::Arena<kernels::Device>& arena) {
  constexpr bool is_one_array = kernels::MasterWeights<kernels::Device, Scalar>::kIsOneArray;
  return array_of<kernels::MasterWord<Scalar>>(arena, is_one_array ? plan.state.params : plan.state.master);
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
