#include "lab/experiment_rows.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "lab/bench_keys.hpp"
#include "lab/kinds.hpp"
#include "unit/config/support.hpp"

namespace tessera::lab {
namespace {

using namespace config;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr std::string_view kDeck = R"(
job = {kind = "experiment", directory = "out"}
[experiment]
job = "bench.attention"
record = ["forward_ms", "steps/loss:last"]
[experiment.product]
bench.length = [256, 1024]
precision.compute = ["fp32", "bf16"]
[experiment.rows.zeta]
bench.warmup = 1
[experiment.rows.alpha]
bench.warmup = 2
product.bench.heads = [1, 2, 3]
[experiment.when_quick]
bench.repeats = 3
product.bench.length = [128]
[bench]
repeats = 20
)";

std::vector<std::string> names(const Deck& deck) {
  std::vector<std::string> all;
  for (const DeckRow& row : deck.rows) all.push_back(row.name);
  return all;
}

TEST(Experiment, rows_are_variations_times_products_in_the_order_of_the_deck) {
  const Deck deck = parse_deck(kDeck, "deck.toml");
  ASSERT_EQ(deck.rows.size(), 4u + 12u);
  EXPECT_EQ(deck.rows[0].name, "zeta_256_fp32");
  EXPECT_EQ(deck.rows[3].name, "zeta_1024_bf16");
  EXPECT_EQ(deck.rows[4].name, "alpha_256_fp32_1");
  EXPECT_EQ(deck.rows[15].name, "alpha_1024_bf16_3");
  EXPECT_THAT(varied_keys(deck.settings.section<Experiment>()),
              ElementsAre("bench.warmup", "bench.length", "precision.compute", "bench.heads"));
}

TEST(Experiment, a_row_is_a_deck_of_its_own) {
  const DeckRow row = parse_deck(kDeck, "deck.toml").rows[15];
  EXPECT_EQ(row.settings.job.kind, kBenchAttention);
  EXPECT_THAT(row.settings.job.directory, testing::EndsWith("out/rows/0016_alpha_1024_bf16_3"));
  EXPECT_EQ(row.settings.section<Bench>().length, 1024);
  EXPECT_EQ(row.settings.section<Bench>().heads, 3);
  EXPECT_EQ(row.settings.section<Bench>().warmup, 2);
  EXPECT_EQ(row.settings.section<Bench>().repeats, 20);
  EXPECT_EQ(row.settings.precision.compute, Precision::bf16);
  EXPECT_TRUE(row.settings.section<Experiment>() == Experiment{});
  EXPECT_TRUE(are_same(parse_deck(row.resolved, "resolved.toml").settings, row.settings));
  EXPECT_THAT(row.resolved, HasSubstr("heads = 3  # of this row\n"));
}

TEST(Experiment, a_row_may_be_another_job) {
  const Deck deck = parse_deck(
      "job.kind = 'experiment'\n[experiment]\njob = 'bench.kernels'\n[experiment.rows.own]\njob.kind = "
      "'bench.attention'\n[experiment.rows.common]\n",
      "deck.toml");
  ASSERT_EQ(deck.rows.size(), 2u);
  EXPECT_EQ(deck.rows[0].settings.job.kind, kBenchAttention);
  EXPECT_EQ(deck.rows[1].settings.job.kind, kBenchKernels);
  EXPECT_TRUE(are_same(parse_deck(deck.rows[0].resolved, "resolved.toml").settings, deck.rows[0].settings));
}

TEST(Experiment, the_resolved_deck_reads_back) {
  const Deck deck = parse_deck(kDeck, "deck.toml");
  const Deck again = parse_deck(deck.resolved, "deck.toml");
  EXPECT_TRUE(are_same(again.settings, deck.settings));
  EXPECT_EQ(names(again), names(deck));
  for (std::size_t i = 0; i < deck.rows.size(); ++i)
    EXPECT_TRUE(are_same(again.rows[i].settings, deck.rows[i].settings));
}

TEST(Experiment, where_results_go_and_who_gave_a_value_is_not_what_is_computed) {
  const auto computed = [](const std::vector<std::string>& overrides) {
    return what_is_computed(parse_deck(kDeck, "deck.toml", overrides).rows.front().resolved);
  };
  const std::string same = computed({});
  EXPECT_THAT(same, HasSubstr("bench.repeats = 20\n"));
  EXPECT_EQ(computed({"job.directory=elsewhere", "job.progress=line"}), same);
  EXPECT_EQ(computed({"bench.repeats=20", "job.overwrite=true"}), same);
  EXPECT_NE(computed({"bench.repeats=21"}), same);
  EXPECT_NE(computed({"job.seed=2"}), same);
  EXPECT_EQ(what_is_computed("[attention]\nimplementation = \"flash1\"\nflash1_steps = 3\n"),
            what_is_computed("[attention]\nkernel = \"flash1/3\"\n"));
}

TEST(Experiment, quick_sets_keys_and_replaces_lists) {
  const Deck deck = parse_deck(kDeck, "deck.toml", {"experiment.quick=true"});
  ASSERT_EQ(deck.rows.size(), 2u + 6u);
  for (const DeckRow& row : deck.rows) {
    EXPECT_EQ(row.settings.section<Bench>().length, 128);
    EXPECT_EQ(row.settings.section<Bench>().repeats, 3);
  }
}

TEST(Experiment, an_empty_list_of_quick_leaves_rows_out) {
  const std::string deck =
      "job.kind = 'experiment'\n[experiment.rows.here.product]\nbench.heads = [1, 2]\n[experiment.rows.gpu.product]\n"
      "attention.deterministic = [true]\n[experiment.when_quick]\nproduct.attention.deterministic = []\n";
  EXPECT_THAT(names(parse_deck(deck, "deck.toml")), ElementsAre("here_1", "here_2", "gpu_true"));
  const Deck quick = parse_deck(deck, "deck.toml", {"experiment.quick=true"});
  EXPECT_THAT(names(quick), ElementsAre("here_1", "here_2"));
  EXPECT_EQ(parse_deck(quick.resolved, "resolved.toml").rows.size(), 2u);
}

TEST(Experiment, the_command_line_wins_over_the_base_and_over_when_quick) {
  for (const DeckRow& row : parse_deck(kDeck, "deck.toml", {"experiment.quick=true", "bench.repeats=5"}).rows)
    EXPECT_EQ(row.settings.section<Bench>().repeats, 5);
}

TEST(Experiment, lists_are_replaced_on_the_command_line) {
  const Deck deck = parse_deck(kDeck, "deck.toml", {"experiment.product={bench={length=[8], heads=[4]}}"});
  EXPECT_THAT(names(deck), ElementsAre("zeta_8_fp32", "zeta_8_bf16", "alpha_8_fp32_4", "alpha_8_bf16_4"));
}

TEST(Experiment, a_key_that_rows_take_from_lists_takes_a_list_or_a_value_on_the_command_line) {
  EXPECT_THAT(names(parse_deck(kDeck, "deck.toml", {"precision.compute=fp16", "bench.heads=[4, 5]", "bench.length=8"})),
              ElementsAre("zeta_8_fp16", "alpha_8_fp16_4", "alpha_8_fp16_5"));
  const Deck deck = parse_deck(kDeck, "deck.toml", {"precision.compute=fp16", "bench.length=8", "bench.heads=7"});
  EXPECT_EQ(deck.rows[0].settings.section<Bench>().heads, 7) << "zeta, which takes it from no list";
  EXPECT_THAT(names(parse_deck(kDeck, "deck.toml", {"experiment.quick=true", "bench.length=[8, 16]", "bench.heads=1"})),
              ElementsAre("zeta_8_fp32", "zeta_8_bf16", "zeta_16_fp32", "zeta_16_bf16", "alpha_8_fp32_1",
                          "alpha_8_bf16_1", "alpha_16_fp32_1", "alpha_16_bf16_1"));
  EXPECT_THAT(names(parse_deck(kDeck, "deck.toml", {"bench.length=[8, 16]", "bench.heads=1", "bench.length=[32]"})),
              ElementsAre("zeta_32_fp32", "zeta_32_bf16", "alpha_32_fp32_1", "alpha_32_bf16_1"))
      << "the later wins";
  const Deck again = parse_deck(deck.resolved, "deck.toml");
  EXPECT_EQ(names(again), names(deck));
  EXPECT_EQ(again.rows[0].settings.section<Bench>().heads, 7);
}

TEST(Experiment, a_path_of_the_command_line_is_relative_to_the_current_directory) {
  constexpr std::string_view kPaths =
      "job.kind = 'experiment'\ndata.source = 'text'\nexperiment.product.data.path = ['a.txt', 'b.txt']\n";
  const auto path = [&](const std::vector<std::string>& overrides) {
    return parse_deck(kPaths, "deck.toml", overrides, "/decks").rows.front().settings.data.path;
  };
  EXPECT_EQ(path({}), "/decks/a.txt");
  EXPECT_EQ(path({"data.path=c.txt"}), (std::filesystem::current_path() / "c.txt").string());
  EXPECT_EQ(path({"data.path=['d.txt']"}), (std::filesystem::current_path() / "d.txt").string());
}

TEST(ExperimentFaults, a_list_is_for_keys_that_rows_take_from_lists) {
  EXPECT_THAT(deck_refusal(kDeck, {"bench.batch=[1, 2]"}),
              HasSubstr("command line  bench.batch  is a list  legal: integer, 1 to 1048576; a list is for a key of an "
                        "experiment's product"));
  EXPECT_THAT(deck_refusal(kDeck, {"bench.heads=[]"}), HasSubstr("is neither a value nor a list of values"));
  EXPECT_THAT(deck_refusal(kDeck, {"bench.heads={a=1}"}), HasSubstr("is neither a value nor a list of values"));
  EXPECT_THAT(deck_refusal(kDeck, {"bench.heads=[0]"}),
              HasSubstr("bench.heads  0 is out of range (row alpha_256_fp32_0)"));
  EXPECT_THAT(deck_refusal("train.steps = 3\n", {"train.steps=[1]"}), Not(HasSubstr("a list is for")));
}

TEST(ExperimentFaults, rows_are_told_apart_by_their_names) {
  EXPECT_THAT(deck_refusal(kDeck, {"bench.heads=[4, 5, 4]"}), HasSubstr("bench.heads  lists 4 twice"));
  EXPECT_THAT(deck_refusal("job.kind = 'experiment'\n[experiment.product]\njob.seed = [1, 2, 2]\n"),
              HasSubstr("deck.toml:3:12  job.seed  lists 2 twice  legal: each value once"));
  EXPECT_THAT(deck_refusal("job.kind = 'experiment'\n[experiment.rows.a_1]\n[experiment.rows.a.product]\n"
                           "job.seed = [1, 2]\n"),
              HasSubstr("describes two rows \"a_1\""));
}

constexpr std::string_view kCompared = R"(
job.kind = "experiment"
[experiment]
baseline = "standard"
[experiment.product]
bench.heads = [1, 2]
[experiment.rows.flash]
product.attention.query_tile = [16, 32]
attention.kernel = "flash2"
[experiment.rows.standard]
product.bench.batch = [1, 4]
[experiment.rows.batch]
bench.batch = 4
[experiment.rows.batches]
product.bench.batch = [4, 1]
)";

Baselines compared_rows(const std::vector<std::string>& overrides) {
  const Deck deck = parse_deck(kCompared, "deck.toml", overrides);
  return baselines_of(deck.settings.section<Experiment>(), expand(deck.settings.section<Experiment>()));
}

TEST(Baseline, is_the_row_with_the_same_values_of_its_lists) {
  const Baselines found =
      compared_rows({"experiment.rows={standard={product={bench={batch=[1, 4]}}},batch={bench={batch=4}},"
                     "batches={product={bench={batch=[4, 1]}}}}"});
  EXPECT_EQ(found.wrong, "");
  EXPECT_THAT(found.rows, ElementsAre(0, 1, 2, 3, /* batch */ 1, 3, /* batches */ 1, 0, 3, 2));
  EXPECT_THAT(compared_rows({"experiment.baseline="}).rows, testing::IsEmpty());
}

TEST(Baseline, that_has_no_row_or_several_for_a_row_is_refused) {
  EXPECT_THAT(
      deck_refusal(kCompared),
      HasSubstr("deck.toml:4:12  experiment.baseline  has 2 rows with the values of row flash_1_16: standard_1_1 "
                "and standard_1_4"));
  EXPECT_THAT(deck_refusal(kCompared, {"experiment.baseline=standart"}),
              HasSubstr("there is no [experiment.rows.standart]  legal: the NAME of an [experiment.rows.NAME] that has "
                        "one row for each row that is compared  nearest: standard"));
  EXPECT_THAT(deck_refusal("job.kind = 'experiment'\nexperiment.baseline = 'a'\nexperiment.product.job.seed = [1]\n"),
              HasSubstr("there is no [experiment.rows.a]"));
  EXPECT_THAT(
      deck_refusal("job.kind = 'experiment'\nexperiment.baseline = 'a'\nexperiment.rows.a.product.job.seed = [1]\n"
                   "experiment.rows.b.product.job.seed = [2]\n"),
      HasSubstr("has no row with the values of row b_2"));
}

TEST(Baseline, compares_by_unit) {
  EXPECT_EQ(compared("ms", 2, 6), 3) << "a third of the time";
  EXPECT_EQ(compared("token/s", 6, 2), 3) << "three times the rate";
  EXPECT_EQ(compared("MiB", 1, 4), 0.75) << "saved";
  EXPECT_EQ(comparison_of("1"), Comparison::none);
  EXPECT_TRUE(std::isnan(compared("s", 0, 1)));
  EXPECT_TRUE(std::isnan(compared("token/s", 1, 0)));
  EXPECT_TRUE(std::isnan(compared("byte", 1, 0)));
  EXPECT_TRUE(std::isnan(compared("ms", std::nan(""), 1)));
}

TEST(ExperimentFaults, a_wrong_value_of_the_command_line_is_told_once) {
  for (const char* value : {"bench.length=-3", "bench.length=[-3, 256]"}) {
    const std::string refusal = deck_refusal(kDeck, {value});
    EXPECT_THAT(refusal, HasSubstr("-3 is out of range"));
    EXPECT_EQ(refusal.find("out of range"), refusal.rfind("out of range")) << refusal;
  }
}

TEST(ExperimentFaults, at_least_one_round_is_measured) {
  EXPECT_THAT(deck_refusal(kDeck, {"experiment.rounds=0"}), HasSubstr("experiment.rounds  0 is out of range"));
}

TEST(Experiment, a_deck_without_variations_has_one_row_or_those_of_its_product) {
  EXPECT_THAT(names(parse_deck("job.kind = 'experiment'\n", "deck.toml")), ElementsAre("deck"));
  EXPECT_THAT(
      names(parse_deck("job.kind = 'experiment'\nexperiment.product.model.size = ['small', 'xl']\n", "deck.toml")),
      ElementsAre("small", "xl"));
}

TEST(Experiment, a_row_may_be_a_job_of_another_kind) {
  const Deck deck = parse_deck(
      "job.kind = 'experiment'\n[experiment]\njob = 'train'\n[experiment.rows.step]\n[experiment.rows.forward]\n"
      "job.kind = 'bench.step'\nbench.phase = 'forward'\n",
      "deck.toml");
  ASSERT_THAT(names(deck), ElementsAre("step", "forward"));
  EXPECT_EQ(deck.rows[0].settings.job.kind, JobKind::train);
  EXPECT_EQ(deck.rows[1].settings.job.kind, kBenchStep);
}

TEST(Experiment, a_size_of_a_row_fills_the_numbers_that_the_deck_leaves_out) {
  const Deck deck = parse_deck(
      "job.kind = 'experiment'\nmodel.size = 'small'\nmodel.d_ff = 64\nexperiment.product.model.size = ['large']\n",
      "deck.toml");
  EXPECT_EQ(deck.rows[0].settings.model.d_model, 1280);
  EXPECT_EQ(deck.rows[0].settings.model.d_ff, 64);
}

TEST(ExperimentFaults, all_are_gathered_and_say_where_and_in_which_row) {
  const std::string text = deck_refusal(
      "job.kind = 'experiment'\n"
      "[experiment]\n"
      "record = ['loss:middle']\n"
      "[experiment.rows.one]\n"
      "model.d_model = 100\n"
      "model.num_heads = 3\n"
      "model.heads = 3\n"
      "job.directory = 'x'\n"
      "[experiment.product]\n"
      "train.steps = [1, -1, 'two']\n"
      "train.graph = true\n"
      "[train]\n"
      "batch_size = 0\n");
  for (const char* part : {
           "experiment.record  \"loss:middle\" names no known statistic",
           "deck.toml:5:17  model.d_model  100 is not a multiple of model.num_heads = 3 (row one_1)",
           "deck.toml:7:15  model.heads  unknown key",
           "job.directory  belongs to the whole experiment, not to a row",
           "train.steps  -1 is out of range (row one_-1)",
           "train.steps  is the string \"two\" (row one_two)",
           "train.graph  is not a list of values",
           "deck.toml:13:14  train.batch_size  0 is out of range",
       })
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_EQ(count(text, "is not a multiple"), 1) << "once, not in every row";
}

TEST(ExperimentFaults, the_kind_of_a_row_is_that_of_one_job) {
  const std::string text = "job.kind = 'experiment'\n[experiment]\nrows.one.job.kind = 'experiment'\n";
  EXPECT_THAT(deck_refusal(text), HasSubstr("deck.toml:3:21  job.kind  is an experiment in an experiment"));
  EXPECT_THAT(deck_refusal("job.kind = 'experiment'\nexperiment.when_quick.job.kind = 'train'\n"),
              HasSubstr("job.kind  belongs to the whole experiment, not to a row"));
}

TEST(ExperimentFaults, a_key_that_would_be_ignored_is_refused) {
  const std::string text(kDeck);
  EXPECT_THAT(deck_refusal(text, {"bench.warmup=3"}),
              HasSubstr("would be ignored: rows of the experiment set it  legal: 'experiment.product={bench.warmup="));
  EXPECT_THAT(deck_refusal(text, {"job.seed=5", "experiment.product={job={seed=[6]}}"}),
              HasSubstr("job.seed  would be ignored: rows of the experiment set it"));
  EXPECT_THAT(deck_refusal(text, {"job.kind=train"}), HasSubstr("so [experiment] would be ignored"));
  EXPECT_THAT(deck_refusal(text, {"job.output=x.h5"}), HasSubstr("every row writes into its own folder"));
  EXPECT_THAT(deck_refusal(text, {"experiment.when_quick={product={bench={batch=[1]}}}"}),
              HasSubstr("no product has it"));
  EXPECT_THAT(deck_refusal(text, {"experiment.job=experiment"}), HasSubstr("is not a word of this key"));
  EXPECT_THAT(deck_refusal(text, {"experiment.when_quick={job={kind='train'}}"}),
              HasSubstr("job.kind  belongs to the whole experiment, not to a row"));
  EXPECT_THAT(deck_refusal(text, {"experiment.rows={one={job={kind='experiment'}}}"}),
              HasSubstr("job.kind  is an experiment in an experiment"));
}

TEST(ExperimentFaults, more_rows_than_anyone_reads_are_refused) {
  std::string list = "0";
  for (int i = 1; i <= 101; ++i) list += ", " + std::to_string(i);
  EXPECT_THAT(deck_refusal("job.kind = 'experiment'\n[experiment.product]\njob.seed = [" + list +
                           "]\ntrain.sample_tokens = [" + list + "]\n"),
              HasSubstr("describes too many rows  legal: at most 10000 rows"));
}

TEST(Recorded, is_a_dataset_with_or_without_a_statistic) {
  EXPECT_EQ(parse_recorded("steps/loss")->statistic, Statistic::values);
  EXPECT_EQ(parse_recorded("steps/loss:median")->path, "steps/loss");
  EXPECT_EQ(parse_recorded("steps/loss:median")->statistic, Statistic::median);
  EXPECT_FALSE(parse_recorded("steps/loss:"));
  EXPECT_FALSE(parse_recorded(":last"));
  EXPECT_FALSE(parse_recorded(""));
}

}  // namespace
}  // namespace tessera::lab
