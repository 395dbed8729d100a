#include "kernels/residual_add.hpp"

#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void ResidualAdd<Exec, Scalar>::launch(const Exec& exec) const {
  const auto n = static_cast<std::int64_t>(out.extent(0));
  TESSERA_REQUIRE(x.extent(0) == out.extent(0) && delta.extent(0) == out.extent(0),
                  "residual add: x and delta must be [n] like out", x.extent(0), delta.extent(0), out.extent(0));
  const bool fit = packets_fit(kPacketWidth<Exec, Scalar>, n, x.data(), delta.data(), out.data());
  in_packets<Exec, Scalar>(fit, [&]<int kWidth>(InPackets<kWidth>) {
    using Policy = Kokkos::RangePolicy<Exec, InPackets<kWidth>, Kokkos::IndexType<std::int64_t>>;
    Kokkos::parallel_for("tessera::residual_add", Policy(exec, 0, n / kWidth), *this);
  });
}

template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void ResidualAdd<Exec, Scalar>::operator()(InPackets<kWidth>, std::int64_t p) const {
  auto sum = load<kWidth>(&x(p * kWidth));
  const auto added = load<kWidth>(&delta(p * kWidth));
  for (int i = 0; i < kWidth; ++i) sum.set(i, sum[i] + added[i]);
  store(&out(p * kWidth), sum);
}

TESSERA_INSTANTIATE_KERNEL(ResidualAdd);

}  // namespace tessera::kernels
