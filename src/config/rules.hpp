/// Rules between keys: named model sizes, and contradictions between values that are legal one by one.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include "config/faults.hpp"
#include "config/settings.hpp"

namespace tessera::config {

// Who gave a key its value. fallback: settings.hpp; row: the experiment that the deck is a row of.
enum class Origin { fallback, size, deck, row, command_line };

struct Source {
  Origin origin = Origin::fallback;
  Where where;
  bool is_faulty = false;
};
using Sources = std::map<std::string_view, Source>;  // by key name; keys left at their defaults are absent

/// Gathers faults of the rules between keys.
class Rules {
 public:
  Rules(const Sources& sources, std::string_view deck, Faults& faults)
      : sources_(sources), deck_(deck), faults_(faults) {}

  /// `keys` are those the rule reads; the fault is reported for the first, at the first that was given.
  void require(bool holds, std::initializer_list<std::string_view> keys, std::string wrong, std::string legal);

 private:
  const Sources& sources_;
  std::string deck_;
  Faults& faults_;
};

/// Sets the numbers that `model.size` names, unless the deck does; a different number there makes the size "custom".
void apply_size(Settings& settings, Sources& sources);

/// generate.prompt and generate.prompts exclude each other: one on the command line replaces the deck's other one.
void apply_prompts(Settings& settings, Sources& sources);

/// Adds a fault for a file that a person names and the job neither reads nor writes. Not for rows of an experiment,
/// which share such keys, nor for decks that runs stored.
void check_named_files(const Settings& settings, const Sources& sources, std::string_view deck, Faults& faults);

/// Adds a fault for each contradiction. Rules on a key that is already faulty are skipped; `deck` is reported as the
/// position if none of the keys was given.
void check_rules(const Settings& settings, const Sources& sources, std::string_view deck, Faults& faults);

}  // namespace tessera::config
