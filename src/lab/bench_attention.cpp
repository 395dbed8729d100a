/// The bench.attention job: forward, backward and both (bench.passes), over dtype x causal x T x D x implementation x
/// engine.
///
/// Gflop/s count 4*B*H*T*T*D forward and 2.5 times that backward, halved when causal. `memory_mib` is what
/// forward keeps for backward: q, k, v, out, lse, and the probabilities if stored; `peak_mib` is all that backward
/// needs, pads and workspace included, and `q_mib`, `probabilities_mib` and so on are its parts. `taken_mib` is what
/// the free memory of the GPU lost to all of them but the pads; CPUs have none. `pad_kib` is the scratch that a team of
/// the forward kernel asks for, 0 for kernels whose tiles cannot be chosen, and `pad_limit_kib` the most that this
/// device gives it (hosts: no limit, NaN). `speedup` and `memory_saved` are relative to the row of the same case that
/// stores its scores (implementation `standard`), which therefore comes first if the deck asks for it. A case above the
/// memory limit, or without a kernel in this build, gives a row without times whose outcome says so. Runs on rank 0.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "lab/bench_result.hpp"
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
  std::string implementation, engine;            // as named in the table
  Dtype dtype = Dtype::fp32;
  int B = 0, H = 0, T = 0, D = 0;
  bool causal = false;

  std::int64_t head_elements() const { return std::int64_t{B} * H * T * D; }
  std::int64_t score_elements() const { return kernels::stores_scores(choice.kind) ? std::int64_t{B} * H * T * T : 0; }
};

struct Measured {
  std::string outcome = "ok";
  std::optional<Timing> forward, backward, both;  // absent: not measured
  std::int64_t memory_bytes = 0, peak_bytes = 0, pad_bytes = 0;
  double taken_bytes = NAN;                                   // of free GPU memory by the arena
  std::vector<std::pair<std::string, std::int64_t>> tensors;  // label and bytes of all that peak_bytes counts
};

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

template <class Scalar>
Measured measure(const Case& c, const Bench& bench, std::int64_t limit_bytes) {
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
  const std::int64_t workspace_bytes =
      std::max(kernels::attention_forward_workspace_bytes(c.choice, c.dtype, c.B, c.H, c.T, c.D),
               kernels::attention_workspace_bytes(c.choice, c.B, c.H, c.T, c.D));  // one after the other
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
  if (m.peak_bytes > limit_bytes) m.outcome = "out of memory";
  if (m.outcome != "ok") return m;

  const Exec exec;
  const std::int64_t free_bytes = kernels::device_info<Exec>().free_bytes;
  const memory::Arena<Exec> arena(layout);
  if constexpr (!kernels::kIsHost<Exec>) {
    m.taken_bytes = static_cast<double>(free_bytes - kernels::device_info<Exec>().free_bytes);
  }
  std::uint64_t seed = 1;
  for (const memory::TensorId id : {q, k, v, d_out}) {
    fill_random(exec, kernels::Vector<Scalar, Exec>(arena.template data<Scalar>(id), c.head_elements()), seed++, 0, 1);
  }
  const kernels::Value<std::int32_t, Exec> tile_counter(arena.template data<std::int32_t>(counter));
  Kokkos::deep_copy(exec, tile_counter, 0);
  const auto view = [&](memory::TensorId id) {
    return kernels::contiguous_heads<Exec>(arena.template data<Scalar>(id), c.B, c.H, c.T, c.D);
  };
  const auto scores = [&](memory::TensorId id) {
    const int T = c.score_elements() > 0 ? c.T : 0;
    return kernels::contiguous_heads<Exec>(arena.template data<Scalar>(id), c.B, c.H, T, T);
  };
  const kernels::Vector<std::byte, Exec> bytes(
      reinterpret_cast<std::byte*>(arena.template data<std::int32_t>(workspace)), workspace_bytes);
  const kernels::Attention<Exec, Scalar> attention{
      .choice = c.choice,
      .q = view(q),
      .k = view(k),
      .v = view(v),
      .out = view(out),
      .lse = kernels::HeadRows<Real, Exec>(arena.template data<Real>(lse), c.B, c.H, c.T),
      .probabilities = scores(probabilities),
      .scale = static_cast<Real>(1 / std::sqrt(c.D)),
      .causal = c.causal,
      .tile_counter = tile_counter,
      .workspace = bytes};
  const typename kernels::Attention<Exec, Scalar>::Gradients gradients{view(d_out), view(d_q),        view(d_k),
                                                                       view(d_v),   scores(d_scores), bytes};
  const auto forward = [&] { attention.forward(exec); };
  const auto backward = [&] { attention.backward(exec, gradients); };
  const bool times_forward = c.has_forward && contains(bench.passes, "forward"),
             times_backward = c.has_backward && contains(bench.passes, "backward");
  if (times_forward) {
    m.forward = time_repeats(bench, exec, forward);
  } else if (times_backward) {
    forward();  // backward reads its results; the fastest available engine makes them
  }
  if (times_backward) m.backward = time_repeats(bench, exec, backward);
  if (c.has_forward && c.has_backward && contains(bench.passes, "both")) {
    m.both = time_repeats(bench, exec, [&] {
      forward();
      backward();
    });
  }
  if (!c.has_forward || !c.has_backward) {
    m.outcome = m.forward ? "forward only" : m.backward ? "backward only" : "no such kernel";
  }
  return m;
}

Measured measure_case(const Case& c, const Bench& bench, std::int64_t limit_bytes) {
  Measured measured;
  with_scalar(c.dtype, [&]<class Scalar>() { measured = measure<Scalar>(c, bench, limit_bytes); });
  return measured;
}

/// One row; `standard` is the row of the same case that stores its scores, if any.
std::vector<BenchTable::Cell> row_of(const Case& c, const Measured& m, const Measured* standard) {
  const double flop = 4.0 * static_cast<double>(c.head_elements()) * c.T * (c.causal ? 0.5 : 1.0);
  const auto ms = [](const std::optional<Timing>& timing, double Timing::*part) {
    return timing ? 1e3 * (*timing).*part : NAN;
  };
  const auto gflop = [&](const std::optional<Timing>& timing, double factor) {
    return timing ? 1e-9 * factor * flop / timing->median_s : NAN;
  };
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1048576; };
  const double pad_limit_kib =
      kernels::kIsHost<Exec> ? NAN : static_cast<double>(kernels::scratch_limit(kernels::kHere)) / 1024;
  double speedup = NAN, saved = NAN;
  if (standard != nullptr) {
    saved = 1 - static_cast<double>(m.memory_bytes) / static_cast<double>(standard->memory_bytes);
    if (standard->both && m.both) speedup = standard->both->median_s / m.both->median_s;
  }
  using T = BenchTable;
  std::vector<T::Cell> row{T::text("implementation", c.implementation),
                           T::text("engine", c.engine, "portable+wgmma"),
                           T::text("ordered", c.choice.deterministic ? "yes" : "no"),
                           T::text("dtype", std::string(name_of(c.dtype))),
                           T::text("causal", c.causal ? "yes" : "no"),
                           T::detail("B", "sequences", c.B),
                           T::detail("H", "heads", c.H),
                           T::number("T", "tokens", c.T),
                           T::number("D", "channels", c.D)};
  const std::pair<const char*, const std::optional<Timing>*> passes[] = {
      {"forward", &m.forward}, {"backward", &m.backward}, {"both", &m.both}};
  for (const auto& [name, timing] : passes) {
    row.push_back(T::number(fmt::format("{}_ms", name), "ms", ms(*timing, &Timing::median_s)));
    row.push_back(T::detail(fmt::format("{}_mean_ms", name), "ms", ms(*timing, &Timing::mean_s)));
    row.push_back(T::detail(fmt::format("{}_std_ms", name), "ms", ms(*timing, &Timing::std_s)));
    row.push_back(T::detail(fmt::format("{}_first_ms", name), "ms", ms(*timing, &Timing::first_s)));
    row.push_back(
        T::detail(fmt::format("{}_repeats", name), "1", *timing ? static_cast<double>((*timing)->repeats) : NAN));
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
  row.push_back(T::number("speedup", "1", speedup));
  row.push_back(T::number("memory_saved", "1", saved));
  row.push_back(T::text("outcome", m.outcome, "no such kernel"));
  return row;
}

/// The implementation of that name, one of bench.implementations.
AttentionKind kind_named(std::string_view name) {
  for (const AttentionKind kind :
       {AttentionKind::standard, AttentionKind::tiled, AttentionKind::flash1, AttentionKind::flash2}) {
    if (name_of(kind) == name) return kind;
  }
  throw std::logic_error("bench.attention: a word of bench.implementations without an implementation");
}

/// Appends the cases of flash1, which differ from `c` by steps.
void add_flash1(const Bench& bench, Case c, std::vector<Case>& cases) {
  for (const std::int64_t steps : bench.flash1_steps) {
    c.choice.steps = static_cast<int>(steps);
    c.engine = train::forward_text(c.choice);
    c.has_forward = c.has_backward = kernels::has_steps(c.choice, c.dtype);
    cases.push_back(c);
  }
}

/// Whether the deck sweeps this version of the ladder among the rows that are not tuned.
bool sweeps_steps(const Bench& bench, int steps) {
  return std::ranges::find(bench.tuned, false) != bench.tuned.end() &&
         std::ranges::find(bench.flash2_steps, steps) != bench.flash2_steps.end();
}

/// Appends the tuned case of flash2 by the word of bench.engines; on the ladder only if it is not among the cases.
void add_tuned(const Bench& bench, Case c, std::string_view word, bool deterministic, std::vector<Case>& cases) {
  const AttentionChoice untuned = std::exchange(c.choice, kernels::fastest_attention(c.dtype, c.D, deterministic));
  if (word == "auto" && c.choice.steps != kernels::kNoLadder) {
    const auto is_same = [&](const Case& other) {
      return other.choice.kind == AttentionKind::flash2 && other.choice.steps == c.choice.steps;
    };
    if (sweeps_steps(bench, c.choice.steps) || std::ranges::any_of(cases, is_same)) return;
    c.choice.query_tile = untuned.query_tile;
    c.choice.key_tile = untuned.key_tile;
    c.engine = train::forward_text(c.choice);
    cases.push_back(c);
    return;
  }
  Engine forward = c.choice.forward, backward = c.choice.backward;
  if (word != "auto") forward = backward = word == "mma" ? Engine::mma : Engine::wgmma;
  c.choice.steps = kernels::kNoLadder;
  c.engine = std::string(name_of(forward));
  if (backward != forward) c.engine += "+" + std::string(name_of(backward));
  c.has_forward = forward != Engine::portable && kernels::has_forward(forward, c.dtype, c.D);
  c.has_backward = backward != Engine::portable && kernels::has_backward(backward, c.dtype, c.D);
  if (c.has_forward) c.choice.forward = forward;
  if (c.has_backward) c.choice.backward = backward;
  cases.push_back(c);
}

/// Appends the cases of flash2, which differ from `c` by steps, or by engine and order.
void add_flash2(const Bench& bench, const Case& c, std::vector<Case>& cases) {
  for (const bool tuned : bench.tuned) {
    if (!tuned) {
      for (const std::int64_t steps : bench.flash2_steps) {
        Case on_ladder = c;
        on_ladder.choice.steps = static_cast<int>(steps);
        on_ladder.engine = train::forward_text(on_ladder.choice);
        cases.push_back(on_ladder);
      }
      continue;
    }
    for (const std::string& word : bench.engines) {
      for (const bool deterministic : bench.deterministic) add_tuned(bench, c, word, deterministic, cases);
    }
  }
}

/// All cases that the deck requests at one dtype, mask, length and width; `standard` first.
std::vector<Case> cases_of(const config::Settings& settings, Dtype dtype, bool causal, std::int64_t T, std::int64_t D) {
  const Bench& bench = settings.section<Bench>();
  const std::int64_t B = bench.tokens > 0 ? std::max<std::int64_t>(1, bench.tokens / T) : bench.batch;
  const std::int64_t H = bench.channels > 0 ? std::max<std::int64_t>(1, bench.channels / D) : bench.heads;
  Case c;
  c.dtype = dtype;
  c.B = static_cast<int>(B);
  c.H = static_cast<int>(H);
  c.T = static_cast<int>(T);
  c.D = static_cast<int>(D);
  c.causal = causal;
  std::set<AttentionKind> kinds;
  for (const std::string& word : bench.implementations) kinds.insert(kind_named(word));
  std::vector<Case> cases;
  for (const AttentionKind kind : kinds) {
    c.implementation = std::string(name_of(kind));
    c.choice = kind;
    c.choice.query_tile = static_cast<int>(settings.attention.query_tile);
    c.choice.key_tile = static_cast<int>(settings.attention.key_tile);
    switch (kind) {
      case AttentionKind::standard:
      case AttentionKind::tiled:
        c.engine = "-";
        cases.push_back(c);
        break;
      case AttentionKind::flash1: add_flash1(bench, c, cases); break;
      case AttentionKind::flash2: add_flash2(bench, c, cases); break;
    }
  }
  return cases;
}

}  // namespace

Exit bench_attention(const Context& context) {
  const Bench& bench = context.settings().section<Bench>();
  const std::int64_t available = available_bytes();
  const std::int64_t limit_bytes =
      bench.memory_limit_gib > 0 ? std::min(available, static_cast<std::int64_t>(bench.memory_limit_gib * (1 << 30)))
                                 : available;
  context.world.agree_on_root([&] {
    BenchResult result(context);
    for (const std::string& dtype : bench.dtypes) {
      for (const bool causal : bench.causal) {
        for (const std::int64_t T : bench.lengths) {
          for (const std::int64_t D : bench.head_widths) {
            std::optional<Measured> standard;
            for (const Case& c : cases_of(context.settings(), dtype_named(dtype), causal, T, D)) {
              result.begin_row();
              const Measured m = measure_case(c, bench, limit_bytes);
              result.add(row_of(c, m, standard ? &*standard : nullptr));
              if (c.choice.kind == AttentionKind::standard) standard = m;
            }
          }
        }
      }
    }
    result.publish();
  });
  return Exit::finished;
}

}  // namespace tessera::lab
