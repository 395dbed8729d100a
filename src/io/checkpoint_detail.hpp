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

std::filesystem::path checkpoints_of(const std::filesystem::path& run_directory);
std::string step_name(std::int64_t step);

/// Of a folder of a step while it is written, or deleted: what a killed run may leave behind.
std::string temporary_name(std::int64_t step);
std::string dying_name(std::int64_t step);
bool is_temporary(const std::string& name);

/// The step of a folder named step_NNNNNNNN; empty for any other name.
std::optional<std::int64_t> step_of(const std::string& name);

/// Steps of the complete checkpoints in `folder`, ascending; none if the folder cannot be read.
std::vector<std::int64_t> steps_in(const std::filesystem::path& folder);

/// Runs `work` on every rank, and returns the result of each, by rank. Collective; no rank returns before all have
/// arrived.
///
/// Throws  the same Failure on all ranks if it failed on any, naming the first rank that failed: with the code of a
///         Failure, that of exhausted memory, or else Exit::files.
std::vector<std::string> together(const Peers& peers, const std::function<std::string()>& work);

/// XXH3 (64 bit) of a file's bytes, as `xxhsum -H3` prints it.
std::string checksum(const std::filesystem::path& path);

/// The state as attributes of an index's root. Optional attributes are omitted if empty.
void write_state(h5::Object& root, const CheckpointState& state);
CheckpointState read_state(const h5::Object& root);

}  // namespace tessera::io::detail
