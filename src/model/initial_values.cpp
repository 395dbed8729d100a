#include "model/initial_values.hpp"

#include <algorithm>
#include <type_traits>

#include "kernels/core/instantiate.hpp"

namespace tessera::model {

using Exec = kernels::Device;

InitialValues::InitialValues(std::uint64_t seed, const Param& param) : key_(mix(seed)), std_(param.initial_std) {
  for (const char letter : param.label) key_ = mix(key_ ^ static_cast<unsigned char>(letter));
}

template <class Scalar>
void InitializeParam<Scalar>::launch(const Exec& exec) const {
  using Policy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;
  Kokkos::parallel_for("tessera::model::initialize", Policy(exec, 0, weights.working.extent(0)), *this);
}

template <class Scalar>
void initialize_weights(const Exec& exec, const ParamTable& table, std::uint64_t seed, Scalar* weights) {
  using Master = kernels::MasterWord<Scalar>;
  constexpr std::int64_t kChunk = std::int64_t{1} << 20;
  constexpr bool kNeedsMaster = !std::is_same_v<Scalar, Master> && !std::is_same_v<Scalar, bfloat16>;
  const Kokkos::View<Master*, Exec::memory_space> wide("tessera::model::wide", kNeedsMaster ? kChunk : 0);
  for (const Param& param : table.params()) {
    const InitialValues initial(seed, param);
    for (std::int64_t from = 0; from < param.count; from += kChunk) {
      const std::int64_t count = std::min(kChunk, param.count - from);
      const kernels::Vector<Scalar, Exec> working(weights + param.first + from, count);
      kernels::Vector<Master, Exec> master;
      if constexpr (std::is_same_v<Scalar, Master> && !std::is_same_v<Scalar, bfloat16>) master = working;
      if constexpr (kNeedsMaster) master = kernels::Vector<Master, Exec>(wide.data(), count);
      InitializeParam<Scalar>{{working, master}, from, initial}.launch(exec);
    }
  }
  exec.fence();
}

#define TESSERA_INSTANTIATE(Exec, Scalar)  \
  template struct InitializeParam<Scalar>; \
  template void initialize_weights(const kernels::Device&, const ParamTable&, std::uint64_t, Scalar*);
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::model
