/// Arbitrary bytes: a deck is either read or refused with exit code 2. Seeded, so that a failure repeats.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "config/command_line.hpp"
#include "unit/config/support.hpp"

namespace tessera::config {
namespace {

/// Reads `text`; a refusal must be a usage failure, and the resolved form of an accepted deck must read back.
void read_or_refuse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    const Deck deck = parse_deck(text, "fuzz.toml", overrides);
    EXPECT_TRUE(are_same(parse_deck(deck.resolved, "again.toml").settings, deck.settings))
        << testing::PrintToString(text);
  } catch (const Failure& failure) {
    EXPECT_EQ(static_cast<int>(failure.code()), 2) << testing::PrintToString(text);
    EXPECT_STRNE(failure.what(), "");
  }
}

TEST(Fuzz, bytes) {
  std::mt19937_64 random(20240520);
  for (int round = 0; round < 3000; ++round) {
    std::string text(random() % 64, '\0');
    const unsigned range = round % 3 == 0 ? 256 : 128;  // all bytes, or ASCII, which passes the text check more often
    for (char& byte : text) byte = static_cast<char>(random() % range);
    read_or_refuse(text);
  }
}

TEST(Fuzz, fragments_of_toml) {
  const char* fragments[] = {
      "[",        "]",       "{",      "}",     "=",         ".",   ",",     "\n",    " ",
      "\"",       "'",       "\"\"\"", "#",     "[[",        "]]",  "train", "steps", "model",
      "d_model",  "1",       "-",      "1e999", "0x",        "nan", "inf",   "true",  "1979-05-27",
      "07:32:00", "\\u0000", "\\",     "size",  "\"small\"", "é",   "_",     "+",     "9223372036854775808",
      "path",     "\"a\""};
  std::mt19937_64 random(7);
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (auto n = random() % 16; n > 0; --n) text += fragments[random() % std::size(fragments)];
    read_or_refuse(text);
    read_or_refuse("train.steps = 100", {"train.steps=" + text, "generate.prompt=" + text, text});
  }
}

TEST(Fuzz, a_good_deck_with_a_few_bytes_changed) {
  std::ifstream stream(std::filesystem::path(TESSERA_SOURCE_DIR) / "input/quickstart.toml");
  const std::string good(std::istreambuf_iterator<char>(stream), {});
  ASSERT_GT(good.size(), 1000u);
  std::mt19937_64 random(11);
  for (int round = 0; round < 1000; ++round) {
    std::string text = good;
    for (int change = 0; change < 3; ++change) {
      const std::size_t at = random() % text.size();
      if (round % 2 == 0)
        text[at] = static_cast<char>(32 + random() % 95);
      else
        text.erase(at, 1 + random() % 5);
    }
    read_or_refuse(text);
  }
}

TEST(Fuzz, command_lines) {
  const char* pieces[] = {
      "--check", "--",        "-",          "-h",        "--resume",  "auto", "a.toml", "train.steps=5", "=",
      "[a]",     "--explain", "--kokkos-x", "--check=3", "--resume=", "-xyz", "[",      "\xFF"};
  std::mt19937_64 random(13);
  for (int round = 0; round < 3000; ++round) {
    std::vector<const char*> arguments = {"tessera"};
    for (auto n = random() % 6; n > 0; --n) arguments.push_back(pieces[random() % std::size(pieces)]);
    try {
      parse_command_line(static_cast<int>(arguments.size()), arguments.data());
    } catch (const Failure& failure) {
      EXPECT_EQ(static_cast<int>(failure.code()), 2);
    }
  }
}

}  // namespace
}  // namespace tessera::config
