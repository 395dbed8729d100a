#include "lab/bench.hpp"

#include <fmt/format.h>

#include <Kokkos_Core.hpp>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "build_info.hpp"
#include "io/answer.hpp"
#include "io/table.hpp"
#include "jobs/directory.hpp"
#include "jobs/gemm_algorithms.hpp"
#include "jobs/memory.hpp"
#include "jobs/statistics.hpp"
#include "kernels/core/device_info.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/stream_timer.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/core/random.hpp"

namespace tessera::lab {

using Exec = kernels::Device;

Timing summarize(std::vector<double> seconds) {
  Timing t;
  if (seconds.empty()) return t;
  t.first_s = seconds.front();
  std::sort(seconds.begin(), seconds.end());
  t.min_s = seconds.front();
  t.median_s = median_of(seconds);
  t.mean_s = mean_of(seconds);
  t.std_s = deviation_of(seconds);
  t.repeats = std::ssize(seconds);
  return t;
}

namespace {

/// Number of repeats for work that takes `once_s`: bench.repeats, fewer where bench.row_limit_s demands it.
std::int64_t repeats_within(const Bench& bench, double once_s) {
  if (bench.row_limit_s == 0 || once_s * static_cast<double>(bench.repeats) <= bench.row_limit_s) return bench.repeats;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(bench.row_limit_s / once_s));
}

/// `work` on one rank alone, or where `world` is given on all ranks together.
Timing time_runs(const Bench& bench, parallel::World* world, const Exec& exec, bool is_queued,
                 const std::function<void()>& work) {
  const auto run = [&] {
    std::optional<parallel::World::Watch> watch;
    if (world != nullptr) watch.emplace(*world, "a collective operation", parallel::kPatience);
    work();
  };
  const auto fence = [&] {
    std::optional<parallel::World::Watch> watch;
    if (world != nullptr) watch.emplace(*world, "the end of collective operations", parallel::kPatience);
    exec.fence();
  };
  const auto any = [&](bool mine) { return world != nullptr ? world->any(mine) : mine; };
  const auto slowest = [&](std::vector<double> mine) { return world != nullptr ? world->max(std::move(mine)) : mine; };
  const auto meet = [&] {
    if (world != nullptr) world->barrier();
  };
  const bool waits_each = world != nullptr && !is_queued;

  // 1. the first run of the warm-up, then bench.rest_ms of rest
  std::int64_t warmup = bench.warmup;
  if (world == nullptr) {
    if (bench.rest_ms > 0 && (warmup > 0 || bench.warmup_ms > 0)) {
      run();
      fence();
      --warmup;
    }
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(bench.rest_ms));
  }

  // 2. the rest of the warm-up; its fastest run, on its slowest rank, decides how many repeats there is time for. Its
  //    last run is left to phase 3 where repeats queue behind it
  const std::int64_t leading = is_queued ? 1 : 0;
  const double start_s = events::now_s();
  double once_s = INFINITY;
  const auto is_early = [&] { return bench.warmup_ms > 0 && any(1e3 * (events::now_s() - start_s) < bench.warmup_ms); };
  for (; warmup > leading || is_early(); --warmup) {
    meet();
    const double before_s = events::now_s();
    run();
    fence();
    once_s = std::min(once_s, slowest({events::now_s() - before_s})[0]);
  }

  // 3. enqueue all repeats
  const bool waits = bench.row_limit_s > 0 && std::isinf(once_s);  // the time of one is unknown
  const auto repeats = static_cast<int>(waits ? bench.repeats : repeats_within(bench, once_s));
  kernels::StreamTimer timer(2 * repeats);
  fence();
  meet();
  if (is_queued && (warmup > 0 || bench.warmup_ms > 0)) run();
  const double begin_s = events::now_s();
  int counted = 0;
  for (; counted < repeats; ++counted) {
    if (waits && counted > 0 && any(events::now_s() - begin_s >= bench.row_limit_s)) break;
    if (waits_each) meet();
    timer.mark(exec, 2 * counted);
    run();
    timer.mark(exec, 2 * counted + 1);
    if (waits || waits_each) fence();
  }
  fence();
  std::vector<double> seconds;
  for (int i = 0; i < counted; ++i) seconds.push_back(timer.seconds(2 * i, 2 * i + 1));
  return summarize(slowest(std::move(seconds)));
}

}  // namespace

Timing time_repeats(const Bench& bench, const Exec& exec, const std::function<void()>& work) {
  return time_runs(bench, nullptr, exec, !kernels::kIsHost<Exec>, work);
}

Timing time_together(const Bench& bench, parallel::World& world, const Exec& exec, bool is_queued,
                     const std::function<void()>& work) {
  return time_runs(bench, &world, exec, is_queued, work);
}

namespace {

template <class Scalar>
struct FillRandom {
  kernels::Vector<Scalar, Exec> x;
  std::uint64_t seed;
  float mean, deviation;

  KOKKOS_FUNCTION void operator()(const std::int64_t i) const {
    const std::uint64_t bits = mix(seed, static_cast<std::uint64_t>(i));
    float sum = 0;  // of four uniform numbers in 0..65535, whose variance is 65536^2 / 12 each
    for (int part = 0; part < 4; ++part) sum += static_cast<float>((bits >> (16 * part)) & 0xffffu);
    x(i) = static_cast<Scalar>(mean + deviation * (sum - 131070.0f) * (1.7320508f / 65536.0f));
  }
};

}  // namespace

template <class Scalar>
void fill_random(const Exec& exec, const kernels::Vector<Scalar, Exec>& x, std::uint64_t seed, float mean,
                 float deviation) {
  const auto count = static_cast<std::int64_t>(x.extent(0));
  Kokkos::parallel_for("tessera::bench::fill",
                       Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, count),
                       FillRandom<Scalar>{x, seed, mean, deviation});
}
template void fill_random<float>(const Exec&, const kernels::Vector<float, Exec>&, std::uint64_t, float, float);
template void fill_random<bfloat16>(const Exec&, const kernels::Vector<bfloat16, Exec>&, std::uint64_t, float, float);
template void fill_random<float16>(const Exec&, const kernels::Vector<float16, Exec>&, std::uint64_t, float, float);

std::int64_t row_limit_bytes(const Bench& bench) {
  const std::int64_t available = available_bytes();
  if (bench.memory_limit_gib == 0) return available;
  return std::min(available, static_cast<std::int64_t>(bench.memory_limit_gib * (1 << 30)));
}

Dtype dtype_named(std::string_view name) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    if (name_of(dtype) == name) return dtype;
  }
  throw std::invalid_argument(fmt::format("no benchmark runs in \"{}\"", name));
}

std::string device_text() {
  const kernels::DeviceInfo info = kernels::device_info();
  return fmt::format("{}, {:.1f} GiB", info.name, static_cast<double>(info.total_bytes) / 1073741824);
}

namespace {
/// Two blanks, then the value at the right of its column.
std::string padded(const std::string& value, const Cell& cell) {
  return fmt::format("  {:>{}}", value, std::max(cell.column.size(), cell.longest));
}
}  // namespace

std::string header_of(const BenchRow& row) {
  std::string text;
  for (const Cell& cell : row) {
    if (!cell.is_detail) text += padded(cell.column, cell);
  }
  return text;
}

std::string line_of(const BenchRow& row) {
  std::string text;
  for (const Cell& cell : row) {
    if (cell.is_detail) continue;
    text += padded(cell.units.empty()       ? cell.words
                   : std::isnan(cell.value) ? "-"
                                            : fmt::format("{:.5g}", cell.value),
                   cell);
  }
  return text;
}

BenchResult::BenchResult(const Context& context, std::function<void(io::h5::File&)> more)
    : context_(context), more_(std::move(more)), path_(result_path(context, "bench.h5")) {}

void BenchResult::add(BenchRow row) {
  const auto is_same = [](const Cell& a, const Cell& b) { return a.column == b.column && a.units == b.units; };
  if (!rows_.empty() && !std::ranges::equal(row, rows_.front(), is_same)) {
    throw std::logic_error("bench table: a row whose columns differ from those of the first");
  }
  rows_.push_back(std::move(row));
  replace_file(part_path(path_), [this](io::h5::File& file) { write(file); });
  if (rows_.size() == 1) {
    io::answer(fmt::format("{}, {}\n{}\n", build_info::summary(), device_text(), header_of(rows_.front())));
  }
  io::answer(line_of(rows_.back()) + "\n");
}

void BenchResult::write(io::h5::File& file) const {
  io::h5::Group info = file.make_group("info");
  info.set_attribute("format", "tessera bench");
  io::write_origin(info, jobs::origin_of(context_));
  info.set_attribute("blas", jobs::library_in_use());
  const kernels::DeviceInfo device = kernels::device_info();
  info.set_attribute("device", device_text());
  info.set_attribute("device_name", device.name);
  info.set_attribute("device_bytes", device.total_bytes);
  info.set_attribute("execution_space", Exec::name());
  io::h5::Dataset scale = file.write("row", io::numbers_up_to(rows_.size()), {"1", "row of the table"});
  scale.make_scale("row");
  for (std::size_t column = 0; !rows_.empty() && column < rows_.front().size(); ++column) {
    const Cell& first = rows_.front()[column];
    std::vector<std::string> texts;
    std::vector<double> numbers;
    for (const auto& row : rows_) {
      texts.push_back(row[column].words);
      numbers.push_back(row[column].value);
    }
    io::h5::Dataset written = first.units.empty() ? file.write(first.column, texts, {"1", first.column})
                                                  : file.write(first.column, numbers, {first.units, first.column});
    written.attach_scale(scale, 0);
  }
  if (more_) more_(file);
}

void BenchResult::publish() const { publish_part(context_, path_); }

Exit bench_on_root(const Context& context, const std::function<void(BenchResult&)>& measure) {
  context.world.agree_on_root([&] {
    BenchResult result(context);
    measure(result);
    result.publish();
  });
  return Exit::finished;
}

Exit bench_together(const Context& context, const std::function<BenchRow()>& measure,
                    std::function<void(io::h5::File&)> more) {
  std::optional<BenchResult> result;
  const auto on_root = [&](const std::function<void()>& work) {
    const auto watch = context.world.watch("the result of the benchmark", parallel::kPatience);
    context.world.agree_on_root(work);
  };
  on_root([&] { result.emplace(context, std::move(more)); });
  BenchRow row = measure();
  on_root([&] {
    result->add(std::move(row));
    result->publish();
  });
  return Exit::finished;
}

void require_several_ranks(parallel::World& world, const std::string& why) {
  if (world.size() > 1) return;
  world.fail(Failure(Exit::usage, why + ", and this is one rank alone: start 2 or more (scripts/run -n 2 DECK.toml)"));
}

void require_fast_blas() {
  const std::string library = kernels::gemm_library();
  if (library.find("(OpenBLAS") != std::string::npos || library.find("mkl") != std::string::npos ||
      library.find("blis") != std::string::npos) {
    return;
  }
  throw Failure(Exit::environment,
                "the BLAS of this process is {}, which may be the slow reference implementation: the benchmark would "
                "measure the wrong thing. Install libopenblas0-serial (scripts/setup does)",
                library);
}

}  // namespace tessera::lab
