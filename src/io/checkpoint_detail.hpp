/// Shared by writing, reading and rewinding checkpoints: names, the state as attributes, checksums, collective failure.
/// Only for src/io/checkpoint*.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.hpp"
#include "io/h5.hpp"

namespace tessera::io::detail {

constexpr std::int64_t kVersion = 1;
constexpr std::string_view kFormat = "tessera checkpoint";

std::string step_name(std::int64_t step);

/// Temporary name of a step's folder while it is written or deleted; a killed run may leave it behind.
std::string temporary_name(std::int64_t step);
std::string dying_name(std::int64_t step);
/// The step's folder whose temporary folder has that name; empty for any other name.
std::optional<std::string> home_of_temporary(const std::string& name);

/// The step of a folder named step_NNNNNNNN; empty for any other name.
std::optional<std::int64_t> step_of(const std::string& name);

/// Steps of the complete checkpoints in `folder`, ascending; none if it cannot be read. A step's folder without an
/// index.h5 is no checkpoint: it holds files that dismantle() left.
std::vector<std::int64_t> steps_in(const std::filesystem::path& folder);

/// The entries of `folder`, sorted by name; none if there is no such folder.
///
/// Throws  Failure(Exit::files) if it cannot be read; `doing` names the purpose.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder, std::string_view doing);

/// Deletes a checkpoint's files in `folder`, then `folder` if empty; if `folder` is a link, only the link. Other files
/// are the user's: they move to `home`, created if needed (it may be `folder`); a file whose name is taken there stays.
/// Returns where they are.
///
/// Throws  Failure(Exit::files) if something cannot be deleted or moved.
std::vector<std::filesystem::path> dismantle(const std::filesystem::path& folder, const std::filesystem::path& home);

bool holds_files_of_checkpoint(const std::filesystem::path& folder);

/// Peers::all_gather of `work`. A failure names the rank; its code is a Failure's own, or out of memory, else
/// Exit::files.
std::vector<std::string> all_gather(const Peers& peers, const Peers::Work& work);

/// After that many bytes a long write or read reports progress.
inline constexpr std::int64_t kProgressBytes = std::int64_t{256} << 20;

/// XXH3 (64 bit) of a file's bytes, as `xxhsum -H3` prints it.
std::string checksum(
    const std::filesystem::path& path, const std::function<void()>& progress = [] {});

/// The checksum of index.h5 that index.xxh3 holds.
std::string listed_checksum(const std::filesystem::path& step_folder);

/// The state as attributes of an index's root. Optional attributes are omitted if empty.
///
/// Throws  std::invalid_argument if read_state() finds a list of numbers that is something else.
void write_state(h5::Object& root, const CheckpointState& state);
CheckpointState read_state(const h5::Object& root);

}  // namespace tessera::io::detail
