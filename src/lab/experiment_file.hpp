/// experiment.h5: how each row of an experiment ended, what it was, and what experiment.record names of its results.
///
///   /info             attributes: format, version, git_hash, build, hosts, devices, transport, question, command,
///                     deck, created
///   /row              number of the row, that of its folder; the dimension scale of all others
///   /name /exit_code /reason /seconds /resolved_deck    [row]; reason "" where the exit code is 0
///   /keys/<key>       [row]  every key that rows set: numbers where all are, else text
///   /record/<entry>   [row] what experiment.record names, or [row,entry] where it has several values; NaN or "" where
///                     a row has none
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/deck.hpp"
#include "io/h5.hpp"
#include "jobs/jobs.hpp"
#include "lab/experiment_outcome.hpp"

namespace tessera::lab {

/// A row that experiment.h5 holds.
struct EarlierRow {
  std::string name, computed;  // what its resolved deck computes
  std::filesystem::path folder;
  Outcome outcome;

  bool has_result() const;
};

/// For rank 0.
class ExperimentFile {
 public:
  /// Keeps references to the context.
  explicit ExperimentFile(const jobs::Context& context);

  const std::string& path() const { return path_; }

  /// Refuses (exit 6) a file of another kind or version.
  std::vector<EarlierRow> read_rows() const;

  /// Writes the rows that have an outcome; nothing if none has. What a row that finished lacks of experiment.record is
  /// returned, as a message; "" if nothing.
  std::string write(const Outcomes& outcomes);

 private:
  void write_info(io::h5::File& file) const;
  void write_key(io::h5::File& file, const io::h5::Dataset& row, const std::string& name,
                 const std::vector<std::size_t>& ran) const;
  void write_record(io::h5::File& file, const io::h5::Dataset& row, const std::string& entry,
                    const std::vector<std::size_t>& ran, const Outcomes& outcomes);

  const jobs::Context& context_;
  const config::Settings& settings_;
  const std::vector<config::DeckRow>& rows_;
  parallel::World& world_;
  const std::string path_, created_;
  const bool jobs_differ_;
  std::string missing_;
};

}  // namespace tessera::lab
