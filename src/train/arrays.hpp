/// Views of a training step's arrays in the arena, and operations on whole arrays.
#pragma once

#include <type_traits>
#include <vector>

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
template <class Exec, class Array>
void clear_bytes(const Exec& exec, const Array& array) {
  const kernels::Vector<unsigned char, Exec> bytes(reinterpret_cast<unsigned char*>(array.data()),
                                                   array.size() * sizeof(*array.data()));
  Kokkos::deep_copy(exec, bytes, static_cast<unsigned char>(0));
}

/// Copies `from` to an array of the same length on the device.
/// Async  fences.
template <class Number, class Array>
void upload(const std::vector<Number>& from, const Array& to) {
  Kokkos::deep_copy(to, Kokkos::View<const Number*, Kokkos::HostSpace, kernels::Unmanaged>(from.data(), from.size()));
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
