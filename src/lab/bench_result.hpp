/// The table of a bench job on its way to job.output, or to bench.h5 in the job's directory.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/h5.hpp"
#include "lab/bench.hpp"

namespace tessera::lab {

/// Of a job whose work is that of one rank.
class BenchResult {
 public:
  /// `more` writes what belongs into the file beside the table. Refuses what result_path() refuses.
  explicit BenchResult(const Context& context, std::function<void(io::h5::File&)> more = {});

  /// Adds a row and prints it; build, device and header before the first.
  void add(std::vector<BenchTable::Cell> row);

  /// Writes the file and prints its path. Refuses what write_result() refuses.
  void publish() const;

 private:
  const Context& context_;
  std::function<void(io::h5::File&)> more_;
  std::string path_;
  BenchTable table_;
};

/// Of a job that all ranks run: rank 0 does the work, and a failure is that of all. Every call is collective.
class SharedBenchResult {
 public:
  explicit SharedBenchResult(const Context& context, std::function<void(io::h5::File&)> more = {});
  void add(std::vector<BenchTable::Cell> row);
  void publish();

 private:
  void on_root(const std::function<void()>& work);

  parallel::World& world_;
  std::optional<BenchResult> result_;  // on rank 0
};

}  // namespace tessera::lab
