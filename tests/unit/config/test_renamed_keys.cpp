/// Old keys of the product: what they say now, refused where a person writes them and translated in stored decks.
#include "config/renamed_keys.hpp"

#include "config/command_line.hpp"
#include "config/keys.hpp"
#include "support.hpp"

namespace tessera::config {
namespace {

using testing::HasSubstr, testing::IsEmpty;

Settings stored(const std::string& text) { return parse_stored_deck(text, "stored").settings; }

TEST(RenamedKeys, a_stored_deck_says_the_kernel_that_ran) {
  for (const auto& [old, kernel] : {std::pair{"implementation = 'auto'  # default\ntuned = 'auto'  # default", "auto"},
                                    {"implementation = 'auto'\ntuned = false", "flash2"},
                                    {"implementation = 'auto'  # default\ntuned = false  # default", "auto"},
                                    {"tuned = true", "auto"},
                                    {"tuned = true\nengine = 'mma'", "mma"},
                                    {"implementation = 'flash2'\ntuned = true\nengine = 'wgmma'", "wgmma"},
                                    {"implementation = 'flash2'\ntuned = 'auto'\nflash2_steps = -1", "flash2"},
                                    {"implementation = 'flash2'\nflash2_steps = 0", "flash2/0"},
                                    {"implementation = 'flash1'\nflash1_steps = 0", "flash1"},
                                    {"implementation = 'flash1'\nflash1_steps = 4\ntuned = true", "flash1/4"},
                                    {"implementation = 'tiled'\nflash1_steps = 0", "tiled"},
                                    {"implementation = 'standard'", "standard"}}) {
    const Settings settings = stored(std::string("[precision]\ncompute = 'bf16'\n[attention]\n") + old + "\n");
    EXPECT_EQ(value_text(*find_key("attention.kernel"), settings), '"' + std::string(kernel) + '"') << old;
  }
  EXPECT_EQ(stored("parallel.all_reduce = 'ring'\n").parallel.transfers, Transfers::ring);
}

TEST(RenamedKeys, what_was_a_default_is_marked_as_one_and_nothing_is_dropped) {
  const Deck deck = parse_stored_deck("[attention]\ntuned = \"auto\"  # default\n", "stored");
  EXPECT_THAT(deck.resolved, HasSubstr("\nkernel = \"auto\"  # default\n"));
  EXPECT_THAT(deck.dropped, IsEmpty());
}

TEST(RenamedKeys, an_override_of_a_stored_deck_is_what_a_person_writes) {
  EXPECT_THAT(
      refusal(Exit::usage,
              [] { parse_stored_deck("attention.implementation = 'flash1'", "stored", {"attention.tuned=false"}); }),
      HasSubstr("command line  attention.tuned  is an old spelling  legal: attention.kernel = \"flash2\"\n"));
}

TEST(RenamedKeys, the_line_that_is_advised_is_accepted) {
  EXPECT_THAT(deck_refusal("train.steps = 1", {"attention.flash1_steps=3", "attention.query_tile=16"}),
              HasSubstr("legal: attention.kernel = \"flash1/3\"\nCorrect"));
  EXPECT_EQ(read("attention.kernel = \"flash1/3\"", {"attention.query_tile=16"}).attention.kernel,
            AttentionKernel::flash1_3);
  EXPECT_THAT(refusal(Exit::usage, [] { explain("attention.tuned"); }), HasSubstr("--explain attention.kernel"));
}

}  // namespace
}  // namespace tessera::config
