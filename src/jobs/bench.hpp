/// What every bench job shares: repeated timing, and a table of rows for the console and for HDF5.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/jobs.hpp"

namespace tessera::jobs {

/// Seconds of repeated runs.
struct Timing {
  double median_s = 0, mean_s = 0, std_s = 0, min_s = 0;
};
Timing summarize(std::vector<double> seconds);

/// Runs `work` warmup + repeats times and times the latter, fenced before and after each.
Timing time_repeats(const config::Bench& bench, const std::function<void()>& work);

/// A table with one row per case. Columns come in the order in which the first row names them.
class BenchTable {
 public:
  /// `units` stands in the HDF5 file; "" marks a column of text.
  struct Cell {
    std::string column, units;
    double number;  // NaN shows as '-'
    std::string text;
  };
  static Cell number(std::string column, std::string units, double value) {
    return {std::move(column), std::move(units), value, {}};
  }
  static Cell text(std::string column, std::string value) { return {std::move(column), "", 0, std::move(value)}; }

  void add(std::vector<Cell> row);
  std::string header() const;  // of the console's table
  std::string line(std::size_t row) const;
  std::size_t rows() const { return rows_.size(); }

  /// /<column> one dataset per column over the row index `row`, what ran it as root attributes.
  void write(io::h5::File& file, const Context& context) const;

 private:
  std::vector<std::vector<Cell>> rows_;
};

/// Adds a row and prints it (rank 0), the header first.
void add_and_print(BenchTable& table, std::vector<BenchTable::Cell> row, const Context& context);

/// Writes the table to `path` and says so. For rank 0.
void write_and_say(const BenchTable& table, const std::string& path, const Context& context);

/// Refuses (exit 3) to measure products with a BLAS that is none of OpenBLAS, MKL and BLIS.
void require_fast_blas();

}  // namespace tessera::jobs
