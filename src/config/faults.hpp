/// Gathers every fault of a deck, so that one run of --check shows them all.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys.hpp"

namespace tessera::config {

struct Where {
  std::string text;        // "file:line:column" or "command line"
  std::uint32_t line = 0;  // in the deck, from 1; 0: the deck as a whole
  std::uint32_t column = 0;
};
inline const Where kCommandLine{"command line", std::numeric_limits<std::uint32_t>::max(), 0};  // listed last

struct Fault {
  Where where;
  std::string key;      // dotted name; may be empty
  std::string wrong;    // what is wrong
  std::string legal;    // what is legal; may be empty
  std::string nearest;  // nearest known name; may be empty
};

/// "where  key  what is wrong  what is legal  nearest known key" on one line.
std::string line(const Fault& fault);

class Faults {
 public:
  void add(Fault fault) { faults_.push_back(std::move(fault)); }
  const std::vector<Fault>& all() const { return faults_; }

  /// Throws Failure(Exit::usage) with one line per fault, in the deck's order; `deck` is named in the first line.
  void throw_if_any(std::string_view deck);

 private:
  std::vector<Fault> faults_;
};

// What is wrong with a value that is not the key's, and what is legal.

/// The legal values, with their type.
std::string typed_legal_text(const Key& key);

/// How to write text in an override that would otherwise be read as something else.
std::string quoting_advice(const Key& key);

/// What is wrong with the right side of an override that TOML refuses; nothing if it is a bare string. `key`: nullptr
/// for a table.
std::optional<Fault> override_fault(const Key* key, const std::string& right, const std::string& error);

}  // namespace tessera::config
