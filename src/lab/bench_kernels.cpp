/// The bench.kernels job: the memory-bound kernels over [rows, width] tensors, against a copy of the same tensor.
///
/// GB/s count every tensor that must be read or written once, each in its own number format; `of_copy` is the fraction
/// of the copy rate (bytes read plus bytes written) measured in the same run. The rows `gemv` are products of 1 or 8
/// vectors with a matrix [rows, width], of which only the matrix counts: let it be larger than the cache that the
/// repeats share. Runs on rank 0.

#include <algorithm>
#include <numeric>

#include "lab/bench.hpp"
#include "jobs/scalars.hpp"
#include "jobs/memory.hpp"
#include "jobs/stop.hpp"
#include "kernels/adamw.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gemm/gemv.hpp"
#include "kernels/norm2.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/rope.hpp"
#include "kernels/swiglu.hpp"
#include "kernels/weight_update.hpp"
#include "kernels/weighted_sum.hpp"
#include "kernels/core/random.hpp"

namespace tessera::lab {
namespace {

using Exec = kernels::Device;
using kernels::Matrix;
using kernels::Vector;

// The unfused weighted sum: element-wise products that are stored, and sums over rows or columns; a team
// for each row.
using Team = typename Kokkos::TeamPolicy<Exec>::member_type;

template <class Rows>
void for_each_row(const char* label, const Exec& exec, std::int64_t rows, const Rows& work) {
  Kokkos::parallel_for(label, Kokkos::TeamPolicy<Exec>(exec, static_cast<int>(rows), Kokkos::AUTO), work);
}

/// out[n,d] = x[n,d] row[n] column[d], without those that are not there.
template <class Scalar>
struct Product {
  Matrix<const Scalar, Exec> x;       // [N,D]
  Vector<const Scalar, Exec> row;     // [N]
  Vector<const Scalar, Exec> column;  // [D]
  Matrix<Scalar, Exec> out;           // [N,D]

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    using Real = Accum<Scalar>;
    const int n = team.league_rank();
    const bool has_x = x.data() != nullptr, has_columns = column.data() != nullptr;
    const Real scale = row.data() != nullptr ? static_cast<Real>(row(n)) : Real(1);
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, static_cast<int>(out.extent(1))), [&](int d) {
      const Real of_x = has_x ? static_cast<Real>(x(n, d)) : Real(1);
      const Real of_column = has_columns ? static_cast<Real>(column(d)) : Real(1);
      out(n, d) = static_cast<Scalar>(scale * of_x * of_column);
    });
  }
};

/// y[n] = sum_d product[n,d].
template <class Scalar>
struct RowSums {
  Matrix<const Scalar, Exec> product;  // [N,D]
  Vector<Scalar, Exec> y;              // [N]

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const int n = team.league_rank();
    using Real = Accum<Scalar>;
    Real sum = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, static_cast<int>(product.extent(1))),
        [&](int d, Real& part) { part += static_cast<Real>(product(n, d)); }, sum);
    Kokkos::single(Kokkos::PerTeam(team), [&] { y(n) = static_cast<Scalar>(sum); });
  }
};

/// sums[c,d]: the sum of column d over the rows of part c, of as many equal parts as `sums` has rows. A thread keeps
/// its columns from row to row.
template <class Number, class Sum>
struct ColumnSums {
  Matrix<const Number, Exec> x;  // [N,D]
  Matrix<Sum, Exec> sums;        // [parts,D]

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const int c = team.league_rank();
    const auto N = static_cast<std::int64_t>(x.extent(0)), parts = static_cast<std::int64_t>(sums.extent(0));
    const auto first = static_cast<int>(c * N / parts), last = static_cast<int>((c + 1) * N / parts);
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, static_cast<int>(x.extent(1))), [&](int d) { sums(c, d) = 0; });
    for (int n = first; n < last; ++n) {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, static_cast<int>(x.extent(1))),
                           [&](int d) { sums(c, d) += static_cast<Sum>(x(n, d)); });
    }
  }
};

/// Device memory with random content of mean `mean`.
template <class Number>
class Numbers {
 public:
  Numbers(const Exec& exec, std::int64_t count, float mean = 0)
      : view_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "bench"), count) {
    fill_random(exec, vector(), static_cast<std::uint64_t>(count), mean, 0.1f);
  }
  Matrix<Number, Exec> matrix(std::int64_t rows, std::int64_t columns) const {
    return Matrix<Number, Exec>(view_.data(), rows, columns);
  }
  Matrix<const Number, Exec> in(std::int64_t rows, std::int64_t columns) const { return matrix(rows, columns); }
  Vector<Number, Exec> vector() const { return Vector<Number, Exec>(view_.data(), view_.extent(0)); }
  Vector<const Number, Exec> in() const { return vector(); }

 private:
  Kokkos::View<Number*, typename Exec::memory_space> view_;
};

template <class Scalar>
void measure_all(const Context& context, BenchResult& result) {
  using Real = Accum<Scalar>;
  const Bench& bench = context.settings().section<Bench>();
  const std::int64_t N = bench.rows, C = bench.width;
  if (N * C * static_cast<std::int64_t>(4 * sizeof(Scalar) + 4 * sizeof(Real)) > available_bytes()) {
    throw Failure(Exit::out_of_memory,
                  "four tensors of {} x {} {} and four of fp32 do not fit; reduce bench.rows or bench.width", N, C,
                  kScalarName<Scalar>);
  }
  const Exec exec;
  double copy_rate = 0;
  const auto measure = [&](const char* kernel, double bytes, const std::function<void()>& work) {
    stop_on_signal();  // an experiment remembers them
    const Timing t = time_repeats(bench, exec, work);
    const double rate = 1e-9 * bytes / t.median_s;
    if (copy_rate == 0) copy_rate = rate;
    using T = Cell;
    result.add({T::text("kernel", kernel, "weighted_sum_unfused_backward"),
                T::text("dtype", std::string(kScalarName<Scalar>)), T::number("rows", "1", static_cast<double>(N)),
                T::number("width", "1", static_cast<double>(C)), T::number("median_ms", "ms", 1e3 * t.median_s),
                T::detail("mean_ms", "ms", 1e3 * t.mean_s), T::number("std_ms", "ms", 1e3 * t.std_s),
                T::detail("first_ms", "ms", 1e3 * t.first_s), T::detail("repeats", "1", static_cast<double>(t.repeats)),
                T::number("gbyte_per_s", "GB/s", rate), T::number("of_copy", "1", rate / copy_rate)});
  };
  const double tensor = static_cast<double>(sizeof(Scalar)) * static_cast<double>(N * C);  // [bytes]
  const Numbers<Scalar> a(exec, N * C), b(exec, N * C), c(exec, N * C), d(exec, N * C), gain(exec, C, 1.0f);
  const Numbers<Real> d_gain(exec, C), rows(exec, N, 1.0f);
  measure("copy", 2 * tensor, [&] { Kokkos::deep_copy(exec, b.vector(), a.in()); });

  {
    const std::int64_t row_tiles = kernels::WeightedSumBackward<Exec, Scalar>::tiles(static_cast<int>(N));
    const Numbers<Scalar> sums(exec, N);
    constexpr std::int64_t kParts = 256;
    const Numbers<Real> tile_sums(exec, row_tiles * C), part_sums(exec, kParts * C);
    measure("weighted_sum", tensor, [&] {
      kernels::WeightedSumForward<Exec, Scalar>{a.in(N, C), gain.in(), sums.vector()}.launch(exec);
    });
    measure("weighted_sum_backward", 2 * tensor, [&] {
      kernels::WeightedSumBackward<Exec, Scalar>{.x = a.in(N, C),
                                                 .w = gain.in(),
                                                 .d_y = sums.in(),
                                                 .d_x = b.matrix(N, C),
                                                 .d_w = d_gain.vector(),
                                                 .partial = tile_sums.matrix(row_tiles, C)}
          .launch(exec);
    });
    // the same without a kernel of its own: products are stored, then summed
    const Vector<const Scalar, Exec> d_y = sums.in();
    measure("weighted_sum_unfused", tensor, [&] {
      for_each_row("tessera::bench::product", exec, N,
                   Product<Scalar>{.x = a.in(N, C), .row = {}, .column = gain.in(), .out = b.matrix(N, C)});
      for_each_row("tessera::bench::row_sums", exec, N, RowSums<Scalar>{b.in(N, C), sums.vector()});
    });
    measure("weighted_sum_unfused_backward", 2 * tensor, [&] {
      const Matrix<Real, Exec> parts = part_sums.matrix(kParts, C);
      for_each_row("tessera::bench::outer", exec, N,
                   Product<Scalar>{.x = {}, .row = d_y, .column = gain.in(), .out = b.matrix(N, C)});
      for_each_row("tessera::bench::product", exec, N,
                   Product<Scalar>{.x = a.in(N, C), .row = d_y, .column = {}, .out = c.matrix(N, C)});
      for_each_row("tessera::bench::column_sums", exec, kParts, ColumnSums<Scalar, Real>{c.in(N, C), parts});
      for_each_row("tessera::bench::column_sums", exec, 1, ColumnSums<Real, Real>{parts, d_gain.matrix(1, C)});
    });
  }
  {
    constexpr int kPartials = kernels::RmsnormBackward<Exec, Scalar>::kPartials;
    const Numbers<Real> partial(exec, kPartials * C);
    kernels::RmsnormForward<Exec, Scalar> rmsnorm{.x = a.in(N, C),
                                                  .delta = {},
                                                  .residual = {},
                                                  .gain = gain.in(),
                                                  .y = b.matrix(N, C),
                                                  .rrms = rows.vector(),
                                                  .eps = Real(1e-5)};
    measure("rmsnorm", 2 * tensor, [&] { rmsnorm.launch(exec); });
    rmsnorm.delta = c.in(N, C);
    rmsnorm.residual = d.matrix(N, C);
    measure("rmsnorm_residual", 4 * tensor, [&] { rmsnorm.launch(exec); });
    measure("rmsnorm_backward", 4 * tensor, [&] {
      kernels::RmsnormBackward<Exec, Scalar>{.x = a.in(N, C),
                                             .gain = gain.in(),
                                             .rrms = rows.in(),
                                             .d_y = c.in(N, C),
                                             .d_residual = d.in(N, C),
                                             .d_x = b.matrix(N, C),
                                             .d_gain = d_gain.vector(),
                                             .partial = partial.matrix(kPartials, C)}
          .launch(exec);
    });
  }
  {
    const int words = static_cast<int>(std::min<std::int64_t>(N, 32768));  // V
    const Numbers<Scalar> weight(exec, words * C);
    const Numbers<Real> d_weight(exec, words * C);
    using Ints = Kokkos::View<int*, Exec::memory_space>;
    const Ints tokens("bench", N);
    const auto tokens_h = Kokkos::create_mirror_view(tokens);
    std::vector<bool> is_used(words);
    for (std::int64_t n = 0; n < N; ++n) {
      tokens_h(n) = static_cast<int>(mix(1, static_cast<std::uint64_t>(n)) % static_cast<std::uint64_t>(words));
      is_used[tokens_h(n)] = true;
    }
    Kokkos::deep_copy(tokens, tokens_h);
    const auto used = static_cast<double>(std::count(is_used.begin(), is_used.end(), true));
    measure("embedding", 2 * tensor, [&] {
      kernels::EmbeddingForward<Exec, Scalar>{tokens, weight.in(words, C), b.matrix(N, C)}.launch(exec);
    });
    using Backward = kernels::EmbeddingBackward<Exec, Scalar>;
    const int n = static_cast<int>(N), partial_rows = Backward::partial_rows(n);
    const Ints order(Kokkos::view_alloc(Kokkos::WithoutInitializing, "bench"), Backward::order_size(n));
    const Numbers<Real> partial(exec, partial_rows * C);
    const double updated = 2 * used * static_cast<double>(C * static_cast<std::int64_t>(sizeof(Real)));
    measure("embedding_backward", tensor + updated, [&] {
      Backward{tokens, a.in(N, C), d_weight.matrix(words, C), order, partial.matrix(partial_rows, C)}.launch(exec);
    });
  }
  if (const std::int64_t D = std::gcd(C, std::int64_t{128}); D >= 8) {  // head width
    const int T = static_cast<int>(std::gcd(N, std::int64_t{1024})), B = static_cast<int>(N / T);
    const Kokkos::View<Real*, typename Exec::memory_space> turns("bench", T * D);
    const auto turns_h = Kokkos::create_mirror_view(turns);
    kernels::fill_rope_table(turns_h.data(), T, static_cast<int>(D), 10000.0);
    Kokkos::deep_copy(turns, turns_h);
    measure("rope", 2 * tensor, [&] {
      kernels::Rope<Exec, Scalar>{
          kernels::heads_of_rows<Exec>(a.vector().data(), B, static_cast<int>(C / D), T, static_cast<int>(D)),
          kernels::HeadRows<const Real, Exec>(turns.data(), T, D / 2, 2)}
          .launch(exec);
    });
  }
  measure("swiglu", 1.5 * tensor, [&] {
    kernels::SwigluForward<Exec, Scalar>{a.in(N, C / 2 * 2), b.matrix(N, C / 2)}.launch(exec);
  });
  measure("swiglu_backward", 2.5 * tensor, [&] {
    kernels::SwigluBackward<Exec, Scalar>{a.in(N, C / 2 * 2), c.in(N, C / 2), b.matrix(N, C / 2 * 2)}.launch(exec);
  });
  {
    const Kokkos::View<int*, Exec::memory_space> targets("bench", N);  // zeros
    const Kokkos::View<Real, Exec::memory_space> grad_scale("bench");
    Kokkos::deep_copy(grad_scale, Real(1));
    measure("cross_entropy", 2 * tensor, [&] {  // in place: the gradient of one run is the logits of the next
      kernels::CrossEntropy<Exec, Scalar>{c.matrix(N, C), targets, rows.vector(), grad_scale, true}.launch(exec);
    });
  }

  {
    constexpr std::int64_t kMost = kernels::Gemv<Exec, Scalar>::kMaxRows;
    const Numbers<Scalar> x(exec, kMost * C), delta(exec, kMost * C), residual(exec, kMost * C), y(exec, kMost * N);
    const auto product = [&](const char* kernel, std::int64_t M, bool is_normed, bool is_gated) {
      const std::int64_t outputs = is_gated ? N / 2 : N;
      kernels::Gemv<Exec, Scalar> gemv{
          .x = x.in(M, C), .w = a.in(is_gated ? 2 * outputs : N, C), .y = y.matrix(M, outputs), .is_gated = is_gated};
      if (is_normed) {
        gemv.gain = gain.in();
        gemv.delta = delta.in(M, C);
        gemv.residual = residual.matrix(M, C);
        gemv.eps = Real(1e-5);
      }
      measure(kernel, tensor, [&] { gemv.launch(exec); });
    };
    product("gemv", 1, false, false);
    product("gemv_normed", 1, true, false);
    product("gemv_gated", 1, true, true);
    product("gemv_8", kMost, false, false);
    product("gemv_8_normed", kMost, true, false);
    product("gemv_8_gated", kMost, true, true);
  }

  using Grad = std::conditional_t<std::is_same_v<Scalar, bfloat16>, bfloat16, Real>;
  using Master = kernels::MasterWord<Scalar>;
  const Numbers<Grad> grad(exec, N * C);
  const Numbers<Master> master(exec, N * C);
  const Numbers<Real> m(exec, N * C), v(exec, N * C, 1.0f);
  const Kokkos::View<double*, Exec::memory_space> norm_partial("bench", kernels::SquareNorm<Exec, Grad>::blocks(N * C));
  const Kokkos::View<double, Exec::memory_space> norm("bench");
  const double elements = static_cast<double>(N * C);
  measure("norm2", sizeof(Grad) * elements, [&] {
    kernels::SquareNorm<Exec, Grad>{grad.in(), norm_partial, norm}.launch(exec);
  });
  const std::vector<kernels::UpdateBlock> blocks_h = kernels::make_update_blocks({{0, 0, 0, N * C, true}});
  const Kokkos::View<kernels::UpdateBlock*, Exec::memory_space> blocks("bench", blocks_h.size());
  Kokkos::deep_copy(blocks, Kokkos::View<const kernels::UpdateBlock*, Kokkos::HostSpace, kernels::Unmanaged>(
                                blocks_h.data(), blocks_h.size()));
  const Kokkos::View<kernels::UpdateScalars, Exec::memory_space> scalars("bench");
  const kernels::UpdateScalars scalars_h{
      .learning_rate = 1e-6, .bias1 = 0.1, .bias2 = 0.05, .grad_scale = 1.0, .skip = 0};
  Kokkos::deep_copy(scalars,
                    Kokkos::View<const kernels::UpdateScalars, Kokkos::HostSpace, kernels::Unmanaged>(&scalars_h));
  constexpr bool has_copy = !std::is_same_v<Real, Scalar>, reads_copy = std::is_same_v<Scalar, bfloat16>;
  const double adamw_bytes = elements * (2 * sizeof(Master) + sizeof(Grad) + 4 * sizeof(Real) +
                                         (has_copy ? (reads_copy ? 2 : 1) * sizeof(Scalar) : 0));
  measure("adamw", adamw_bytes, [&] {
    kernels::WeightUpdate<kernels::Adamw, Exec, Scalar, Grad>{.blocks = blocks,
                                                              .master = master.vector(),
                                                              .param = has_copy ? a.vector() : Vector<Scalar, Exec>{},
                                                              .grad = grad.in(),
                                                              .moments = {m.vector(), v.vector()},
                                                              .scalars = scalars,
                                                              .keys = {0.9, 0.95, Real(1e-8), Real(0.1)}}
        .launch(exec);
  });
}

}  // namespace

Exit bench_kernels(const Context& context) {
  return bench_on_root(context, [&](BenchResult& result) {
    with_scalar(dtype_named(context.settings().section<Bench>().dtype),
                [&]<class Scalar>() { measure_all<Scalar>(context, result); });
  });
}

}  // namespace tessera::lab
