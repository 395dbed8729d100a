/// The bench.attention job: forward, backward and both, over T x D x dtype x causal x implementation.
///
/// Gflop/s count 4*B*H*T*T*D forward and 2.5 times that backward, halved when causal. `memory_mib` is what lives
/// between forward and backward: q, k, v, out, lse, and the probabilities where they are stored; `peak_mib` all that
/// backward takes, pads included. A case above the memory limit is a row without times, not a crash. Rank 0 works.

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <random>

#include "jobs/bench.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention/flash2/backward.hpp"
#include "memory/arena.hpp"

namespace tessera::jobs {
namespace {

using Exec = kernels::Device;

struct Case {
  kernels::AttentionKind kind;
  std::string implementation, dtype;
  int B, H, T, D;
  bool causal;

  std::int64_t head_elements() const { return std::int64_t{B} * H * T * D; }
  std::int64_t score_elements() const {
    return kind == kernels::AttentionKind::standard ? std::int64_t{B} * H * T * T : 0;
  }
};

struct Measured {
  Timing forward, backward, both;
  std::int64_t memory_bytes = 0, peak_bytes = 0;
};

/// nullopt: over the limit.
template <class Scalar>
std::optional<Measured> measure(const Case& c, const config::Bench& bench, std::int64_t limit_bytes) {
  using Real = Accum<Scalar>;
  memory::Layout layout;
  const auto whole = memory::Lifetime::whole_run();
  const auto heads = [&](const char* name, memory::Category category) {
    return layout.add(name, {c.B, c.H, c.T, c.D}, kDtype<Scalar>, category, whole);
  };
  const auto kept = memory::Category::activations, needed = memory::Category::workspace;
  const memory::TensorId q = heads("q", kept), k = heads("k", kept), v = heads("v", kept), out = heads("out", kept);
  const memory::TensorId lse = layout.add("lse", {c.B, c.H, c.T}, kDtype<Real>, kept, whole);
  const memory::TensorId probabilities = layout.add("probabilities", {c.score_elements()}, kDtype<Scalar>, kept, whole);
  const memory::TensorId d_out = heads("d_out", needed), d_q = heads("d_q", needed), d_k = heads("d_k", needed),
                         d_v = heads("d_v", needed);
  const memory::TensorId d_scores = layout.add("d_scores", {c.score_elements()}, kDtype<Scalar>, needed, whole);
  if (c.kind == kernels::AttentionKind::flash2)
    layout.add_outside("pads", kernels::Flash2Backward<Exec, Scalar>::scratch_bytes(c.T, c.D));
  layout.place();
  Measured m;
  m.memory_bytes = layout.peak_by_category()[static_cast<int>(kept)];
  m.peak_bytes = layout.total_bytes();
  if (m.peak_bytes > limit_bytes) return std::nullopt;

  const memory::Arena<Exec> arena(layout);
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  for (const memory::TensorId id : {q, k, v, d_out}) {
    const kernels::Vector<Scalar, Exec> values(arena.template data<Scalar>(id), c.head_elements());
    const auto host = Kokkos::create_mirror_view(values);
    for (std::size_t i = 0; i < host.extent(0); ++i) host(i) = static_cast<Scalar>(normal(generator));
    Kokkos::deep_copy(values, host);
  }
  const auto view = [&](memory::TensorId id) {
    return kernels::contiguous_heads<Exec>(arena.template data<Scalar>(id), c.B, c.H, c.T, c.D);
  };
  const auto scores = [&](memory::TensorId id) {
    const int T = c.score_elements() > 0 ? c.T : 0;
    return kernels::contiguous_heads<Exec>(arena.template data<Scalar>(id), c.B, c.H, T, T);
  };
  const Exec exec;
  const kernels::Attention<Exec, Scalar> attention{
      c.kind,
      view(q),
      view(k),
      view(v),
      view(out),
      kernels::HeadRows<Real, Exec>(arena.template data<Real>(lse), c.B, c.H, c.T),
      scores(probabilities),
      static_cast<Real>(1 / std::sqrt(c.D)),
      c.causal};
  const typename kernels::Attention<Exec, Scalar>::Gradients gradients{view(d_out), view(d_q), view(d_k), view(d_v),
                                                                       scores(d_scores)};
  m.forward = time_repeats(bench, [&] { attention.forward(exec); });
  m.backward = time_repeats(bench, [&] { attention.backward(exec, gradients); });
  m.both = time_repeats(bench, [&] {
    attention.forward(exec);
    attention.backward(exec, gradients);
  });
  return m;
}

std::optional<Measured> measure_case(const Case& c, const config::Bench& bench, std::int64_t limit_bytes) {
  if (c.dtype == "bf16") return measure<bfloat16>(c, bench, limit_bytes);
  if (c.dtype == "fp16") return measure<float16>(c, bench, limit_bytes);
  return measure<float>(c, bench, limit_bytes);
}

std::vector<BenchTable::Cell> row_of(const Case& c, const std::optional<Measured>& m) {
  const double flop = 4.0 * static_cast<double>(c.head_elements()) * c.T * (c.causal ? 0.5 : 1.0);
  const auto ms = [&](const Timing Measured::*timing, double Timing::*part) {
    return m ? 1e3 * ((*m).*timing).*part : NAN;
  };
  const auto gflop = [&](const Timing Measured::*timing, double factor) {
    return m ? 1e-9 * factor * flop / ((*m).*timing).median_s : NAN;
  };
  using T = BenchTable;
  return {T::text("implementation", c.implementation),
          T::text("dtype", c.dtype),
          T::text("causal", c.causal ? "yes" : "no"),
          T::number("T", "tokens", c.T),
          T::number("D", "channels", c.D),
          T::number("forward_ms", "ms", ms(&Measured::forward, &Timing::median_s)),
          T::number("backward_ms", "ms", ms(&Measured::backward, &Timing::median_s)),
          T::number("both_ms", "ms", ms(&Measured::both, &Timing::median_s)),
          T::number("both_mean_ms", "ms", ms(&Measured::both, &Timing::mean_s)),
          T::number("both_std_ms", "ms", ms(&Measured::both, &Timing::std_s)),
          T::number("forward_gflop_per_s", "Gflop/s", gflop(&Measured::forward, 1)),
          T::number("both_gflop_per_s", "Gflop/s", gflop(&Measured::both, 3.5)),
          T::number("memory_mib", "MiB", m ? static_cast<double>(m->memory_bytes) / 1048576 : NAN),
          T::number("peak_mib", "MiB", m ? static_cast<double>(m->peak_bytes) / 1048576 : NAN),
          T::text("outcome", m ? "ok" : "over the memory limit")};
}

}  // namespace

Exit bench_attention(const Context& context) {
  const config::Bench& bench = context.settings().bench;
  const std::int64_t available = memory::available_host_bytes();
  const std::int64_t limit_bytes =
      bench.memory_limit_gib > 0 ? std::min(available, static_cast<std::int64_t>(bench.memory_limit_gib * (1 << 30)))
                                 : available;
  on_root(context.world, [&] {
    const std::string path = result_path(context, "bench.h5");
    BenchTable table;
    for (const std::string& dtype : bench.dtypes) {
      for (const bool causal : bench.causal) {
        for (const std::int64_t T : bench.lengths) {
          for (const std::int64_t D : bench.head_widths) {
            for (const std::string& name : bench.implementations) {
              const auto kind = name == "standard" ? kernels::AttentionKind::standard : kernels::AttentionKind::flash2;
              const Case c{kind,
                           name,
                           dtype,
                           static_cast<int>(bench.batch),
                           static_cast<int>(bench.heads),
                           static_cast<int>(T),
                           static_cast<int>(D),
                           causal};
              add_and_print(table, row_of(c, measure_case(c, bench, limit_bytes)), context);
            }
          }
        }
      }
    }
    write_and_say(table, path, context);
  });
  return Exit::finished;
}

}  // namespace tessera::jobs
