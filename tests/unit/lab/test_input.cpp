/// The decks in input/: each can be read, and its resolved form reads back to the same settings.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "config/availability.hpp"
#include "errors.hpp"
#include "unit/config/support.hpp"

namespace tessera::config {
namespace {

namespace fs = std::filesystem;

std::set<fs::path> shipped_decks() {
  const std::set<fs::path> others{"results.toml", "compare.toml", "problems.toml", "solutions.toml"};  // figures
  std::set<fs::path> decks;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TESSERA_SOURCE_DIR) / "input")) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".toml" && !others.contains(name)) decks.insert(entry.path());
  }
  return decks;
}

std::string text_of(const fs::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool needs_cuda(const Settings& settings) {
  try {
    check_build(settings, {});
    return false;
  } catch (const Failure&) {
    return true;
  }
}

TEST(Input, every_shipped_deck_is_right_and_runs_on_a_cpu_build_or_says_that_it_does_not) {
  const auto decks = shipped_decks();
  EXPECT_GE(decks.size(), 15u);
  for (const fs::path& file : decks) {
    SCOPED_TRACE(file.string());
    Deck deck;
    ASSERT_NO_THROW(deck = load_deck(file));
    EXPECT_TRUE(are_same(parse_deck(deck.resolved, "resolved.toml").settings, deck.settings));
    EXPECT_NO_THROW(check_build(deck.settings, {.cuda = true, .nccl = true}));
    if (text_of(file).find("Needs a CUDA build") != std::string::npos) {
      EXPECT_TRUE(needs_cuda(deck.settings) ||
                  std::ranges::any_of(deck.rows, [](const DeckRow& row) { return needs_cuda(row.settings); }));
    } else {
      EXPECT_NO_THROW(check_build(deck.settings, {}));
    }
  }
}

TEST(Input, a_size_deck_has_the_size_it_is_named_after) {
  for (const char* name : {"small", "medium", "large", "xl", "2.7b", "8b"})
    EXPECT_EQ(
        load_deck(fs::path(TESSERA_SOURCE_DIR) / "input/sizes" / (std::string(name) + ".toml")).settings.model.size,
        name);
}

TEST(Input, the_quickstart_reads_the_text_that_is_fetched_beside_input) {
  const Settings settings = load_deck(fs::path(TESSERA_SOURCE_DIR) / "input/quickstart.toml").settings;
  EXPECT_EQ(settings.data.path, (fs::path(TESSERA_SOURCE_DIR) / "data/text.txt").lexically_normal().string());
}

}  // namespace
}  // namespace tessera::config
