/// data.path as a list of files: one path, or a pattern that several match.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera::data {

/// Whether `path` contains *, ? or [...] and no file has exactly that name.
bool is_pattern(const std::string& path);

/// The paths that `pattern` matches as in glob(3), except names that begin with a dot.
///
/// Order    by the bytes of the paths, whatever the locale.
/// Literal  leading folders that exist under the name they have in the pattern.
/// Throws   Failure(Exit::files): no match, or an unreadable folder, so that no file is silently omitted.
std::vector<std::string> matches_of(const std::string& pattern);

/// "runs/x.h5:/a/b" -> file and dataset; the dataset defaults to "tokens". Empty file: not an HDF5 path.
std::pair<std::string, std::string> split_hdf5_path(const std::string& path);

}  // namespace tessera::data
