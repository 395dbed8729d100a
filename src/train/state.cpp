#include "train/state.hpp"  // the contract is there; here is how

#include <array>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "kernels/master_weights.hpp"
#include "model/initial_values.hpp"
#include "train/arrays.hpp"
#include "train/dtypes.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;

template <class Scalar>
class StateOf final : public State {
 public:
  using Real = Accum<Scalar>;
  using Weights = kernels::MasterWeights<Exec, Scalar>;
  using Moments = kernels::Vector<Real, Exec>;

  StateOf(const Plan& plan, const memory::Arena<Exec>& arena)
      : plan_(plan),
        weights_(weights_of<Scalar>(plan, arena)),
        m_(flat<Real>(plan, arena, plan.state.m)),
        v_(flat<Real>(plan, arena, plan.state.v)) {}

  void clear(const Exec& exec) override {
    clear_bytes(exec, weights_.working);
    clear_bytes(exec, weights_.master);
    clear_bytes(exec, m_);
    clear_bytes(exec, v_);
    exec.fence();
  }

  void initialize(const Exec& exec, std::uint64_t seed) override {
    for (const model::Param& param : plan_.table.params()) {
      model::InitializeParam<Exec, Scalar>{weights_, param.first, param.count, model::InitialValues(seed, param)}
          .launch(exec);
    }
  }

  std::vector<parallel::Span> weights() const override {
    const auto span = [](const char* label, const auto& array) {
      using Number = std::remove_const_t<typename std::remove_cvref_t<decltype(array)>::value_type>;
      return parallel::Span{label, array.data(), static_cast<std::int64_t>(array.size()), kDtype<Number>};
    };
    if constexpr (Weights::kIsOneArray) return {span("params", weights_.working)};
    return {span("params", weights_.working), span("optimizer.master", weights_.master)};
  }

  std::vector<SavedTensor> saved(const std::function<bool(std::size_t)>& is_wanted) override {
    std::vector<SavedTensor> state;
    std::size_t number = 0;
    const auto add = [&](const char* group, const auto& array) {
      for (const model::Param& param : plan_.table.params()) {
        if (is_wanted(number++))
          state.push_back({group, &param, [this, &param, array] { return on_host_as_float(param, array); }});
      }
    };
    add("params", weights_);
    for (const auto& [group, array] : moments()) add(group, array);
    return state;
  }

  void load(const std::function<void(const StateTensor&)>& visit) override {
    std::vector<float> buffer;
    const auto each = [&](const char* group, const auto& take) {
      for (const model::Param& param : plan_.table.params()) {
        buffer.resize(param.count);
        visit({group, &param, buffer});
        take(param);
      }
    };
    each("params", [&](const model::Param& param) { load_weights(param, buffer); });
    for (const auto& [group, array] : moments()) {
      each(group, [&, all = array](const model::Param& param) {
        upload(std::vector<Real>(buffer.begin(), buffer.end()), part_of(param, all));
      });
    }
  }

  std::uint64_t fingerprint() const override {
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
    std::vector<kernels::MasterWord<Scalar>> master(Weights::kIsOneArray ? 0 : values.size());
    HostWeights host;
    host.working = decltype(host.working)(working.data(), working.size());
    if constexpr (Weights::kIsOneArray) {
      host.master = host.working;
    } else {
      host.master = decltype(host.master)(master.data(), master.size());
    }
    for (std::size_t i = 0; i < values.size(); ++i) host.set(i, static_cast<Real>(values[i]));
    upload(working, part_of(param, weights_.working));
    if constexpr (!Weights::kIsOneArray) upload(master, part_of(param, weights_.master));
  }

  /// A tensor's weights or moments as floats on the host, valid until the next call.
  std::span<const float> on_host_as_float(const model::Param& param, const Weights& weights) {
    if constexpr (kIsPlain) return {weights.working.data() + param.first, static_cast<std::size_t>(param.count)};
    auto working = on_host(weights.working.data() + param.first, param.count);
    auto master = on_host(weights.master.data() + param.first, param.count);
    const HostWeights host{decltype(HostWeights::working)(working.data(), working.size()),
                           decltype(HostWeights::master)(master.data(), master.size())};
    saved_.resize(param.count);
    for (std::int64_t i = 0; i < param.count; ++i) saved_[i] = static_cast<float>(host(i));
    return saved_;
  }
  std::span<const float> on_host_as_float(const model::Param& param, const Moments& moments) {
    if constexpr (kIsPlain) return {moments.data() + param.first, static_cast<std::size_t>(param.count)};
    const std::vector<Real> host = on_host(moments.data() + param.first, param.count);
    saved_.assign(host.begin(), host.end());
    return saved_;
  }

  const Plan& plan_;
  const Weights weights_;
  const Moments m_, v_;
  std::vector<float> saved_;  // the host's copy of the tensor that is being saved
};

}  // namespace

std::unique_ptr<State> make_state(const Plan& plan, const memory::Arena<Exec>& arena) {
  if (plan.owned.size() != 1 || plan.owned[0].first != 0 || plan.owned[0].count != plan.table.flat_count()) {
    throw std::logic_error("training state: only for a rank that owns every element");
  }
  return with_types(plan, [&]<class Scalar, class Grad>() -> std::unique_ptr<State> {
    return std::make_unique<StateOf<Scalar>>(plan, arena);
  });
}

}  // namespace tessera::train
