/// Plain files and folders for src/io. Every failure names the path and what to do next.
///
/// Throws  tessera::Failure(Exit::files) built from errno.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "errors.hpp"

namespace tessera::io {

/// "PATH: DOING failed: No space left on device. Free some space there, ..." for the errno `error`.
Failure file_failure(const std::filesystem::path&, std::string_view doing, int error);
/// The last sentence of such a message: what the user can do about the errno `error`.
std::string next_action(int error);

void sync_file(const std::filesystem::path&);    // its bytes are on the disk
void sync_folder(const std::filesystem::path&);  // its names are on the disk
void make_folder(const std::filesystem::path&);  // with its parents; an existing one is fine

/// Renames `from` to `to` within one folder, replacing a file there in one step, and syncs the folder.
void publish(const std::filesystem::path& from, const std::filesystem::path& to);

std::string read_text(const std::filesystem::path&);
/// Writes `path`.tmp, syncs and publishes it: a reader sees the old text or the new one.
void write_text(const std::filesystem::path&, std::string_view text);

}  // namespace tessera::io
