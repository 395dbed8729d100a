/// A program without the laboratory: its words are refused by name, and what it has left in stored decks does no harm.
#include "config/extension.hpp"

#include "config/command_line.hpp"
#include "config/keys.hpp"
#include "support.hpp"

namespace tessera::config {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kLeftOutWords =
    "belongs to the laboratory, which this build was made without  legal: a build by scripts/build "
    "(CMake option TESSERA_ENABLE_LAB=ON)";

TEST(WithoutLab, its_jobs_sections_and_keys_are_refused_with_the_option_that_adds_them) {
  for (const auto& [deck, override_text, where] :
       {std::tuple{"[bench]\nwarmup = 2\n", "", "deck.toml:1:2  bench  "},
        {"bench.warmup = 2\n", "", "deck.toml:1:1  bench  "},
        {"experiment.rows.a.train.steps = 2\n", "", "deck.toml:1:1  experiment  "},
        {"job.kind = 'bench.step'\n", "", "deck.toml:1:12  job.kind  \"bench.step\" "},
        {"job.kind = 'train'\n", "job.kind=experiment", "command line  job.kind  \"experiment\" "},
        {"train.steps = 2\n", "bench.warmup=2", "command line  bench.warmup  "},
        {"train.steps = 2\n", "experiment.product={train={steps=[1]}}", "command line  experiment.product  "}}) {
    const std::vector<std::string> overrides(*override_text == '\0' ? 0 : 1, override_text);
    const std::string message = deck_refusal(deck, overrides);
    EXPECT_THAT(message, HasSubstr(std::string(where) + kLeftOutWords)) << deck;
    EXPECT_THAT(message, HasSubstr("1 fault in deck")) << deck;
  }
  for (const char* name : {"bench", "bench.warmup", "experiment"})
    EXPECT_THAT(refusal(Exit::usage, [&] { explain(name); }), HasSubstr("TESSERA_ENABLE_LAB=ON")) << name;
}

TEST(WithoutLab, other_unknown_words_are_refused_as_ever) {
  EXPECT_THAT(deck_refusal("benches.warmup = 2\n"), HasSubstr("unknown section"));
  EXPECT_THAT(deck_refusal("job.kind = 'benchmark'\n"), HasSubstr("is not a word of this key"));
}

TEST(WithoutLab, a_deck_that_a_run_has_stored_is_read_without_them) {
  const std::string stored = "[train]\nsteps = 7  # default\n\n[bench]\nwarmup = 5  # default\n";
  EXPECT_EQ(parse_stored_deck(stored, "stored").settings.train.steps, 7);
  EXPECT_THAT(deck_refusal(stored), HasSubstr("bench"));
  EXPECT_THAT(refusal(Exit::usage, [] { parse_stored_deck("[train]\nstpes = 7\n", "stored"); }), HasSubstr("stpes"));
}

TEST(Sections, are_values_at_their_defaults_until_they_are_set) {
  struct Section {
    int number = 3;
  };
  Settings a;
  EXPECT_EQ(a.section<Section>().number, 3);
  a.section<Section>().number = 4;
  const Settings b = a;
  a.section<Section>().number = 5;
  EXPECT_EQ(b.section<Section>().number, 4) << "a copy of its own";
  EXPECT_EQ(a.section<Section>().number, 5);
  EXPECT_EQ(Settings{}.section<Section>().number, 3);
}

}  // namespace
}  // namespace tessera::config
