/// to[i] = from[i] in another dtype (rounded to nearest even where it is narrower).
#pragma once

#include "kernels/core/require.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class From, class To>
struct CastCopy {
  Vector<const From, Exec> from;  // [n]  in
  Vector<To, Exec> to;            // [n]  out

  void launch(const Exec& exec) const {
    TESSERA_REQUIRE(from.extent(0) == to.extent(0), "cast copy: both must be [n]", from.extent(0), to.extent(0));
    using Policy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;
    Kokkos::parallel_for("tessera::core::cast_copy", Policy(exec, 0, static_cast<std::int64_t>(from.extent(0))), *this);
  }

  KOKKOS_FUNCTION void operator()(std::int64_t i) const { to(i) = static_cast<To>(static_cast<Accum<From>>(from(i))); }
};

}  // namespace tessera::kernels
