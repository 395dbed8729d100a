/// Text helpers of the deck reader: UTF-8, TOML quoting, nearest name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::config {

/// Offset of the first byte that is not part of valid UTF-8 (RFC 3629: no overlong forms, no surrogates), if any.
std::optional<std::size_t> first_bad_utf8(std::string_view text);

/// `text` with each byte that is not part of valid UTF-8 as \xNN.
std::string as_utf8(std::string_view text);

/// `text` as a TOML basic string on one line: quotes, backslashes and control characters escaped.
std::string toml_string(std::string_view text);

/// `value` as a TOML float: the shortest digits that read back to the same double.
std::string toml_number(double value);

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate with the fewest edits to `name`; empty if none is near (more than a third of the letters differ).
std::string nearest(std::string_view name, const std::vector<std::string_view>& candidates);

}  // namespace tessera::config
