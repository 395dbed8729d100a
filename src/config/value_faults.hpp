/// What a deck's reader says of a value that is not the key's: what it is, what is legal, how to quote it.
#pragma once

#include <optional>
#include <string>

#include "config/faults.hpp"
#include "config/keys.hpp"
#include "config/toml.hpp"

namespace tessera::config {

/// "the integer 3", "a list".
std::string describe(const toml::node& node);

/// The legal values, with their type.
std::string typed_legal_text(const Key& key);

/// How an override writes text that would be read as something else.
std::string quoting_advice(const Key& key);

/// What is wrong with the right side of an override that TOML refuses; nothing if it is a bare string. `key`: nullptr
/// for a table.
std::optional<Fault> override_fault(const Key* key, const std::string& right, const std::string& error);

}  // namespace tessera::config
