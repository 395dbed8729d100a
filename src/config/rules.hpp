/// What keys demand of each other: named model sizes, and contradictions between values that are legal one by one.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "config/faults.hpp"
#include "config/settings.hpp"

namespace tessera::config {

enum class Origin { fallback, size, deck, command_line };  // who gave a key its value; fallback: settings.hpp

struct Source {
  Origin origin = Origin::fallback;
  Where where;
  bool is_faulty = false;
};
using Sources = std::map<std::string_view, Source>;  // by key name; keys that nobody gave are absent

/// Fills what `model.size` names and the deck left out; a number given otherwise wins and turns the size into "custom".
void apply_size(Settings& settings, Sources& sources);

/// The same model with the numbers of another named size (one of the words of model.size but "custom").
Model with_size(Model model, std::string_view name);

/// Adds a fault for each contradiction. Rules on a key that is faulty already are skipped; `deck` stands in for the
/// position where none of the keys was given.
void check_rules(const Settings& settings, const Sources& sources, std::string_view deck, Faults& faults);

}  // namespace tessera::config
