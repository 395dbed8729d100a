/// The command line of `tessera`, and the texts of --help and --explain. Opens no file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::config {

/// tessera DECK.toml [section.key=value ...] [options]
struct CommandLine {
  std::string deck;                    // empty only with a question that needs none
  std::vector<std::string> overrides;  // "section.key=value", for load_deck
  bool check = false;                  // read the deck, report its faults, exit
  bool plan = false;                   // print what each rank needs, exit
  bool print = false;                  // print the resolved deck, exit
  bool figures = false;                // of `plan` or `show_config`: TOML for programs instead of text
  bool version = false;
  bool show_config = false;  // compiler, Kokkos, BLAS, MPI of this build
  bool help = false;
  std::optional<std::string> explain;         // key, section or "all"
  std::optional<std::string> verified;        // checkpoint, or directory of the run whose newest one it is, to verify
  std::optional<std::string> compare;         // with `plan`: the run.h5 to compare it with
  std::optional<std::string> resume;          // "auto" or the path of a checkpoint
  std::vector<std::string> kokkos_arguments;  // as given, for Kokkos::initialize

  /// Whether to answer on standard output and run no job.
  bool is_question() const { return check || plan || print || needs_no_deck(); }
  bool needs_no_deck() const { return version || show_config || help || explain || verified; }
};

/// Throws Failure(Exit::usage) with the fault and how the line should look.
CommandLine parse_command_line(int argc, const char* const* argv);

/// What --help prints: the usage, the options, the exit codes.
std::string help_text();

/// What --explain prints: for a key its type, default, legal values, unit and meaning; for a section or "all" a list.
/// Throws Failure(Exit::usage) with the nearest name if there is no such key or section.
std::string explain(std::string_view name);

}  // namespace tessera::config
