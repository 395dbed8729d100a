#include "train/state.hpp"  // the contract is there; here is how

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

#include "kernels/master_weights.hpp"
#include "model/initial_values.hpp"
#include "kernels/core/random.hpp"
#include "train/arrays.hpp"
#include "train/dtypes.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;

template <class Scalar, class Moment>
class StateOf final : public State {
 public:
  using Real = Accum<Scalar>;
  using Weights = kernels::MasterWeights<Exec, Scalar>;
  using Moments = kernels::Vector<Moment, Exec>;

  StateOf(const Basis& basis, int shard, const memory::Arena<Exec>& arena)
      : spans_(owned_spans(basis.table, basis.sharing, shard)),
        working_(array_of<Scalar>(arena, basis.arrays.params)),
        master_(master_of<Scalar>(basis.arrays, arena)),
        m_(array_of<Moment>(arena, basis.arrays.m)),
        v_(array_of<Moment>(arena, basis.arrays.v)) {}

  void clear(const Exec& exec) override {
    clear_bytes(exec, working_);
    clear_bytes(exec, master_);
    clear_bytes(exec, m_);
    clear_bytes(exec, v_);
    exec.fence();
  }

  void initialize(const Exec& exec, std::uint64_t seed) override {
    for (const OwnedSpan& span : spans_) {
      model::InitializeParam<Exec, Scalar>{weights_of(span), span.from, model::InitialValues(seed, *span.param)}.launch(
          exec);
    }
  }

  std::vector<parallel::Span> weights() const override {
    const auto span = [](const char* label, const auto& array) {
      using Number = std::remove_const_t<typename std::remove_cvref_t<decltype(array)>::value_type>;
      return parallel::Span{label, array.data(), static_cast<std::int64_t>(array.size()), kDtype<Number>};
    };
    if (Weights::kIsOneArray || !has_master()) return {span("params", working_)};
    return {span("params", working_), span("optimizer.master", master_)};
  }

  std::vector<SavedTensor> saved(const std::function<bool(std::size_t)>& is_wanted) override {
    std::vector<SavedTensor> state;
    std::size_t number = 0;
    const auto add = [&](const char* group, const auto& fetch) {
      for (const OwnedSpan& span : spans_) {
        if (is_wanted(number++)) {
          state.push_back({group, span.param, span.from, span.count, [&span, fetch] { return fetch(span); }});
        }
      }
    };
    add("params", [this](const OwnedSpan& span) { return weights_on_host(span); });
    for (const auto& [group, array] : moments()) {
      add(group, [this, moments = array](const OwnedSpan& span) { return moments_on_host(span, moments); });
    }
    return state;
  }

  void load(const std::function<void(const StateTensor&)>& visit) override {
    std::vector<float> buffer;
    const auto each = [&](const char* group, const auto& take) {
      for (const OwnedSpan& span : spans_) {
        buffer.resize(span.count);
        visit({group, span.param, span.from, buffer});
        take(span);
      }
    };
    each("params", [&](const OwnedSpan& span) { load_weights(span, buffer); });
    for (const auto& [group, array] : moments()) {
      each(group, [&, all = array](const OwnedSpan& span) {
        std::vector<Moment> values(buffer.size());
        std::transform(buffer.begin(), buffer.end(), values.begin(), [](float x) { return static_cast<Moment>(x); });
        upload(values, part_of(all, span.state, span.count));
      });
    }
  }

  std::uint64_t fingerprint() const override {
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

 private:
  using HostWeights = kernels::MasterWeights<Kokkos::DefaultHostExecutionSpace, Scalar>;
  static constexpr bool kIsPlain = kernels::kIsHost<Exec> && std::is_same_v<Scalar, float>;  // nothing to convert

  std::array<std::pair<const char*, Moments>, 2> moments() const { return {{{"moments/m", m_}, {"moments/v", v_}}}; }

  template <class Array>
  static auto part_of(const Array& array, std::int64_t first, std::int64_t count) {
    return Kokkos::subview(array, std::make_pair(first, first + count));
  }

  /// Where a span's master lies: at the index of the moments, unless it is the working copy.
  static std::int64_t master_first(const OwnedSpan& span) { return Weights::kIsOneArray ? span.weights : span.state; }

  bool has_master() const { return master_.data() != nullptr; }
  Weights weights_of(const OwnedSpan& span) const {
    Weights weights{.working = part_of(working_, span.weights, span.count), .master = {}};
    if (has_master()) weights.master = part_of(master_, master_first(span), span.count);
    return weights;
  }

  /// Copies a span's weights to the host, both halves.
  struct HostCopy {
    HostCopy(const StateOf& state, const OwnedSpan& span)
        : working(on_host(state.weights_of(span).working)), master(on_host(state.weights_of(span).master)) {
      weights.working = decltype(weights.working)(working.data(), working.size());
      if (state.has_master()) weights.master = decltype(weights.master)(master.data(), master.size());
    }
    std::vector<Scalar> working;
    std::vector<kernels::MasterWord<Scalar>> master;
    HostWeights weights;
  };

  /// A span's weights in place, as the optimizer sees them.
  void load_weights(const OwnedSpan& span, const std::vector<float>& values) const {
    std::vector<Scalar> working(values.size());
    const bool has_own_master = !Weights::kIsOneArray && has_master();
    std::vector<kernels::MasterWord<Scalar>> master(has_own_master ? values.size() : 0);
    HostWeights host;
    host.working = decltype(host.working)(working.data(), working.size());
    if constexpr (Weights::kIsOneArray) {
      host.master = host.working;
    } else if (has_own_master) {
      host.master = decltype(host.master)(master.data(), master.size());
    }
    for (std::size_t i = 0; i < values.size(); ++i) host.set(i, static_cast<Real>(values[i]));
    const Weights there = weights_of(span);
    upload(working, there.working);
    if (has_own_master) upload(master, there.master);
  }

  // A span's weights or moments as floats on the host, valid until the next call.
  std::span<const float> weights_on_host(const OwnedSpan& span) {
    if constexpr (kIsPlain) return {working_.data() + span.weights, static_cast<std::size_t>(span.count)};
    const HostCopy copy(*this, span);
    saved_.resize(span.count);
    for (std::int64_t i = 0; i < span.count; ++i) saved_[i] = static_cast<float>(copy.weights(i));
    return saved_;
  }
  std::span<const float> moments_on_host(const OwnedSpan& span, const Moments& moments) {
    if constexpr (kIsPlain && std::is_same_v<Moment, float>) {
      return {moments.data() + span.state, static_cast<std::size_t>(span.count)};
    }
    const std::vector<Moment> host = on_host(part_of(moments, span.state, span.count));
    saved_.resize(host.size());
    std::transform(host.begin(), host.end(), saved_.begin(), [](Moment x) { return static_cast<float>(x); });
    return saved_;
  }

  const std::vector<OwnedSpan> spans_;
  const kernels::Vector<Scalar, Exec> working_;
  const kernels::Vector<kernels::MasterWord<Scalar>, Exec> master_;
  const Moments m_, v_;
  std::vector<float> saved_;  // the host's copy of the tensor that is being saved
};

}  // namespace

std::unique_ptr<State> make_state(const Basis& basis, int shard, const memory::Arena<Exec>& arena) {
  return with_types(basis.options, [&]<class Scalar, class Grad>() -> std::unique_ptr<State> {
    return with_moments<Scalar>(arena.layout()[basis.arrays.m].dtype, [&]<class Moment>() -> std::unique_ptr<State> {
      return std::make_unique<StateOf<Scalar, Moment>>(basis, shard, arena);
    });
  });
}

}  // namespace tessera::train
