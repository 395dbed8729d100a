/// experiment.h5: each row's outcome, deck and recorded results.
///
///   /info             attributes: format, version, git_hash, build, hosts, devices, transport, question, command,
///                     deck, created
///   /row              number of the row, that of its folder; the dimension scale of all others
///   /name /exit_code /reason /resolved_deck    [row]; of its last round; reason "" where the exit code is 0
///   /seconds          [row, round] wall time
///   /keys/<key>       [row]  every key that rows set: numbers where all are, else text
///   /record/<entry>   numbers [row, round, entry], text [row]: the entries of experiment.record or, if it is empty,
///                     every column of the rows' bench.h5; NaN or "" if a row has none, or if experiment.record gained
///                     the entry after a round whose file the next round has replaced
///   /relative/<entry> [row, round, entry] relative to the row of experiment.baseline: speed-up for times and rates,
///                     fraction saved for bytes
///
/// There is an axis `round`, with its scale /round, if rows have several, and an axis with a scale /entry_N for
/// each length N, if values have several entries.
///
/// Robustness  A flush writes all rows to a new file that then replaces experiment.h5, so a kill at any instant leaves
///             the previous one. Flushes are at least 100 times the last one's duration apart: at most 1 % of the time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/deck.hpp"
#include "jobs/jobs.hpp"
#include "lab/experiment_record.hpp"

namespace tessera::lab {

/// A row that experiment.h5 holds.
struct EarlierRow {
  std::string name, computed;  // what its resolved deck computes
  std::filesystem::path folder;
  Rounds rounds;

  bool has_result() const;
};

/// For rank 0; on the others it is empty.
class ExperimentFile {
 public:
  /// Keeps references to the context.
  explicit ExperimentFile(const jobs::Context& context);
  ~ExperimentFile();  // flushes what an exception has left
  ExperimentFile(const ExperimentFile&) = delete;
  ExperimentFile& operator=(const ExperimentFile&) = delete;

  const std::string& path() const { return path_; }

  /// Reads the rows of an earlier start. Refuses (exit 6) a file of another kind or version; version 1 has one round.
  std::vector<EarlierRow> read_rows() const;

  /// On how many ranks the earlier start ran; none of an older version, which does not say.
  std::optional<std::int64_t> read_ranks() const;

  /// The builds, with their GPUs, that measured rows of earlier starts, if not this one on GPUs like these. Kept rows
  /// carry them along, as the attribute other_builds.
  std::vector<std::string> read_other_builds() const;

  /// Takes over the measurements of an earlier start. Entries that the last one lacks are read from the row's
  /// file; without it, a row keeps what it has.
  void keep(std::size_t row, Rounds rounds);
  void keep_other_builds(std::vector<std::string> builds) { other_builds_ = std::move(builds); }
  const std::vector<std::string>& other_builds() const { return other_builds_; }

  /// Adds a measurement, or replaces that of the same round, counted from 1. Its results are read from the row's file.
  void add(std::size_t row, std::int64_t round, Outcome outcome);

  const Rounds& rounds(std::size_t row) const { return measured_[row]; }

  void flush_if_due();
  void flush();  // nothing if no row was measured

  /// A message about entries of experiment.record that finished rows lack; "" if none.
  std::string missing() const;

 private:
  std::filesystem::path result_of(std::size_t row) const;  // its job's file; a folder: none
  RowRecord read_results(std::size_t row, const Outcome& outcome) const;

  const jobs::Context& context_;
  const config::Settings& settings_;
  const std::vector<config::DeckRow>& rows_;
  const std::string path_, created_;
  const std::vector<std::size_t> baselines_;  // by row; none without experiment.baseline
  std::vector<Rounds> measured_;              // by row
  std::vector<std::string> other_builds_;
  bool has_unwritten_ = false;
  double last_flush_s_ = 0, last_flush_took_s_ = 0;  // events::now_s of its end; seconds
};

}  // namespace tessera::lab
