/// Helpers of the config tests: read a deck from text, or get the message that refuses it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/deck.hpp"
#include "config/extension.hpp"
#include "config/keys.hpp"
#include "errors.hpp"

namespace tessera::config {

/// The message of the Failure that `action` throws, which must carry `code`; otherwise "" and a test failure.
template <class Action>
std::string refusal(Exit code, const Action& action) {
  try {
    action();
  } catch (const Failure& failure) {
    EXPECT_EQ(static_cast<int>(failure.code()), static_cast<int>(code)) << failure.what();
    return failure.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// The message that refuses the deck `text`, named deck.toml. "[train]" alone is a deck without keys.
inline std::string deck_refusal(std::string_view text, const std::vector<std::string>& overrides = {}) {
  return refusal(Exit::usage, [&] { parse_deck(text, "deck.toml", overrides); });
}

inline Settings read(std::string_view text, const std::vector<std::string>& overrides = {}) {
  return parse_deck(text, "deck.toml", overrides).settings;
}

/// Whether all keys, and the tables of rows, say the same.
inline bool are_same(const Settings& a, const Settings& b) {
  const auto tables = extension().tables_text;
  return a.model.size == b.model.size && differences(a, b).empty() && (tables == nullptr || tables(a) == tables(b));
}

inline int count(std::string_view text, std::string_view part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

}  // namespace tessera::config
