/// Gathers every fault of a deck, so that one run of --check shows them all.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

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
  bool empty() const { return faults_.empty(); }
  const std::vector<Fault>& all() const { return faults_; }

  /// Throws Failure(Exit::usage) with one line per fault, in the deck's order; `deck` is named in the first line.
  void throw_if_any(std::string_view deck);

 private:
  std::vector<Fault> faults_;
};

}  // namespace tessera::config
