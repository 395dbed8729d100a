/// The table of a bench job on its way to PATH, which is job.output or bench.h5 in the job's directory.
///
/// Until the job ends, PATH.part has the rows so far, whatever ends the process. It is written anew after each row.
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

  /// Call it before a row is measured: a signal that an experiment remembers stops the job here,
  /// Failure(Exit::stopped).
  void begin_row() const;

  /// Adds a row and prints it; build, device and header before the first.
  void add(std::vector<BenchTable::Cell> row);

  /// Writes PATH, removes PATH.part and prints PATH. Refuses what write_result() refuses.
  void publish() const;

 private:
  void fill(io::h5::File& file) const;

  const Context& context_;
  std::function<void(io::h5::File&)> more_;
  std::string path_;
  BenchTable table_;
};

/// Of a job that all ranks run: rank 0 does the work, and a failure is that of all. Every call is collective.
class SharedBenchResult {
 public:
  explicit SharedBenchResult(const Context& context, std::function<void(io::h5::File&)> more = {});
  void begin_row();
  void add(std::vector<BenchTable::Cell> row);
  void publish();

 private:
  void on_root(const std::function<void()>& work);

  parallel::World& world_;
  std::optional<BenchResult> result_;  // on rank 0
};

}  // namespace tessera::lab
