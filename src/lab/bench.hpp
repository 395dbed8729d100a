/// Shared by the bench jobs: repeated timing, and a table of rows for the console and for job.output, or bench.h5 in
/// the job's directory.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/h5.hpp"
#include "jobs/jobs.hpp"
#include "kernels/core/tensor.hpp"
#include "lab/bench_keys.hpp"

namespace tessera::lab {

using namespace jobs;  // Context, together and the other helpers of jobs

/// Seconds of repeated runs; NaN where there are none.
struct Timing {
  double median_s = NAN, mean_s = NAN, std_s = NAN, min_s = NAN, first_s = NAN;
  std::int64_t repeats = 0;
};
Timing summarize(std::vector<double> seconds);  // in the order in which they were measured

/// Runs `work` on `exec`: a warm-up of at least bench.warmup runs and bench.warmup_ms, then the repeats, each timed by
/// the instance's own clock. bench.rest_ms of rest follow the first warm-up run, which may load code and fill pools. On
/// a device the repeats are enqueued behind the last warm-up run, and the host waits only at the end, so that no gap
/// between launches is timed. If bench.row_limit_s applies and no warm-up run was timed, the host waits after each.
Timing time_repeats(const Bench& bench, const kernels::Device& exec, const std::function<void()>& work);

/// The same, without rest, for work that all ranks run together, equally often; a repeat's time is the slowest rank's.
/// Unless `is_queued`, each repeat follows a barrier, and the host waits for it. Collective.
Timing time_together(const Bench& bench, parallel::World& world, const kernels::Device& exec, bool is_queued,
                     const std::function<void()>& work);

/// Fills x with independent numbers of mean `mean` and standard deviation `deviation`, approximately normal (sums of
/// four uniform ones), the same on every device. Scalar is float, bfloat16 or float16.
template <class Scalar>
void fill_random(const kernels::Device& exec, const kernels::Vector<Scalar, kernels::Device>& x, std::uint64_t seed,
                 float mean, float deviation);

/// Bytes that a row may take: the machine's memory, or bench.memory_limit_gib if less.
std::int64_t row_limit_bytes(const Bench& bench);

/// The number format of that name, a word of bench.dtype.
Dtype dtype_named(std::string_view name);

/// "NVIDIA H200, 139.8 GiB" or the processor's name.
std::string device_text();

/// A value in a benchmark's table.
struct Cell {
  std::string column, units;  // units are for the HDF5 file; "" marks a text column
  double value;               // of a number; NaN shows as '-'
  std::string words;          // of a text
  bool is_detail = false;     // in the file only
  std::size_t longest = 11;   // characters of the column's longest value: numbers of five digits take up to 11

  static Cell number(std::string column, std::string units, double value) {
    return {std::move(column), std::move(units), value, {}};
  }
  static Cell count(std::string column, double value) { return {std::move(column), "1", value, {}, false, 6}; }
  static Cell detail(std::string column, std::string units, double value) {
    return {std::move(column), std::move(units), value, {}, true};
  }
  static Cell ms(std::string column, double seconds) { return number(std::move(column), "ms", 1e3 * seconds); }
  static Cell ms_detail(std::string column, double seconds) { return detail(std::move(column), "ms", 1e3 * seconds); }
  static Cell text(std::string column, std::string value, std::string_view longest = "") {
    return {std::move(column), "", 0, std::move(value), false, std::max(longest.size(), std::size_t{8})};
  }
};
using BenchRow = std::vector<Cell>;  // the columns of a table are those of its first row, in that order

// Lines of the table on the console.
std::string header_of(const BenchRow& row);
std::string line_of(const BenchRow& row);

/// The table of a job on its way to the console and to its file, one dataset /<column> per column over the row index
/// `row`, with provenance as attributes of /info. For rank 0.
class BenchResult {
 public:
  /// `more` writes what belongs into the file beside the table. Refuses what result_path() refuses.
  explicit BenchResult(const Context& context, std::function<void(io::h5::File&)> more = {});

  /// Adds a row and prints it; build, device and header before the first. The rows so far are then in part_path().
  /// Throws std::logic_error if its columns differ from those of the first.
  void add(BenchRow row);

  /// Makes that file the job's result and prints its path. Refuses what write_result() refuses.
  void publish() const;

 private:
  void write(io::h5::File& file) const;

  const Context& context_;
  std::function<void(io::h5::File&)> more_;
  std::string path_;
  std::vector<BenchRow> rows_;
};

/// Runs a job on rank 0 alone: `measure` adds its rows.
Exit bench_on_root(const Context& context, const std::function<void(BenchResult&)>& measure);

/// Runs a job of one row, measured by all ranks; rank 0's is kept. If that fails, all ranks fail.
Exit bench_together(const Context& context, const std::function<BenchRow()>& measure,
                    std::function<void(io::h5::File&)> more = {});

/// Runs `measure` with a Row that every rank has freed when this returns. Ranks may have mapped each other's memory:
/// row.disconnect() unmaps it; if this rank alone fails, row.keep() keeps its own until the process ends. Returns a
/// lack of memory that all ranks have agreed on. Collective.
template <class Row>
std::optional<parallel::AgreedError> run_row(parallel::World& world, const std::function<void(Row&)>& measure) {
  std::optional<parallel::AgreedError> failure;
  {
    Row row;
    try {
      measure(row);
    } catch (const std::exception& caught) {
      const auto* all = dynamic_cast<const parallel::AgreedError*>(&caught);
      if (all == nullptr || static_cast<Exit>(all->exit_code()) != Exit::out_of_memory) {
        world.leave(caught);
        row.keep();
        throw;
      }
      failure = *all;
    }
    const auto watch = world.watch("the end of the row");
    row.disconnect();
    world.barrier();
  }
  // every rank has released its memory before any reads the free memory
  const auto watch = world.watch("the exchange after the row");
  world.barrier();
  return failure;
}

/// Refuses (exit 2) one rank alone; `why` says what the job does with several. Collective.
void require_several_ranks(parallel::World& world, const std::string& why);

/// Refuses (exit 3) to benchmark with a BLAS other than OpenBLAS, MKL and BLIS.
void require_fast_blas();

}  // namespace tessera::lab
