#include "jobs/bench.hpp"

#include <fmt/format.h>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "build_info.hpp"
#include "io/h5.hpp"
#include "kernels/core/events.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera::jobs {

Timing summarize(std::vector<double> seconds) {
  if (seconds.empty()) return {NAN, NAN, NAN, NAN};
  std::sort(seconds.begin(), seconds.end());
  const std::size_t n = seconds.size();
  Timing t;
  t.median_s = (seconds[(n - 1) / 2] + seconds[n / 2]) / 2;
  t.min_s = seconds.front();
  t.mean_s = std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(n);
  double squares = 0;
  for (const double s : seconds) squares += (s - t.mean_s) * (s - t.mean_s);
  t.std_s = n > 1 ? std::sqrt(squares / static_cast<double>(n - 1)) : 0;
  return t;
}

Timing time_repeats(const config::Bench& bench, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (std::int64_t i = -bench.warmup; i < bench.repeats; ++i) {
    Kokkos::fence();
    const double start_s = events::now_s();
    work();
    Kokkos::fence();
    if (i >= 0) seconds.push_back(events::now_s() - start_s);
  }
  return summarize(std::move(seconds));
}

void BenchTable::add(std::vector<Cell> row) {
  if (!rows_.empty()) {
    const bool matches =
        std::equal(row.begin(), row.end(), rows_.front().begin(), rows_.front().end(),
                   [](const Cell& a, const Cell& b) { return a.column == b.column && a.units == b.units; });
    if (!matches) throw std::logic_error("bench table: a row with other columns than the first");
  }
  rows_.push_back(std::move(row));
}

std::string BenchTable::header() const {
  std::string text;
  for (const Cell& cell : rows_.front())
    text += fmt::format("{:>{}}", cell.column, std::max<std::size_t>(cell.column.size() + 2, 11));
  return text;
}

std::string BenchTable::line(std::size_t row) const {
  std::string text;
  for (const Cell& cell : rows_[row]) {
    const std::string value = cell.units.empty()        ? cell.text
                              : std::isnan(cell.number) ? "-"
                                                        : fmt::format("{:.5g}", cell.number);
    text += fmt::format("{:>{}}", value, std::max<std::size_t>(cell.column.size() + 2, 11));
  }
  return text;
}

void BenchTable::write(io::h5::File& file, const Context& context) const {
  file.set_attribute("format", "tessera-bench");
  file.set_attribute("version", build_info::version());
  file.set_attribute("git_hash", build_info::git_hash() + (build_info::is_dirty() ? "-dirty" : ""));
  file.set_attribute("build", build_info::summary() + ", " + build_info::flags());
  file.set_attribute("blas", kernels::gemm_library());
  file.set_attribute("hosts", context.world.hosts());
  file.set_attribute("device", kernels::Device::name());
  file.set_attribute("command", context.command);
  file.set_attribute("deck", context.deck.resolved);
  std::vector<std::int64_t> index(rows_.size());
  std::iota(index.begin(), index.end(), 0);
  io::h5::Dataset scale = file.write("row", index, {"1", "row of the table"});
  scale.make_scale("row");
  for (std::size_t column = 0; !rows_.empty() && column < rows_.front().size(); ++column) {
    const Cell& first = rows_.front()[column];
    if (first.units.empty()) {
      std::vector<std::string> values;
      for (const auto& row : rows_) values.push_back(row[column].text);
      file.write(first.column, values, {"1", first.column}).attach_scale(scale, 0);
    } else {
      std::vector<double> values;
      for (const auto& row : rows_) values.push_back(row[column].number);
      file.write(first.column, values, {first.units, first.column}).attach_scale(scale, 0);
    }
  }
}

void add_and_print(BenchTable& table, std::vector<BenchTable::Cell> row, const Context& context) {
  table.add(std::move(row));
  if (context.world.rank() != 0) return;
  if (table.rows() == 1) fmt::print("{}\n{}\n", build_info::summary(), table.header());
  fmt::print("{}\n", table.line(table.rows() - 1));
  std::fflush(stdout);
}

void write_and_say(const BenchTable& table, const std::string& path, const Context& context) {
  write_result(path, [&](io::h5::File& file) { table.write(file, context); });
}

void require_fast_blas() {
  const std::string library = kernels::gemm_library();
  if (library.find("(OpenBLAS") != std::string::npos || library.find("mkl") != std::string::npos ||
      library.find("blis") != std::string::npos) {
    return;
  }
  throw Failure(Exit::environment,
                fmt::format("the BLAS of this process is {}, which may be the slow reference one: a bench of it would "
                            "measure the wrong thing. Install libopenblas0-serial (scripts/setup does)",
                            library));
}

}  // namespace tessera::jobs
