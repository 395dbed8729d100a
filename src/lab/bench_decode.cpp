/// The bench.decode job: attention of one query per head over T cached keys, in attention.decode_parts parts per head.
///
/// GB/s count every key and value once; `of_copy` is the fraction of the rate (bytes read plus bytes written) at which
/// the same run copies the keys over the values. A row that is above the memory limit has no times; its outcome says
/// so. Runs on rank 0.

#include <cmath>

#include "lab/bench.hpp"
#include "jobs/scalars.hpp"
#include "kernels/attention/decode/decode.hpp"
#include "kernels/cuda/target.hpp"
#include "memory/arena.hpp"

namespace tessera::lab {
namespace {

using Exec = kernels::Device;
using kernels::Vector;

struct Case {
  Dtype dtype;
  int B, H, T, D;

  std::int64_t heads() const { return std::int64_t{B} * H; }
  std::int64_t elements() const { return heads() * T * D; }  // of the keys, and of the values
  double bytes() const { return 2 * static_cast<double>(elements() * bytes_of(dtype)); }  // of both
};

/// `copy` in bytes/s.
BenchRow cells_of(const Case& c, int parts, const Timing& time, double copy, const char* outcome) {
  const double rate = c.bytes() / time.median_s;
  using T = Cell;
  return {T::text("dtype", std::string(name_of(c.dtype))),
          T::number("B", "sequences", c.B),
          T::number("H", "heads", c.H),
          T::number("T", "keys", c.T),
          T::number("D", "channels", c.D),
          T::number("parts", "1", parts),
          T::ms("median_ms", time.median_s),
          T::ms_detail("mean_ms", time.mean_s),
          T::ms("std_ms", time.std_s),
          T::ms_detail("first_ms", time.first_s),
          T::detail("repeats", "1", static_cast<double>(time.repeats)),
          T::number("gbyte_per_s", "GB/s", 1e-9 * rate),
          T::detail("copy_gbyte_per_s", "GB/s", 1e-9 * copy),
          T::number("of_copy", "1", rate / copy),
          T::text("outcome", outcome, "out of memory")};
}

template <class Scalar>
BenchRow measure(const Case& c, const Bench& bench, std::int64_t wanted_parts) {
  using Real = Accum<Scalar>;
  const int parts =
      wanted_parts > 0 ? static_cast<int>(wanted_parts) : kernels::decode_parts(kernels::kHere, c.heads(), c.T);

  memory::Layout layout;
  const auto add = [&](const char* label, std::int64_t count, Dtype dtype) {
    return layout.add(label, {count}, dtype, memory::Category::activations, memory::Lifetime::whole_run());
  };
  const std::int64_t queries = c.heads() * c.D, partials = kernels::decode_partials(c.heads(), c.D, parts);
  const memory::TensorId k = add("k", c.elements(), c.dtype), v = add("v", c.elements(), c.dtype),
                         q = add("q", queries, c.dtype), out = add("out", queries, c.dtype),
                         partial = add("partial", partials, kDtype<Real>),
                         arrived = add("arrived", c.heads(), Dtype::int32), keys = add("keys", c.B, Dtype::int32);
  layout.place();
  if (layout.total_bytes() > row_limit_bytes(bench)) {
    return cells_of(c, parts, {}, NAN, "out of memory");
  }

  const Exec exec;
  const memory::Arena arena(layout);
  const auto scalars = [&](memory::TensorId id, std::int64_t count) {
    return Vector<Scalar, Exec>(arena.data<Scalar>(id), count);
  };
  const auto ints = [&](memory::TensorId id, std::int64_t count) {
    return Vector<std::int32_t, Exec>(arena.data<std::int32_t>(id), count);
  };
  const auto heads = [&](memory::TensorId id, int T) {
    return kernels::contiguous_heads<Exec>(arena.data<Scalar>(id), c.B, c.H, T, c.D);
  };
  fill_random(exec, scalars(q, queries), 1, 0, 1);
  fill_random(exec, scalars(k, c.elements()), 2, 0, 1);
  Kokkos::deep_copy(exec, ints(arrived, c.heads()), 0);
  Kokkos::deep_copy(exec, ints(keys, c.B), c.T);
  const Timing copy =
      time_repeats(bench, exec, [&] { Kokkos::deep_copy(exec, scalars(v, c.elements()), scalars(k, c.elements())); });
  const kernels::DecodeAttention<Exec, Scalar> decode{
      .q = heads(q, 1),
      .k = heads(k, c.T),
      .v = heads(v, c.T),
      .keys = ints(keys, c.B),
      .out = heads(out, 1),
      .lse = {},
      .scale = static_cast<Real>(1 / std::sqrt(c.D)),
      .parts = parts,
      .partial = Vector<Real, Exec>(arena.data<Real>(partial), partials),
      .arrived = ints(arrived, c.heads())};
  const Timing time = time_repeats(bench, exec, [&] { decode.launch(exec); });
  return cells_of(c, parts, time, c.bytes() / copy.median_s, "ok");
}

}  // namespace

Exit bench_decode(const Context& context) {
  const config::Settings& settings = context.settings();
  const Bench& bench = settings.section<Bench>();
  return bench_on_root(context, [&](BenchResult& result) {
    const Case c{dtype_named(bench.dtype), static_cast<int>(bench.batch), static_cast<int>(bench.heads),
                 static_cast<int>(bench.length), static_cast<int>(bench.head_width)};
    with_scalar(c.dtype,
                [&]<class Scalar>() { result.add(measure<Scalar>(c, bench, settings.attention.decode_parts)); });
  });
}

}  // namespace tessera::lab
