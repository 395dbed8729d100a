/// The jobs: one function per job.kind, one file each, one table (jobs.cpp), to which a room above adds its own.
///
/// A job runs on every rank of the world and returns the program's exit code. A failure common to all ranks is thrown
/// as parallel::AgreedError (rank 0 reports it, all finalise); any other exception aborts the launch.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "config/deck.hpp"
#include "errors.hpp"
#include "io/console.hpp"
#include "io/origin.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

/// Prints lines to the user, on rank 0.
using Note = std::function<void(const std::string&)>;

struct Context {
  const config::Deck& deck;
  std::optional<std::string> resume;  // "auto" or a folder
  std::string command;                // as typed
  parallel::World& world;

  const config::Settings& settings() const { return deck.settings; }
};

/// A key's value as a word, without quotes: "bf16" for "precision.compute".
std::string word_of(std::string_view key, const config::Settings& settings);

/// For the attributes of a result.
io::Origin origin_of(const Context& context);

/// This rank's console style, by job.progress: only rank 0 has a console.
io::Console::Style console_style(const Context& context);

/// Throws parallel::AgreedError (exit 2) unless every rank was started with rank 0's deck, overrides and --resume:
/// otherwise ranks would share steps differently, unnoticed. data.path may differ: the data itself is compared.
void require_same_start(parallel::World& world, const config::Deck& deck, const std::optional<std::string>& resume);

struct JobRow {
  config::JobKind kind;
  Exit (*run)(const Context&);
};

/// Adds jobs to the table, before the first runs. Each has traits, too (config/extension.hpp).
void add_jobs(std::span<const JobRow> rows);

/// Runs the job of job.kind.
/// Throws parallel::AgreedError (exit 2) if --resume was given and the job cannot resume, (exit 3) if steps are to be
/// graphs and the collectives cannot be captured.
Exit run_job(const Context& context);

}  // namespace tessera::jobs
