/// Every way in which the values of [bench] can be wrong: position, key, message and remedy.
#include <ostream>
#include <string>
#include <vector>

#include "config/keys.hpp"
#include "unit/config/support.hpp"

namespace tessera::config {
namespace {

using testing::HasSubstr;

struct Case {
  const char* title;
  const char* deck;
  const char* fault;  // beginning of a line of the message
};

void PrintTo(const Case& item, std::ostream* out) { *out << item.title; }

class LabFault : public testing::TestWithParam<Case> {};

TEST_P(LabFault, is_told_with_its_place_and_is_the_only_one) {
  const std::string message = deck_refusal(GetParam().deck);
  EXPECT_THAT(message, HasSubstr(std::string("\n") + GetParam().fault));
  EXPECT_THAT(message, HasSubstr("1 fault in deck deck.toml:\n"));
  EXPECT_EQ(count(message, "\n"), 2) << message;
}

const Case kCases[] = {
    {"a_list", "bench.length = [64, 128]\n", "deck.toml:1:16  bench.length  "},
    {"out_of_range", "bench.head_width = 4\n", "deck.toml:1:20  bench.head_width  4 is out of"},
    {"bad_word", "bench.dtype = 'fp8'\n", "deck.toml:1:15  bench.dtype  \"fp8\" is not a word"},
    {"wrong_element", "experiment.ranks = [1, 'a']\n",
     "deck.toml:1:20  experiment.ranks  element 2 is the string \"a\"  legal: list"},
    {"element_out_of_range", "experiment.ranks = [1, 0]\n", "deck.toml:1:20  experiment.ranks  element 2: 0 is out of"},
    {"empty_list", "experiment.ranks = []\n", "deck.toml:1:20  experiment.ranks  is an empty list"},
    {"bench_batch_and_tokens", "bench = {batch = 2, tokens = 16384}\n",
     "deck.toml:1:18  bench.batch  would be ignored: bench.tokens is given  legal: one of the two"},
    {"bench_heads_and_channels", "bench = {channels = 2048, heads = 16}\n",
     "deck.toml:1:35  bench.heads  would be ignored: bench.channels is given"},
    {"strategies_of_forward_passes", "job.kind = 'bench.strategies'\nbench.phase = 'forward'\n",
     "deck.toml:2:15  bench.phase  would be ignored: job.kind is \"bench.strategies\"  legal: job.kind = "
     "\"bench.step\""},
    {"forward_passes_without_shards",
     "job.kind = 'bench.step'\nbench.phase = 'forward'\nparallel.shard = 'optimizer'\n",
     "deck.toml:3:18  parallel.shard  would be ignored: bench.phase is \"forward\"  legal: \"none\", or bench.phase = "
     "\"step\""},
    {"unknown_operation", "bench.operation = 'all_to_all'\n", "deck.toml:1:19  bench.operation  "},
    {"no_bytes", "bench.mbyte = 0\n", "deck.toml:1:15  bench.mbyte  "},
};

INSTANTIATE_TEST_SUITE_P(Deck, LabFault, testing::ValuesIn(kCases), [](const auto& info) { return info.param.title; });

TEST(LabFaults, of_overrides_that_begin_like_lists_and_tables) {
  const auto refused = [](const std::string& text) { return deck_refusal("train.steps = 9", {text}); };
  EXPECT_THAT(refused("experiment.ranks=[1, "), HasSubstr("command line  experiment.ranks  is not TOML: "));
  EXPECT_THAT(refused("experiment.only=[small]"), HasSubstr("; quoted for the shell: 'experiment.only=[\"...\"]'"));
  EXPECT_THAT(refused("experiment.product={model.size=[small]}"),
              HasSubstr("command line  experiment.product  is not TOML: "));
}

TEST(LabKeys, are_reached_by_slips_and_by_right_words_in_wrong_sections) {
  EXPECT_EQ(nearest_key("model.heads"), "bench.heads");
  for (const std::string_view name : {"bench.warmup", "bench.repeats", "bench.memory_limit_gib"})
    EXPECT_NE(find_key(name), nullptr) << name;
}

TEST(LabKeys, a_named_kernel_goes_with_the_number_format_of_the_benchmark) {
  const std::string_view named = "attention.kernel = 'wgmma'\n";
  EXPECT_THAT(deck_refusal(std::string(named)), HasSubstr("attention.kernel"));
  EXPECT_NO_THROW(read("job.kind = 'bench.attention'\nbench.dtype = 'bf16'\n" + std::string(named)));
}

}  // namespace
}  // namespace tessera::config
