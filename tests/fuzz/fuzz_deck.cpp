/// Decks of every job: a deck's text, and after each NUL an override. Read as a person's and as one stored in a file.
#include <string>
#include <vector>

#include "config/deck.hpp"
#include "config/extension.hpp"
#include "lab/kinds.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace tessera;

/// Whether all keys, and the tables of rows, say the same.
bool are_same(const config::Settings& a, const config::Settings& b) {
  return a.model.size == b.model.size && config::differences(a, b).empty() &&
         config::extension().tables_text(a) == config::extension().tables_text(b);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool has_joined = (config::extend(lab::lab_extension()), true);
  static_cast<void>(has_joined);
  std::vector<std::string> parts(1);
  for (const char c : fuzz::text_of(data, size)) {
    c == '\0' ? parts.emplace_back() : parts.back() += c;
  }
  const std::vector<std::string> overrides(parts.begin() + 1, parts.end());
  fuzz::take_or_refuse({Exit::usage}, [&] {
    const config::Deck deck = config::parse_deck(parts.front(), "fuzz.toml", overrides, "/");
    const config::Deck again = config::parse_deck(deck.resolved, "again.toml", {}, "/");
    fuzz::require(are_same(deck.settings, again.settings), "reads back to other settings: " + deck.resolved);
    if (deck.rows.empty()) return;
    const config::DeckRow& row = deck.rows.back();
    fuzz::require(are_same(config::parse_deck(row.resolved, "row.toml", {}, "/").settings, row.settings),
                  "a row reads back to other settings: " + row.resolved);
  });
  fuzz::take_or_refuse({Exit::usage}, [&] { config::parse_stored_deck(parts.front(), "stored.toml", overrides); });
  return 0;
}
