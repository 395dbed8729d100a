#include "train/state.hpp"  // the contract is there; here is how

#include <algorithm>
#include <bit>
#include <memory>
#include <stdexcept>
#include <type_traits>

#include "kernels/core/byte_copies.hpp"
#include "kernels/core/random.hpp"
#include "kernels/core/round_up.hpp"
#include "model/initial_values.hpp"
#include "train/dtypes.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;

template <class Scalar>
using HostWeights = kernels::MasterWeights<Kokkos::DefaultHostExecutionSpace, Scalar>;

/// Nothing to convert between device and host.
template <class Number>
constexpr bool kIsPlain = kernels::kIsHost<Exec>&& std::is_same_v<Number, float>;

template <class Array>
auto part_of(const Array& array, std::int64_t first, std::int64_t count) {
  return Kokkos::subview(array, std::make_pair(first, first + count));
}

/// Weights in arrays of the host. `master`: null if there is none; not used if the working copy is the master.
template <class Scalar>
HostWeights<Scalar> weights_in(Scalar* working, [[maybe_unused]] kernels::MasterWord<Scalar>* master,
                               std::size_t count) {
  HostWeights<Scalar> weights;
  weights.working = decltype(weights.working)(working, count);
  if constexpr (HostWeights<Scalar>::kIsOneArray) {
    weights.master = weights.working;
  } else if (master != nullptr) {
    weights.master = decltype(weights.master)(master, count);
  }
  return weights;
}

/// `count` numbers as floats in `room`.
template <class Number>
std::span<const float> as_floats(std::vector<float>& room, std::int64_t count, const Number& number) {
  room.resize(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) room[i] = static_cast<float>(number(i));
  return room;
}

}  // namespace

template <class Scalar, class Moment>
State<Scalar, Moment>::State(const Basis& basis, int shard, const memory::Arena<Exec>& arena)
    : spans_(owned_spans(basis.table, basis.sharing, shard)),
      working_(array_of<Scalar>(arena, basis.arrays.params)),
      master_(master_of<Scalar>(basis.arrays, arena)) {
  for (const auto& [group, tensor] : basis.arrays.moments)
    moments_.emplace_back(group, array_of<Moment>(arena, tensor));
}

template <class Scalar, class Moment>
void State<Scalar, Moment>::clear(const Exec& exec) {
  clear_bytes(exec, working_);
  clear_bytes(exec, master_);
  for (const auto& [group, array] : moments_) clear_bytes(exec, array);
  exec.fence();
}

template <class Scalar, class Moment>
void State<Scalar, Moment>::initialize(const Exec& exec, std::uint64_t seed) {
  clear(exec);
  for (const OwnedSpan& span : spans_) {
    model::InitializeParam<Scalar>{weights_of(span), span.from, model::InitialValues(seed, *span.param)}.launch(exec);
  }
  exec.fence();
}

template <class Scalar, class Moment>
std::vector<parallel::Span> State<Scalar, Moment>::weights() const {
  const auto span = [](const char* label, const auto& array) {
    using Number = std::remove_const_t<typename std::remove_cvref_t<decltype(array)>::value_type>;
    return parallel::Span{label, array.data(), static_cast<std::int64_t>(array.size()), kDtype<Number>};
  };
  if (Weights::kIsOneArray || !has_master()) return {span("params", working_)};
  return {span("params", working_), span("optimizer.master", master_)};
}

template <class Scalar, class Moment>
template <class OfWeights, class OfMoments>
std::vector<SavedTensor> State<Scalar, Moment>::collect(const std::function<bool(std::size_t)>& is_wanted,
                                                        const OfWeights& of_weights,
                                                        const OfMoments& of_moments) const {
  std::vector<SavedTensor> state;
  std::size_t number = 0;
  const auto add = [&](const std::string& group, const auto& data_of) {
    for (const OwnedSpan& span : spans_) {
      if (is_wanted(number++)) state.push_back({group, span.param, span.from, span.count, data_of(span)});
    }
  };
  add("params", of_weights);
  for (const auto& [group, array] : moments_) {
    add(group, [&, all = array](const OwnedSpan& span) { return of_moments(span, all); });
  }
  return state;
}

template <class Scalar, class Moment>
std::vector<SavedTensor> State<Scalar, Moment>::saved(const std::function<bool(std::size_t)>& is_wanted) {
  return collect(
      is_wanted, [this](const OwnedSpan& span) { return [this, &span] { return weights_on_host(span); }; },
      [this](const OwnedSpan& span, const Moments& moments) {
        return [this, &span, moments] { return moments_on_host(span, moments); };
      });
}

template <class Scalar, class Moment>
std::vector<SavedTensor> State<Scalar, Moment>::copied(const Exec& exec,
                                                       const std::function<bool(std::size_t)>& is_wanted,
                                                       std::span<std::byte> room) const {
  const auto floats = std::make_shared<std::vector<float>>();  // of the tensor that is being saved
  std::size_t end = 0;
  const auto copy_of = [&](const auto& array) {
    using Number = std::remove_cvref_t<decltype(*array.data())>;
    const auto bytes = static_cast<std::int64_t>(array.size() * sizeof(Number));
    if (end + static_cast<std::size_t>(bytes) > room.size()) throw std::logic_error("state: no room for the copy");
    std::byte* const place = room.subspan(end, static_cast<std::size_t>(bytes)).data();
    kernels::fetch_bytes(exec, array.data(), place, static_cast<std::size_t>(bytes));
    end += static_cast<std::size_t>(kernels::round_up(bytes, kPartBytes));
    return reinterpret_cast<Number*>(place);
  };
  std::vector<SavedTensor> state = collect(
      is_wanted,
      [&](const OwnedSpan& span) {
        const Weights there = weights_of(span);
        Scalar* const working = copy_of(there.working);
        const bool has_own_master = !Weights::kIsOneArray && has_master();
        const HostWeights<Scalar> copy = weights_in<Scalar>(working, has_own_master ? copy_of(there.master) : nullptr,
                                                            static_cast<std::size_t>(span.count));
        return [copy, count = span.count, floats]() -> std::span<const float> {
          if constexpr (std::is_same_v<Scalar, float>) return {copy.working.data(), copy.working.size()};
          return as_floats(*floats, count, copy);
        };
      },
      [&](const OwnedSpan& span, const Moments& moments) {
        const Moment* const copy = copy_of(part_of(moments, span.state, span.count));
        return [copy, count = span.count, floats]() -> std::span<const float> {
          if constexpr (std::is_same_v<Moment, float>) return {copy, static_cast<std::size_t>(count)};
          return as_floats(*floats, count, [&](std::int64_t i) { return copy[i]; });
        };
      });
  exec.fence();
  return state;
}

template <class Scalar, class Moment>
void State<Scalar, Moment>::load(const Exec& exec, const std::function<void(const StateTensor&)>& visit) {
  clear(exec);
  std::vector<float> buffer;
  const auto each = [&](const std::string& group, const auto& take) {
    for (const OwnedSpan& span : spans_) {
      buffer.resize(span.count);
      visit({group, span.param, span.from, buffer});
      take(span);
    }
  };
  each("params", [&](const OwnedSpan& span) { load_weights(span, buffer); });
  for (const auto& [group, array] : moments_) {
    each(group, [&, all = array](const OwnedSpan& span) {
      std::vector<Moment> values(buffer.size());
      std::transform(buffer.begin(), buffer.end(), values.begin(), [](float x) { return static_cast<Moment>(x); });
      upload(values, part_of(all, span.state, span.count));
    });
  }
}

/// A span's weights copied to the host, both halves.
template <class Scalar, class Moment>
struct State<Scalar, Moment>::HostCopy {
  HostCopy(const State& state, const OwnedSpan& span)
      : working(on_host(state.weights_of(span).working)),
        master(on_host(state.weights_of(span).master)),
        weights(weights_in(working.data(), state.has_master() ? master.data() : nullptr, working.size())) {}
  std::vector<Scalar> working;
  std::vector<kernels::MasterWord<Scalar>> master;
  HostWeights<Scalar> weights;
};

template <class Scalar, class Moment>
std::uint64_t State<Scalar, Moment>::fingerprint() const {
  using Bits = std::conditional_t<sizeof(Real) == 8, std::uint64_t, std::uint32_t>;
  std::uint64_t sum = 0;
  for (const OwnedSpan& span : spans_) {
    const HostCopy copy(*this, span);
    for (std::int64_t i = 0; i < span.count; ++i) {
      sum += mix(static_cast<std::uint64_t>(span.param->first + span.from + i), std::bit_cast<Bits>(copy.weights(i)));
    }
  }
  return sum;
}

/// A span's weights in place, as the optimizer sees them. A master lies at the index of the moments, unless it is the
/// working copy.
template <class Scalar, class Moment>
auto State<Scalar, Moment>::weights_of(const OwnedSpan& span) const -> Weights {
  Weights weights{.working = part_of(working_, span.weights, span.count), .master = {}};
  const std::int64_t first = Weights::kIsOneArray ? span.weights : span.state;
  if (has_master()) weights.master = part_of(master_, first, span.count);
  return weights;
}

template <class Scalar, class Moment>
void State<Scalar, Moment>::load_weights(const OwnedSpan& span, const std::vector<float>& values) const {
  std::vector<Scalar> working(values.size());
  const bool has_own_master = !Weights::kIsOneArray && has_master();
  std::vector<kernels::MasterWord<Scalar>> master(has_own_master ? values.size() : 0);
  const HostWeights<Scalar> host = weights_in(working.data(), has_own_master ? master.data() : nullptr, working.size());
  for (std::size_t i = 0; i < values.size(); ++i) host.set(i, static_cast<Real>(values[i]));
  const Weights there = weights_of(span);
  upload(working, there.working);
  if (has_own_master) upload(master, there.master);
}

template <class Scalar, class Moment>
std::span<const float> State<Scalar, Moment>::weights_on_host(const OwnedSpan& span) {
  if constexpr (kIsPlain<Scalar>) return {working_.data() + span.weights, static_cast<std::size_t>(span.count)};
  const HostCopy copy(*this, span);
  return as_floats(saved_, span.count, copy.weights);
}

template <class Scalar, class Moment>
std::span<const float> State<Scalar, Moment>::moments_on_host(const OwnedSpan& span, const Moments& moments) {
  if constexpr (kIsPlain<Scalar> && kIsPlain<Moment>) {
    return {moments.data() + span.state, static_cast<std::size_t>(span.count)};
  }
  const std::vector<Moment> host = on_host(part_of(moments, span.state, span.count));
  return as_floats(saved_, span.count, [&](std::int64_t i) { return host[i]; });
}

#define TESSERA_INSTANTIATE(Scalar, Moment) template class State<Scalar, Moment>;
TESSERA_FOR_EACH_MOMENT(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::train
