/// Reads an input deck (TOML) into Settings: defaults < deck < overrides of the command line.
///
/// Opens no file but the deck. All faults are gathered and thrown together, as one Failure(Exit::usage), one line each:
/// `file:line:column  section.key  what is wrong  what is legal  nearest known key`. A deck that is missing, a folder,
/// unreadable, binary, empty or not TOML is the same kind of failure.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys.hpp"  // differences
#include "config/settings.hpp"

namespace tessera::config {

/// A row that tables of a deck describe (row_tables.hpp), as a deck of its own.
struct DeckRow {
  std::string name;                          // fit for a file's name
  std::map<std::string, std::string> given;  // what the tables set for this row: TOML by key
  Settings settings;                         // job.directory is rows/NNNN_<name> in the deck's
  std::string resolved;                      // as of any deck
  bool is_chosen = true;                     // whether it runs
};

struct Deck {
  Settings settings;           // every path in it is absolute and normalised
  std::string resolved;        // TOML of every key, defaults marked by a comment; reads back to equal settings
  std::filesystem::path path;  // of the deck as it was named
  std::vector<DeckRow> rows;   // if it describes some; `resolved` then holds the given keys only
  std::vector<std::string> dropped = {};  // of a stored deck, keys without a successor: "bench.lengths = [64, 128]"
};

/// The folder of a row in the `rows` of its deck: "0003_flash2_4096". Rows are counted from 1.
std::string row_folder(std::int64_t number, std::string_view name);

/// `overrides` are `section.key=value`, the value in TOML. If it is not TOML it is a bare string, unless it begins with
/// a quote or, for keys that do not take any text, with a bracket: then TOML's fault is reported. The last of several
/// for a key wins. Paths in the deck are relative to its folder, in overrides to the current directory. Every row of
/// the deck is read as a deck, too, and its faults are thrown with the others. If rows take a key from lists, an
/// override replaces these by a list or one value; an override of any other key that a row sets is refused.
Deck load_deck(const std::filesystem::path& file, const std::vector<std::string>& overrides = {});

/// The same from text. `name` is used in messages, its stem in the default of job.directory; relative paths in the text
/// start at `folder` (empty: the current directory).
Deck parse_deck(std::string_view text, std::string_view name, const std::vector<std::string>& overrides = {},
                const std::filesystem::path& folder = {});

/// The same for the resolved deck stored in a run's files. Keys of earlier programs are translated (renamed_keys.hpp).
/// A build without the laboratory ignores the laboratory's keys, which no training depends on.
Deck parse_stored_deck(std::string_view text, std::string_view name, const std::vector<std::string>& overrides = {});

}  // namespace tessera::config
