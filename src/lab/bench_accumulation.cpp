/// The bench.accumulation job: the same number added bench.terms times, one after the other, in several formats.
///
///   fp32 += fp16          each addition promotes the addend, as C++ and PyTorch do: the sum is fp32
///   fp32 += float(fp16)   the addend is converted before the loop
///   fp16 += fp16          the sum is rounded to fp16 after each addition
///
/// A sum of two 16-bit numbers in float, rounded to 16 bits, is their correctly rounded sum: float has more than twice
/// their digits. `exact` is bench.terms times bench.addend in double. Runs on rank 0.

#include <fmt/format.h>

#include "lab/bench.hpp"

namespace tessera::lab {
namespace {

using Exec = kernels::Device;

/// sum[0] = ((0 + addend) + addend) + ..., `terms` times, by one thread: each addition in float, rounded to Sum.
template <class Sum, class Addend>
struct Accumulate {
  kernels::Vector<float, Exec> sum;  // [1]  out
  Addend addend;
  std::int64_t terms;

  KOKKOS_FUNCTION void operator()(int) const {
    Sum total(0.0f);
    for (std::int64_t i = 0; i < terms; ++i) {
      total = static_cast<Sum>(static_cast<float>(total) + static_cast<float>(addend));
    }
    sum(0) = static_cast<float>(total);
  }
};

template <class Sum, class Addend>
double accumulate(Addend addend, std::int64_t terms) {
  const Exec exec;
  const Kokkos::View<float*, Exec> sum("accumulation.sum", 1);
  Kokkos::parallel_for("tessera::bench::accumulate", Kokkos::RangePolicy<Exec>(exec, 0, 1),
                       Accumulate<Sum, Addend>{sum, addend, terms});
  exec.fence();
  return static_cast<double>(Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), sum)(0));
}

/// The three sums of a 16-bit format.
template <class Narrow, class Add>
void add_narrow(const Bench& bench, const Add& add) {
  const Narrow addend(bench.addend);
  const std::string name(kScalarName<Narrow>);
  const float wide = static_cast<float>(addend);
  add(name, name, wide, accumulate<Narrow>(addend, bench.terms));
  add("fp32", name, wide, accumulate<float>(addend, bench.terms));
  add("fp32", fmt::format("float({})", name), wide, accumulate<float>(wide, bench.terms));
}

}  // namespace

Exit bench_accumulation(const Context& context) {
  const Bench& bench = context.settings().section<Bench>();
  return bench_on_root(context, [&](BenchResult& result) {
    const double exact = static_cast<double>(bench.terms) * bench.addend;
    const auto add = [&](const std::string& accumulator, const std::string& addend, double value, double sum) {
      using T = Cell;
      result.add({T::text("accumulator", accumulator), T::text("addend", addend, "float(fp16)"),
                  T::number("terms", "1", static_cast<double>(bench.terms)), T::number("value", "1", value),
                  T::number("sum", "1", sum), T::number("exact", "1", exact),
                  T::number("error", "1", sum / exact - 1)});
    };
    const auto addend = static_cast<float>(bench.addend);
    add("fp32", "fp32", addend, accumulate<float>(addend, bench.terms));
    add_narrow<float16>(bench, add);
    add_narrow<bfloat16>(bench, add);
  });
}

}  // namespace tessera::lab
