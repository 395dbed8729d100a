/// What a run keeps on the device from step to step: the weights and the optimizer's two moments, a flat array each.
/// How they are cleared, given out for a checkpoint, taken from one, and compared between ranks.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/master_weights.hpp"
#include "model/params.hpp"
#include "train/step.hpp"

namespace tessera::train {

/// Every byte of a flat array on the device becomes zero, padding included. Returns after enqueue on `exec`.
template <class Exec, class Array>
void clear_bytes(const Exec& exec, const Array& array) {
  const kernels::Vector<unsigned char, Exec> bytes(reinterpret_cast<unsigned char*>(array.data()),
                                                   array.size() * sizeof(*array.data()));
  Kokkos::deep_copy(exec, bytes, static_cast<unsigned char>(0));
}

/// Fills a flat array on the device, as long as `from`. Fences.
template <class Number, class Array>
void upload(const std::vector<Number>& from, const Array& to) {
  Kokkos::deep_copy(to, Kokkos::View<const Number*, Kokkos::HostSpace, kernels::Unmanaged>(from.data(), from.size()));
}

template <class Exec, class Scalar>
class TrainingState {
 public:
  using Real = Accum<Scalar>;
  using Weights = kernels::MasterWeights<Exec, Scalar>;
  using Moments = kernels::Vector<Real, Exec>;

  /// The arrays lie in somebody else's memory, as `table` says; each has table.flat_count() elements.
  TrainingState(const model::ParamTable& table, const Weights& weights, Moments m, Moments v)
      : table_(table), weights_(weights), m_(m), v_(v) {}

  const Weights& weights() const { return weights_; }
  const Moments& m() const { return m_; }
  const Moments& v() const { return v_; }

  /// All of it becomes zero, padding included. Fences.
  void clear(const Exec& exec) const {
    clear_bytes(exec, weights_.working);
    clear_bytes(exec, weights_.master);
    clear_bytes(exec, m_);
    clear_bytes(exec, v_);
    exec.fence();
  }

  /// The state's tensors whose number `is_wanted`. Their data is good while this lives and nobody changes it.
  std::vector<SavedTensor> saved(const std::function<bool(std::size_t)>& is_wanted) {
    std::vector<SavedTensor> state;
    std::size_t number = 0;
    const auto add = [&](const char* group, const auto& array) {
      for (const model::Param& param : table_.params()) {
        if (is_wanted(number++))
          state.push_back({group, &param, [this, &param, array] { return saved(param, array); }});
      }
    };
    add("params", weights_);
    for (const auto& [group, array] : moments()) add(group, array);
    return state;
  }

  /// Calls `visit` with host memory for every tensor, to fill; what it fills is the state. Padding stays as it is.
  void load(const std::function<void(const StateTensor&)>& visit) const {
    std::vector<float> buffer;
    const auto each = [&](const char* group, const auto& upload) {
      for (const model::Param& param : table_.params()) {
        buffer.resize(param.count);
        visit({group, &param, buffer});
        upload(param);
      }
    };
    each("params", [&](const model::Param& param) { load_weights(param, buffer); });
    for (const auto& [group, array] : moments()) {
      each(group, [&, all = array](const model::Param& param) {
        upload(std::vector<Real>(buffer.begin(), buffer.end()), part_of(param, all));
      });
    }
  }

  /// A hash of the weights, bit for bit (FNV-1a, by numbers).
  std::uint64_t fingerprint() const {
    std::uint64_t hash = 0xcbf29ce484222325u;
    const auto add = [&](const auto& array) {
      for (const auto& number : on_host(array.data(), static_cast<std::int64_t>(array.size()))) {
        std::uint64_t word = 0;
        std::memcpy(&word, &number, sizeof(number));
        hash = (hash ^ word) * 0x100000001b3u;
      }
    };
    add(weights_.working);
    add(weights_.master);
    return hash;
  }

 private:
  using HostWeights = kernels::MasterWeights<Kokkos::DefaultHostExecutionSpace, Scalar>;
  static constexpr bool kIsPlain = kernels::kIsHost<Exec> && std::is_same_v<Scalar, float>;  // nothing to convert

  std::array<std::pair<const char*, Moments>, 2> moments() const { return {{{"moments/m", m_}, {"moments/v", v_}}}; }

  template <class Array>
  static auto part_of(const model::Param& param, const Array& array) {
    return Kokkos::subview(array, std::make_pair(param.first, param.first + param.count));
  }
  template <class Number>
  static std::vector<Number> on_host(const Number* data, std::int64_t count) {
    std::vector<Number> host(count);
    Kokkos::deep_copy(Kokkos::View<Number*, Kokkos::HostSpace, kernels::Unmanaged>(host.data(), host.size()),
                      kernels::Vector<const Number, Exec>(data, count));
    return host;
  }

  /// A tensor's weights, as the optimizer has them, at their place.
  void load_weights(const model::Param& param, const std::vector<float>& values) const {
    std::vector<Scalar> working(values.size());
    std::vector<kernels::MasterWord<Scalar>> master(Weights::kAreOne ? 0 : values.size());
    HostWeights on_host;
    on_host.working = decltype(on_host.working)(working.data(), working.size());
    if constexpr (Weights::kAreOne) {
      on_host.master = on_host.working;
    } else {
      on_host.master = decltype(on_host.master)(master.data(), master.size());
    }
    for (std::size_t i = 0; i < values.size(); ++i) on_host.set(i, static_cast<Real>(values[i]));
    upload(working, part_of(param, weights_.working));
    if constexpr (!Weights::kAreOne) upload(master, part_of(param, weights_.master));
  }

  /// A tensor's weights or moments as floats on the host, valid until the next call.
  std::span<const float> saved(const model::Param& param, const Weights& weights) {
    if constexpr (kIsPlain) return {weights.working.data() + param.first, static_cast<std::size_t>(param.count)};
    auto working = on_host(weights.working.data() + param.first, param.count);
    auto master = on_host(weights.master.data() + param.first, param.count);
    const HostWeights host{decltype(HostWeights::working)(working.data(), working.size()),
                           decltype(HostWeights::master)(master.data(), master.size())};
    saved_.resize(param.count);
    for (std::int64_t i = 0; i < param.count; ++i) saved_[i] = static_cast<float>(host(i));
    return saved_;
  }
  std::span<const float> saved(const model::Param& param, const Moments& moments) {
    if constexpr (kIsPlain) return {moments.data() + param.first, static_cast<std::size_t>(param.count)};
    const std::vector<Real> host = on_host(moments.data() + param.first, param.count);
    saved_.assign(host.begin(), host.end());
    return saved_;
  }

  const model::ParamTable& table_;
  Weights weights_;
  Moments m_, v_;
  std::vector<float> saved_;  // the host's copy of the tensor that is being saved
};

}  // namespace tessera::train
