/// The bench.attention job: forward, backward and both (bench.pass) of the kernels that [attention] names.
///
/// Gflop/s count 4*B*H*T*T*D forward and 2.5 times that backward, halved when causal. `memory_mib` is saved for
/// backward: q, k, v, out, lse, and the probabilities if stored; `peak_mib` is backward's total, pads and workspace
/// included, `q_mib`, `probabilities_mib` and so on its parts. `taken_mib` is the drop in free GPU memory (none on
/// CPUs), which excludes pads. `pad_kib` is the forward kernel's scratch per team, 0 if its tiles cannot be chosen, and
/// `pad_limit_kib` the device's limit (hosts: NaN). A case above the memory limit, or without a kernel in this build,
/// has a row without times; its outcome says why. Runs on rank 0.

#include <algorithm>
#include <cmath>
#include <utility>

#include "lab/bench.hpp"
#include "jobs/scalars.hpp"
#include "jobs/memory.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/core/device_info.hpp"
#include "kernels/core/round_up.hpp"
#include "memory/arena.hpp"
#include "train/choices.hpp"

namespace tessera::lab {
namespace {

using Exec = kernels::Device;
using kernels::AttentionChoice, kernels::AttentionKind, kernels::Engine;

struct Case {
  AttentionChoice choice;
  bool has_forward = true, has_backward = true;  // whether this build has the requested engine
  std::string implementation, engine = "-";      // as named in the table
  Dtype dtype = Dtype::fp32;
  kernels::GemmMath math = kernels::GemmMath::full;
  int B = 0, H = 0, T = 0, D = 0;
  bool causal = false;

  std::int64_t head_elements() const { return std::int64_t{B} * H * T * D; }
  bool stores_scores() const { return kernels::stores_scores(choice.kind); }
  std::vector<std::int64_t> score_shape() const {
    return stores_scores() ? std::vector<std::int64_t>{B, H, T, T} : std::vector<std::int64_t>{0};
  }
};

struct Measured {
  std::string outcome = "ok";
  Timing forward, backward, both;  // without repeats: not measured
  std::int64_t memory_bytes = 0, peak_bytes = 0, pad_bytes = 0;
  double taken_bytes = NAN;                                   // of free GPU memory by the arena
  std::vector<std::pair<std::string, std::int64_t>> tensors;  // label and bytes of all that peak_bytes counts
};

template <class Scalar>
Measured measure(const Case& c, const Bench& bench) {
  using Real = Accum<Scalar>;
  memory::Layout layout;
  const auto whole = memory::Lifetime::whole_run();
  const auto heads = [&](const char* name, memory::Category category) {
    return layout.add(name, {c.B, c.H, c.T, c.D}, kDtype<Scalar>, category, whole);
  };
  const auto kept = memory::Category::activations, needed = memory::Category::workspace;
  const memory::TensorId q = heads("q", kept), k = heads("k", kept), v = heads("v", kept), out = heads("out", kept);
  const memory::TensorId lse = layout.add("lse", {c.B, c.H, c.T}, kDtype<Real>, kept, whole);
  const memory::TensorId probabilities = layout.add("probabilities", c.score_shape(), kDtype<Scalar>, kept, whole);
  const memory::TensorId d_out = heads("d_out", needed), d_q = heads("d_q", needed), d_k = heads("d_k", needed),
                         d_v = heads("d_v", needed);
  const memory::TensorId d_scores = layout.add("d_scores", c.score_shape(), kDtype<Scalar>, needed, whole);
  const std::int64_t workspace_bytes =
      std::max(kernels::attention_forward_workspace_bytes(c.choice, c.dtype, c.B, c.H, c.T, c.D),
               kernels::attention_workspace_bytes(c.choice, c.dtype, c.B, c.H, c.T, c.D));  // one after the other
  const memory::TensorId workspace =
      layout.add("workspace", {kernels::ceil_div(workspace_bytes, 4)}, Dtype::int32, needed, whole);
  const memory::TensorId counter = layout.add("tile_counter", {1}, Dtype::int32, needed, whole);
  const std::int64_t scratch_bytes = kernels::attention_scratch_bytes(c.choice, c.dtype, c.T, c.D);
  if (scratch_bytes > 0) layout.add_outside("pads", scratch_bytes);
  layout.place();
  Measured m;
  m.memory_bytes = layout.peak_by_category()[static_cast<int>(kept)];
  m.peak_bytes = layout.total_bytes();
  for (const memory::Tensor& tensor : layout.tensors()) m.tensors.emplace_back(tensor.label, tensor.bytes);
  m.tensors.emplace_back("pads", scratch_bytes);
  if (!c.has_forward && !c.has_backward) m.outcome = "no such kernel";
  m.pad_bytes = kernels::attention_pad_bytes(c.choice, c.dtype, c.D);
  if (m.pad_bytes > kernels::scratch_limit(kernels::kHere)) m.outcome = "pads too large";
  if (m.peak_bytes > row_limit_bytes(bench)) m.outcome = "out of memory";
  if (m.outcome != "ok") return m;

  const Exec exec;
  const std::int64_t free_bytes = kernels::device_info().free_bytes;
  const memory::Arena arena(layout);
  if constexpr (!kernels::kIsHost<Exec>) {
    m.taken_bytes = static_cast<double>(free_bytes - kernels::device_info().free_bytes);
  }
  std::uint64_t seed = 1;
  for (const memory::TensorId id : {q, k, v, d_out}) {
    fill_random(exec, kernels::Vector<Scalar, Exec>(arena.data<Scalar>(id), c.head_elements()), seed++, 0, 1);
  }
  const kernels::Value<std::int32_t, Exec> tile_counter(arena.data<std::int32_t>(counter));
  Kokkos::deep_copy(exec, tile_counter, 0);
  const auto view = [&](memory::TensorId id) {
    return kernels::contiguous_heads<Exec>(arena.data<Scalar>(id), c.B, c.H, c.T, c.D);
  };
  const auto scores = [&](memory::TensorId id) {
    const int T = c.stores_scores() ? c.T : 0;
    return kernels::contiguous_heads<Exec>(arena.data<Scalar>(id), c.B, c.H, T, T);
  };
  const kernels::Vector<std::byte, Exec> bytes(reinterpret_cast<std::byte*>(arena.data<std::int32_t>(workspace)),
                                               workspace_bytes);
  const kernels::Attention<Exec, Scalar> attention{
      .choice = c.choice,
      .q = view(q),
      .k = view(k),
      .v = view(v),
      .out = view(out),
      .lse = kernels::HeadRows<Real, Exec>(arena.data<Real>(lse), c.B, c.H, c.T),
      .probabilities = scores(probabilities),
      .scale = static_cast<Real>(1 / std::sqrt(c.D)),
      .causal = c.causal,
      .math = c.math,
      .tile_counter = tile_counter,
      .workspace = bytes};
  const typename kernels::Attention<Exec, Scalar>::Gradients gradients{view(d_out), view(d_q),        view(d_k),
                                                                       view(d_v),   scores(d_scores), bytes};
  const auto forward = [&] { attention.forward(exec); };
  const auto backward = [&] { attention.backward(exec, gradients); };
  const auto times = [&](std::string_view pass) { return bench.pass == "all" || bench.pass == pass; };
  const bool times_forward = c.has_forward && times("forward"), times_backward = c.has_backward && times("backward");
  if (times_forward) {
    m.forward = time_repeats(bench, exec, forward);
  } else if (times_backward) {
    forward();  // backward reads its results; the fastest available engine makes them
  }
  if (times_backward) m.backward = time_repeats(bench, exec, backward);
  if (c.has_forward && c.has_backward && times("both")) {
    m.both = time_repeats(bench, exec, [&] {
      forward();
      backward();
    });
  }
  if (!c.has_forward || !c.has_backward) {
    m.outcome = m.forward.repeats > 0 ? "forward only" : m.backward.repeats > 0 ? "backward only" : "no such kernel";
  }
  return m;
}

BenchRow row_of(const Case& c, const Measured& m) {
  const double flop = 4.0 * static_cast<double>(c.head_elements()) * c.T * (c.causal ? 0.5 : 1.0);
  const auto gflop = [&](const Timing& timing, double factor) { return 1e-9 * factor * flop / timing.median_s; };
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1048576; };
  const double pad_limit_kib =
      kernels::kIsHost<Exec> ? NAN : static_cast<double>(kernels::scratch_limit(kernels::kHere)) / 1024;
  using T = Cell;
  BenchRow row{T::text("implementation", c.implementation),
               T::text("engine", c.engine, "portable+wgmma"),
               T::text("ordered", c.choice.deterministic ? "yes" : "no"),
               T::text("dtype", c.math == kernels::GemmMath::tf32 ? "tf32" : std::string(name_of(c.dtype))),
               T::text("causal", c.causal ? "yes" : "no"),
               T::detail("B", "sequences", c.B),
               T::detail("H", "heads", c.H),
               T::number("T", "tokens", c.T),
               T::number("D", "channels", c.D)};
  const std::pair<std::string, const Timing&> passes[] = {
      {"forward", m.forward}, {"backward", m.backward}, {"both", m.both}};
  for (const auto& [name, timing] : passes) {
    row.push_back(T::ms(name + "_ms", timing.median_s));
    row.push_back(T::ms_detail(name + "_mean_ms", timing.mean_s));
    row.push_back(T::ms_detail(name + "_std_ms", timing.std_s));
    row.push_back(T::ms_detail(name + "_first_ms", timing.first_s));
    row.push_back(T::detail(name + "_repeats", "1", timing.repeats > 0 ? static_cast<double>(timing.repeats) : NAN));
  }
  row.push_back(T::number("forward_gflop_per_s", "Gflop/s", gflop(m.forward, 1)));
  row.push_back(T::number("backward_gflop_per_s", "Gflop/s", gflop(m.backward, 2.5)));
  row.push_back(T::detail("both_gflop_per_s", "Gflop/s", gflop(m.both, 3.5)));
  row.push_back(T::number("memory_mib", "MiB", mib(m.memory_bytes)));
  row.push_back(T::number("peak_mib", "MiB", mib(m.peak_bytes)));
  for (const auto& [label, bytes] : m.tensors) row.push_back(T::detail(label + "_mib", "MiB", mib(bytes)));
  row.push_back(T::detail("taken_mib", "MiB", m.taken_bytes / 1048576));
  row.push_back(T::detail("pad_kib", "KiB", static_cast<double>(m.pad_bytes) / 1024));
  row.push_back(T::detail("pad_limit_kib", "KiB", pad_limit_kib));
  row.push_back(T::text("outcome", m.outcome, "no such kernel"));
  return row;
}

/// The kernels that [attention] names, whether or not this build has them.
void choose(const config::Attention& wanted, Case& c) {
  using config::AttentionKernel;
  const AttentionKernel kernel = wanted.kernel;
  const bool is_fastest = kernel == AttentionKernel::automatic;
  c.choice =
      is_fastest ? kernels::fastest_attention(c.dtype, c.D, wanted.deterministic) : train::portable_choice(wanted);
  c.has_forward = c.has_backward = kernels::has_steps(c.choice, c.dtype);
  if (is_by_engine(kernel)) {
    const Engine engine = kernel == AttentionKernel::mma ? Engine::mma : Engine::wgmma;
    c.has_forward = kernels::has_forward(engine, c.dtype, c.D);
    c.has_backward = kernels::has_backward(engine, c.dtype, c.D);
    if (c.has_forward) c.choice.forward = engine;
    if (c.has_backward) c.choice.backward = engine;
    c.engine = name_of(engine);
  } else if (kernel == AttentionKernel::standard_0 || c.choice.kind == AttentionKind::flash1 ||
             c.choice.kind == AttentionKind::flash2) {
    c.engine = train::forward_text(c.choice);
    if (c.choice.steps == kernels::kNoLadder && c.choice.backward != c.choice.forward) {
      c.engine += "+" + std::string(name_of(c.choice.backward));
    }
  }
}

Case case_of(const config::Settings& settings) {
  const Bench& bench = settings.section<Bench>();
  const std::int64_t T = bench.length, D = bench.head_width;
  Case c;
  c.dtype = dtype_named(bench.dtype);
  if (c.dtype == Dtype::fp32) c.math = train::math_of(settings.precision.compute);
  c.B = static_cast<int>(bench.tokens > 0 ? std::max<std::int64_t>(1, bench.tokens / T) : bench.batch);
  c.H = static_cast<int>(bench.channels > 0 ? std::max<std::int64_t>(1, bench.channels / D) : bench.heads);
  c.T = static_cast<int>(T);
  c.D = static_cast<int>(D);
  c.causal = bench.causal;
  choose(settings.attention, c);
  c.implementation = name_of(c.choice.kind);
  return c;
}

}  // namespace

Exit bench_attention(const Context& context) {
  return bench_on_root(context, [&](BenchResult& result) {
    const Case c = case_of(context.settings());
    with_scalar(c.dtype, [&]<class Scalar>() {
      result.add(row_of(c, measure<Scalar>(c, context.settings().section<Bench>())));
    });
  });
}

}  // namespace tessera::lab
