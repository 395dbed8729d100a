/// The flat arrays of a training step where the arena has them, and what is done to whole arrays.
#pragma once

#include <type_traits>
#include <vector>

#include "kernels/core/tensor.hpp"
#include "kernels/master_weights.hpp"
#include "memory/arena.hpp"
#include "train/plan.hpp"

namespace tessera::train {

/// One of the flat arrays of the plan's state, with table.flat_count() elements.
template <class Number>
kernels::Vector<Number, kernels::Device> flat(const Plan& plan, const memory::Arena<kernels::Device>& arena,
                                              memory::TensorId id) {
  return kernels::Vector<Number, kernels::Device>(arena.template data<std::remove_const_t<Number>>(id),
                                                  static_cast<std::size_t>(plan.table.flat_count()));
}

/// The weights: what the model reads, and what lies beside it for the optimizer.
template <class Scalar>
kernels::MasterWeights<kernels::Device, Scalar> weights_of(const Plan& plan,
                                                           const memory::Arena<kernels::Device>& arena) {
  const auto working = flat<Scalar>(plan, arena, plan.state.params);
  if constexpr (kernels::MasterWeights<kernels::Device, Scalar>::kIsOneArray) {
    return {.working = working, .master = working};
  } else {
    return {.working = working, .master = flat<kernels::MasterWord<Scalar>>(plan, arena, plan.state.master)};
  }
}

/// Every byte of an array on the device becomes zero. Returns after enqueue on `exec`.
template <class Exec, class Array>
void clear_bytes(const Exec& exec, const Array& array) {
  const kernels::Vector<unsigned char, Exec> bytes(reinterpret_cast<unsigned char*>(array.data()),
                                                   array.size() * sizeof(*array.data()));
  Kokkos::deep_copy(exec, bytes, static_cast<unsigned char>(0));
}

/// Fills an array on the device, as long as `from`. Fences.
template <class Number, class Array>
void upload(const std::vector<Number>& from, const Array& to) {
  Kokkos::deep_copy(to, Kokkos::View<const Number*, Kokkos::HostSpace, kernels::Unmanaged>(from.data(), from.size()));
}

/// A list of small structs at its place in the arena, which knows it as integers. Fences.
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
