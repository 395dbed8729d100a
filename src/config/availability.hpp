/// What a deck may say but this version or this build does not support: refused by name, never replaced silently.
///
/// Words of the deck's language that this version does not support are faults of the deck (exit 2). What the version
/// supports but the build lacks (CUDA, NCCL) is a fault of the environment (exit 3).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/settings.hpp"

namespace tessera::config {

/// The fault text if `word`, given for `key`, is not in this version; nothing if it is, or if it is not a word of the
/// key.
std::optional<std::string> missing_word(std::string_view key, std::string_view word);

/// Words of `key` that are not in this version, for --explain.
std::vector<std::string_view> missing_words(std::string_view key);

struct MissingCombination {
  std::string_view key;
  std::string wrong;
};
/// Values that are supported one by one, but not together.
std::vector<MissingCombination> missing_combinations(const Settings& settings);

/// What to write instead of attention.tuned = true if no such kernel can run.
std::string without_tuned(const Attention& attention);

struct BuildFeatures {
  bool cuda = false;
  bool nccl = false;
  std::string_view name = "this build";  // or "a build for CPUs", which --plan plans for
};

/// Throws Failure(Exit::environment), naming every key that needs what the build lacks.
void check_build(const Settings& settings, const BuildFeatures& build);

}  // namespace tessera::config
