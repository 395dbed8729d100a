/// Every way in which the values of [bench] can be wrong: position, key, message and remedy.
#include <ostream>
#include <string>
#include <vector>

#include "config/availability.hpp"
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
    {"wrong_element", "bench.lengths = [64, 'a']\n",
     "deck.toml:1:17  bench.lengths  element 2 is the string \"a\"  legal: list"},
    {"element_out_of_range", "bench.head_widths = [64, 4]\n",
     "deck.toml:1:21  bench.head_widths  element 2: 4 is out of"},
    {"empty_list", "bench.lengths = []\n", "deck.toml:1:17  bench.lengths  is an empty list"},
    {"bad_word_in_list", "bench.dtypes = ['fp32', 'fp8']\n", "deck.toml:1:16  bench.dtypes  \"fp8\" is not a word"},
    {"bench_steps_without_flash1", "bench.flash1_steps = [0, 1]\n",
     "deck.toml:1:22  bench.flash1_steps  would be ignored: bench.implementations has no flash1"},
    {"bench_steps_without_portable_rows", "bench = {flash2_steps = [0], tuned = [true]}\n",
     "deck.toml:1:25  bench.flash2_steps  would be ignored: there are no rows of the portable flash2"},
    {"bench_engines_without_tuned_rows", "bench.engines = ['mma']\n",
     "deck.toml:1:17  bench.engines  would be ignored: bench.tuned has no true in it  legal: bench.tuned = [true]"},
    {"bench_order_without_tuned_rows", "bench.tuned = [false]\nbench.deterministic = [true, false]\n",
     "deck.toml:2:23  bench.deterministic  would be ignored: bench.tuned has no true in it"},
    {"bench_batch_and_tokens", "bench = {batch = 2, tokens = 16384}\n",
     "deck.toml:1:18  bench.batch  would be ignored: bench.tokens is given  legal: one of the two"},
    {"bench_heads_and_channels", "bench = {channels = 2048, heads = 16}\n",
     "deck.toml:1:35  bench.heads  would be ignored: bench.channels is given"},
    {"strategies_and_an_order", "job.kind = 'bench.strategies'\nparallel.gradient_sync = 'flat'\n",
     "deck.toml:2:26  parallel.gradient_sync  would be ignored: job.kind is \"bench.strategies\"  legal: "
     "bench.strategies names what is timed"},
    {"strategies_and_a_stage", "job.kind = 'bench.strategies'\nparallel.shard = 'optimizer'\n",
     "deck.toml:2:18  parallel.shard  would be ignored: job.kind is \"bench.strategies\""},
    {"forward_passes_without_shards",
     "job.kind = 'bench.step'\nbench.phase = 'forward'\nparallel.shard = 'optimizer'\n",
     "deck.toml:3:18  parallel.shard  would be ignored: bench.phase is \"forward\"  legal: \"none\", or bench.phase = "
     "\"step\""},
    {"strategies_without_their_variants", "job.kind = 'bench.strategies'\nbench.variants = ['fused']\n",
     "deck.toml:2:18  bench.variants  would be ignored: job.kind is \"bench.strategies\"  legal: train.graph"},
    {"strategies_without_parameters",
     "job.kind = 'bench.strategies'\nparallel.prefetch_blocks = 2\nbench.strategies = ['gradients']\n",
     "deck.toml:2:28  parallel.prefetch_blocks  would be ignored: bench.strategies has no \"parameters\""},
    {"strategies_without_buckets",
     "job.kind = 'bench.strategies'\nparallel.bucket_mbyte = 2\nbench.strategies = ['flat']\n",
     "deck.toml:2:25  parallel.bucket_mbyte  would be ignored: bench.strategies has no \"bucket\""},
    {"unknown_operation", "bench.operations = ['all_to_all']\n", "deck.toml:1:20  bench.operations  "},
    {"unknown_strategy", "bench.strategies = ['none']\n", "deck.toml:1:20  bench.strategies  "},
    {"no_bytes", "bench.mbytes = [0]\n", "deck.toml:1:16  bench.mbytes  "},
    {"offloaded_parameters_of_other_strategies",
     "job.kind = 'bench.strategies'\nparallel.offload = 'parameters'\nbench.strategies = ['bucket', 'parameters']\n",
     "deck.toml:2:20  parallel.offload  \"parameters\" streams the units that parallel.shard = \"parameters\" gathers"},
};

INSTANTIATE_TEST_SUITE_P(Deck, LabFault, testing::ValuesIn(kCases), [](const auto& info) { return info.param.title; });

TEST(LabFaults, of_overrides_that_begin_like_lists_and_tables) {
  const auto refused = [](const std::string& text) { return deck_refusal("train.steps = 9", {text}); };
  EXPECT_THAT(refused("bench.lengths=[64, "), HasSubstr("command line  bench.lengths  is not TOML: "));
  EXPECT_THAT(refused("bench.dtypes=[bf16]"), HasSubstr("; quoted for the shell: 'bench.dtypes=[\"...\"]'"));
  EXPECT_THAT(refused("experiment.product={model.size=[small]}"),
              HasSubstr("command line  experiment.product  is not TOML: "));
}

TEST(LabKeys, are_reached_by_slips_and_by_right_words_in_wrong_sections) {
  EXPECT_EQ(nearest_key("model.heads"), "bench.heads");
  for (const std::string_view name : {"bench.warmup", "bench.repeats", "bench.memory_limit_gib"})
    EXPECT_NE(find_key(name), nullptr) << name;
}

TEST(LabKeys, what_needs_a_gpu_is_refused_by_a_cpu_build_with_the_way_out) {
  for (const auto& [text, way_out] : {std::pair{"bench.flash1_steps=[0, 5]", "bench.flash1_steps = [0, 1, 2, 3, 4]"},
                                      {"bench.tuned=[false, true]", "bench.tuned = [false]"},
                                      {"bench.variants=['plain']", "bench.variants = [\"deck\"]"},
                                      {"bench.variants=['graph']", "bench.variants = [\"deck\"]"}}) {
    const Settings settings = read("bench.implementations = ['flash1', 'flash2']", {text});
    EXPECT_THAT(refusal(Exit::environment, [&] { check_build(settings, {}); }), HasSubstr(way_out));
    EXPECT_NO_THROW(check_build(settings, {.cuda = true, .nccl = true})) << text;
  }
}

}  // namespace
}  // namespace tessera::config
