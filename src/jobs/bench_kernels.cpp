/// The bench.kernels job: the memory-bound kernels over [rows, width] floats, against a copy of the same tensor.
///
/// GB/s count every tensor that must be read or written once; the fraction is of the measured copy rate (bytes read
/// plus bytes written) of the same run. Rank 0 works.

#include <fmt/format.h>

#include <random>

#include "jobs/bench.hpp"
#include "kernels/adamw.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/norm2.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/swiglu.hpp"
#include "kernels/weighted_sum.hpp"
#include "memory/arena.hpp"

namespace tessera::jobs {
namespace {

using Exec = kernels::Device;
using kernels::Matrix;
using kernels::Vector;

/// Device memory of floats with random normal content.
class Floats {
 public:
  explicit Floats(std::int64_t count, float mean = 0)
      : view_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "bench"), count) {
    std::mt19937 generator(static_cast<unsigned>(count));
    std::normal_distribution<float> normal(mean, 0.1f);
    const auto host = Kokkos::create_mirror_view(view_);
    for (std::int64_t i = 0; i < count; ++i) host(i) = normal(generator);
    Kokkos::deep_copy(view_, host);
  }
  template <class Number = float>
  Matrix<Number, Exec> matrix(std::int64_t rows, std::int64_t columns) const {
    return Matrix<Number, Exec>(view_.data(), rows, columns);
  }
  template <class Number = float>
  Vector<Number, Exec> vector() const {
    return Vector<Number, Exec>(view_.data(), view_.extent(0));
  }

 private:
  Kokkos::View<float*, typename Exec::memory_space> view_;
};

}  // namespace

Exit bench_kernels(const Context& context) {
  const config::Bench& bench = context.settings().bench;
  const std::int64_t N = bench.rows, C = bench.width;
  on_root(context.world, [&] {
    const std::string path = result_path(context, "bench.h5");
    if (N * C * 4 * 6 > memory::available_host_bytes()) {
      throw Failure(Exit::out_of_memory,
                    fmt::format("six tensors of {} x {} floats do not fit; smaller bench.rows or bench.width", N, C));
    }
    const Exec exec;
    BenchTable table;
    double copy_rate = 0;
    const auto measure = [&](const char* kernel, double bytes, const std::function<void()>& work) {
      const Timing t = time_repeats(bench, work);
      const double rate = 1e-9 * bytes / t.median_s;
      if (copy_rate == 0) copy_rate = rate;
      using T = BenchTable;
      add_and_print(table,
                    {T::text("kernel", kernel), T::number("rows", "1", static_cast<double>(N)),
                     T::number("width", "1", static_cast<double>(C)), T::number("median_ms", "ms", 1e3 * t.median_s),
                     T::number("std_ms", "ms", 1e3 * t.std_s), T::number("gbyte_per_s", "GB/s", rate),
                     T::number("of_copy", "1", rate / copy_rate)},
                    context);
    };
    const double tensor = 4.0 * static_cast<double>(N * C);
    const Floats a(N * C), b(N * C), c(N * C), d(N * C, 1.0f), gain(C, 1.0f), d_gain(C), rows(N), row_loss(N);
    const std::int64_t row_tiles = kernels::WeightedSumBackward<Exec, float>::tiles(static_cast<int>(N));
    const Floats partial(kernels::RmsnormBackward<Exec, float>::kPartials * C), tile_sums(row_tiles * C);
    measure("copy", 2 * tensor, [&] { Kokkos::deep_copy(exec, b.vector(), a.vector<const float>()); });
    measure("weighted_sum", tensor, [&] {
      kernels::WeightedSumForward<Exec, float>{a.matrix<const float>(N, C), gain.vector<const float>(), rows.vector()}
          .launch(exec);
    });
    measure("weighted_sum_backward", 2 * tensor, [&] {
      kernels::WeightedSumBackward<Exec, float>{a.matrix<const float>(N, C),
                                                gain.vector<const float>(),
                                                rows.vector<const float>(),
                                                b.matrix(N, C),
                                                d_gain.vector(),
                                                tile_sums.matrix(row_tiles, C)}
          .launch(exec);
    });
    measure("rmsnorm", 2 * tensor, [&] {
      kernels::RmsnormForward<Exec, float>{
          a.matrix<const float>(N, C), {}, {}, gain.vector<const float>(), b.matrix(N, C), rows.vector(), 1e-5f}
          .launch(exec);
    });
    measure("rmsnorm_residual", 4 * tensor, [&] {
      kernels::RmsnormForward<Exec, float>{a.matrix<const float>(N, C),
                                           c.matrix<const float>(N, C),
                                           d.matrix(N, C),
                                           gain.vector<const float>(),
                                           b.matrix(N, C),
                                           rows.vector(),
                                           1e-5f}
          .launch(exec);
    });
    measure("rmsnorm_backward", 4 * tensor, [&] {
      kernels::RmsnormBackward<Exec, float>{a.matrix<const float>(N, C),
                                            gain.vector<const float>(),
                                            rows.vector<const float>(),
                                            c.matrix<const float>(N, C),
                                            d.matrix<const float>(N, C),
                                            b.matrix(N, C),
                                            d_gain.vector(),
                                            partial.matrix(kernels::RmsnormBackward<Exec, float>::kPartials, C)}
          .launch(exec);
    });
    measure("swiglu", 1.5 * tensor, [&] {
      kernels::SwigluForward<Exec, float>{a.matrix<const float>(N, C / 2 * 2), b.matrix(N, C / 2)}.launch(exec);
    });
    measure("swiglu_backward", 2.5 * tensor, [&] {
      kernels::SwigluBackward<Exec, float>{a.matrix<const float>(N, C / 2 * 2), c.matrix<const float>(N, C / 2),
                                           b.matrix(N, C / 2 * 2)}
          .launch(exec);
    });
    const Kokkos::View<int*, Exec::memory_space> targets("bench", N);  // zeros
    const Kokkos::View<float, Exec::memory_space> grad_scale("bench");
    Kokkos::deep_copy(grad_scale, 1.0f);
    measure("cross_entropy", 2 * tensor, [&] {  // its own gradient is as good a logit as any
      kernels::CrossEntropy<Exec, float>{b.matrix(N, C), targets, row_loss.vector(), grad_scale, true}.launch(exec);
    });
    const Kokkos::View<double*, Exec::memory_space> norm_partial("bench",
                                                                 kernels::SquareNorm<Exec, float>::blocks(N * C));
    const Kokkos::View<double, Exec::memory_space> norm("bench");
    measure("norm2", tensor, [&] {
      kernels::SquareNorm<Exec, float>{a.vector<const float>(), norm_partial, norm}.launch(exec);
    });

    const std::vector<kernels::AdamwBlock> blocks_h = kernels::make_adamw_blocks({{0, N * C, true}});
    const Kokkos::View<kernels::AdamwBlock*, Exec::memory_space> blocks("bench", blocks_h.size());
    Kokkos::deep_copy(blocks, Kokkos::View<const kernels::AdamwBlock*, Kokkos::HostSpace, kernels::Unmanaged>(
                                  blocks_h.data(), blocks_h.size()));
    const Kokkos::View<kernels::AdamwScalars, Exec::memory_space> scalars("bench");
    Kokkos::deep_copy(scalars, kernels::AdamwScalars{1e-6, 0.1, 0.05, 1.0, 0});
    measure("adamw", 7 * tensor, [&] {
      kernels::AdamwUpdate<Exec, float>{
          blocks, a.vector(), {}, b.vector<const float>(), c.vector(), d.vector(), scalars, 0.9f, 0.95f, 1e-8f, 0.1f}
          .launch(exec);
    });
    write_and_say(table, path, context);
  });
  return Exit::finished;
}

}  // namespace tessera::jobs
