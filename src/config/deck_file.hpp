/// The deck as a file: reading it, checking that it is text, and resolving its paths.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::config {

/// Throws Failure(Exit::usage): "deck  what is wrong".
[[noreturn]] void refuse_deck(std::string_view deck, std::string_view wrong);

/// The bytes of a deck, up to the limit that require_deck_text sets. Refuses a missing or unreadable file, or a folder.
std::string read_deck_file(const std::filesystem::path& file);

/// Refuses text that is not UTF-8, contains a NUL, or is longer than any deck.
void require_deck_text(std::string_view text, std::string_view name);

std::filesystem::path working_directory();

/// Whether a path begins with ~, which a shell would have replaced: bash leaves it in job.directory=~/run.
bool names_a_home(std::string_view text);

/// `text` as a path, absolute and normalised; a relative one starts at `folder`. An HDF5 dataset after the file name
/// (FILE.h5:/dataset) is kept unchanged; an empty text, and one that names_a_home(), stay as they are.
std::string resolved_path(const std::string& text, const std::filesystem::path& folder);

}  // namespace tessera::config
