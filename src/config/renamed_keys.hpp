/// A small table of keys of earlier decks and their present spelling.
///
/// In a person's deck such a key is refused with the new spelling. Decks stored in files (checkpoints, run.h5,
/// experiment.h5) are translated, so that all can be read. A key that this build still has is not looked up here.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::config {

struct OldValue {
  std::vector<std::string> values;  // as TOML: one, or the elements of a list
  bool is_default = false;          // marked so in a resolved deck
};
/// The old keys that a deck gives, by name.
using OldValues = std::map<std::string, OldValue, std::less<>>;

struct NewSpelling {
  struct Assignment {
    std::string key;
    std::vector<std::string> values;  // as TOML; several: a list that only an experiment can sweep now
  };
  std::vector<Assignment> keys;  // empty: what the old keys said is always so now
};

/// Old keys that are read together.
struct RenamedKeys {
  std::vector<std::string_view> old;
  std::function<NewSpelling(const OldValues&)> now;  // from those that a deck gives
  std::vector<std::string_view> jobs = {};           // in whose stored decks they count; empty: in those of every job
};

/// The product's rows of the table.
std::vector<RenamedKeys> product_renamed_keys();

/// These, then those of the extension.
const std::vector<RenamedKeys>& renamed_keys();

/// nullptr if `key` never was one.
const RenamedKeys* find_renamed(std::string_view key);

/// "attention.kernel = \"flash1\"", line by line; lists become keys of the table `product`.
std::string text_of(const NewSpelling& spelling, std::string_view product = "experiment.product.");

/// A row of the table: another name for the same values.
RenamedKeys renamed(std::string_view old, std::string_view now);

/// attention.kernel for every combination of what earlier programs combined, each value as TOML.
NewSpelling attention_kernel(const std::vector<std::string>& implementations, const std::vector<std::string>& tuned,
                             const std::vector<std::string>& engines, const std::vector<std::string>& flash1_steps,
                             const std::vector<std::string>& flash2_steps);

/// The values of a key, or `otherwise` if the deck does not give it.
std::vector<std::string> values_of(const OldValues& old, std::string_view key, std::string_view otherwise);

}  // namespace tessera::config
