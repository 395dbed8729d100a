/// Every way in which the values of a deck can be wrong: position, key, message and remedy.
#include <ostream>
#include <string>
#include <vector>

#include "support.hpp"

namespace tessera::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Case {
  const char* title;
  const char* deck;
  const char* fault;  // beginning of a line of the message
};

void PrintTo(const Case& item, std::ostream* out) { *out << item.title; }

class Fault : public testing::TestWithParam<Case> {};

TEST_P(Fault, is_told_with_its_place_and_is_the_only_one) {
  const std::string message = deck_refusal(GetParam().deck);
  EXPECT_THAT(message, HasSubstr(std::string("\n") + GetParam().fault));
  EXPECT_THAT(message, HasSubstr("1 fault in deck deck.toml:\n"));
  EXPECT_EQ(count(message, "\n"), 2) << message;
}

const Case kCases[] = {
    // unknown names
    {"unknown_key", "[train]\nstpes = 5\n", "deck.toml:2:1  train.stpes  unknown key  legal: steps batch_size"},
    {"unknown_section", "\n[trian]\nsteps = 5\n", "deck.toml:2:2  trian  unknown section  legal: job model data train"},
    {"key_without_section", "steps = 5\n",
     "deck.toml:1:1  steps  unknown key  legal: section.key  nearest: train.steps"},
    {"wrong_section", "[train]\nnum_heads = 4\n", "deck.toml:2:1  train.num_heads  unknown key"},
    {"section_as_value", "train = 5\n", "deck.toml:1:1  train  is a section, given the integer 5  legal: [train] with"},
    {"section_as_list", "[[train]]\nsteps = 1\n", "deck.toml:1:"},
    // types
    {"text_for_integer", "[train]\nsteps = \"5\"\n",
     "deck.toml:2:9  train.steps  is the string \"5\"  legal: integer, 1 to"},
    {"float_for_integer", "[train]\nsteps = 5.0\n", "deck.toml:2:9  train.steps  is the float 5.0  legal: integer"},
    {"bool_for_integer", "train.steps = true\n", "deck.toml:1:15  train.steps  is the boolean true  legal: integer"},
    {"table_for_integer", "[train.steps]\na = 1\n", "deck.toml:1:1  train.steps  is a table  legal: integer"},
    {"date_for_integer", "train.steps = 2024-01-01\n",
     "deck.toml:1:15  train.steps  is a date or time  legal: integer"},
    {"integer_for_bool", "train.graph = 1\n",
     "deck.toml:1:15  train.graph  is the integer 1  legal: boolean, true false"},
    {"text_for_number", "optimizer.eps = 'x'\n",
     "deck.toml:1:17  optimizer.eps  is the string \"x\"  legal: number, 1e-30"},
    {"integer_for_word", "precision.compute = 32\n",
     "deck.toml:1:21  precision.compute  is the integer 32  legal: word"},
    {"integer_for_path", "job.output = 5\n", "deck.toml:1:14  job.output  is the integer 5  legal: a path"},
    {"scalar_for_list", "trace.profile_steps = 5\n",
     "deck.toml:1:23  trace.profile_steps  is the integer 5  legal: list of"},
    {"negative_seed", "job.seed = -1\n",
     "deck.toml:1:12  job.seed  is the integer -1  legal: integer, 0 to 9223372036854775807"},
    // ranges and words
    {"too_small", "train.steps = 0\n", "deck.toml:1:15  train.steps  0 is out of range  legal: 1 to 1e+12"},
    {"too_large", "optimizer.beta1 = 1.0\n",
     "deck.toml:1:19  optimizer.beta1  1 is out of range  legal: 0 to 1 (not included)"},
    {"zero_heads_divide_nothing", "model.num_heads = 0\n",
     "deck.toml:1:19  model.num_heads  0 is out of range  legal: 1 to 65536"},
    {"at_open_minimum", "model.rope_theta = 0\n",
     "deck.toml:1:20  model.rope_theta  0 is out of range  legal: above 0 to"},
    {"not_a_number", "optimizer.eps = nan\n", "deck.toml:1:17  optimizer.eps  is nan, not a finite number"},
    {"infinite", "train.time_limit_s = inf\n", "deck.toml:1:22  train.time_limit_s  is inf, not a finite number"},
    {"minus_infinite", "train.time_limit_s = -inf\n",
     "deck.toml:1:22  train.time_limit_s  is -inf, not a finite number"},
    {"profile_step_zero", "trace.profile_steps = [3, 0]\n",
     "deck.toml:1:23  trace.profile_steps  element 2: 0 is out of range  legal: 1 to 1e+12"},
    {"empty_text", "generate.prompt = ''\n", "deck.toml:1:19  generate.prompt  is empty"},
    {"nul_in_path", "job.output = \"a\\u0000\"\n", "deck.toml:1:14  job.output  holds a NUL character"},
    {"bad_word", "precision.compute = 'fp23'\n",
     "deck.toml:1:21  precision.compute  \"fp23\" is not a word of this key  legal: fp32 tf32 bf16 fp16  nearest: "
     "fp32"},
    {"bad_word_with_line_break", "data.source = \"te\\nxt\"\n",
     "deck.toml:1:15  data.source  \"te\\nxt\" is not a word"},
    {"bad_size", "model.size = 'smal'\n",
     "deck.toml:1:14  model.size  \"smal\" is not a word of this key  legal: custom small"},
    // contradictions
    {"heads_do_not_divide", "[model]\nd_model = 100\nnum_heads = 3\n",
     "deck.toml:2:11  model.d_model  100 is not a multiple of model.num_heads = 3"},
    {"heads_do_not_divide_the_default", "model.num_heads = 3\n",
     "deck.toml:1:19  model.d_model  128 is not a multiple of model.num_heads = 3"},
    {"odd_head", "[model]\nd_model = 36\nnum_heads = 4\n", "deck.toml:2:11  model.d_model  gives the odd head width 9"},
    {"narrow_head", "[model]\nd_model = 24\nnum_heads = 4\n",
     "deck.toml:2:11  model.d_model  gives head width 6 (24 / 4"},
    {"wide_head", "[model]\nd_model = 1032\nnum_heads = 4\n", "deck.toml:2:11  model.d_model  gives head width 258"},
    {"learning_rates", "[optimizer]\nlearning_rate = 1e-4\nmin_learning_rate = 1e-3\n",
     "deck.toml:3:21  optimizer.min_learning_rate  0.001 is above optimizer.learning_rate = 0.0001"},
    {"validation", "train.validate_every = 5\ndata.validation_fraction = 0\n",
     "deck.toml:1:24  train.validate_every  5 asks for validation, but data.validation_fraction = 0"},
    {"micro_batch_above_batch", "[train]\nbatch_size = 4\nmicro_batch_size = 8\n",
     "deck.toml:3:20  train.micro_batch_size  8 is more than train.batch_size = 4"},
    {"micro_batch_does_not_divide", "[train]\nbatch_size = 8\nmicro_batch_size = 3\n",
     "deck.toml:3:20  train.micro_batch_size  3 does not divide train.batch_size = 8"},
    {"text_vocabulary", "data = {source = 'text', path = 'a'}\nmodel.vocab_size = 256\n",
     "deck.toml:2:20  model.vocab_size  256 is too small for data.source = \"text\""},
    {"text_without_path", "data.source = 'text'\n",
     "deck.toml:1:15  data.path  is not given, and data.source names a file"},
    {"tokens_without_path", "data.source = 'tokens'\n", "deck.toml:1:15  data.path  is not given"},
    {"path_without_source", "data.path = 'a'\n",
     "deck.toml:1:13  data.path  would be ignored: data.source is not given"},
    {"path_of_synthetic_data", "data = {source = 'synthetic', path = 'a'}\n",
     "deck.toml:1:38  data.path  would be ignored: data.source is \"synthetic\"  legal: data.source = \"text\" or"},
    {"generate_without_input", "job.kind = 'generate'\n",
     "deck.toml:1:12  job.input  is not given, and this job.kind reads it"},
    {"verify_without_input", "job.kind = 'verify.model'\n", "deck.toml:1:12  job.input  is not given"},
    {"train_with_input", "job.input = 'a'\n",
     "deck.toml:1:13  job.input  would be ignored: job.kind = \"train\" reads no such file  legal: --resume PATH"},
    {"generate_with_output", "job = {kind = 'generate', input = 'a', output = 'b.h5'}\n",
     "deck.toml:1:49  job.output  would be ignored: job.kind = \"generate\" writes no such file  legal: job.directory"},
    {"train_with_output", "job.output = 'a.h5'\n",
     "deck.toml:1:14  job.output  would be ignored: job.kind = \"train\" writes no such file  legal: job.directory"},
    {"old_keys_that_are_one_now",
     "attention.implementation = 'flash2'\nattention.tuned = true\nattention.engine = 'mma'\n",
     "deck.toml:1:11  attention.implementation  is an old spelling, with attention.tuned, attention.engine  legal: "
     "attention.kernel = \"mma\"\n"},
    {"an_old_name", "parallel.all_reduce = 'ring'\n",
     "deck.toml:1:10  parallel.all_reduce  is an old spelling  legal: parallel.transfers = \"ring\"\n"},
    {"no_size_of_a_tile", "attention = {kernel = 'flash1', query_tile = 48}\n",
     "deck.toml:1:46  attention.query_tile  48 is not a tile size  legal: 0, 16, 32, 64 or 128"},
    {"tiles_of_standard", "attention = {kernel = 'standard', key_tile = 64}\n",
     "deck.toml:1:46  attention.key_tile  would be ignored: attention.kernel names no portable kernel with tiles"},
    {"tiles_of_auto", "attention.key_tile = 64\n",
     "deck.toml:1:22  attention.key_tile  would be ignored: attention.kernel names no portable kernel with tiles"},
    {"prefetch_of_parameters_that_are_not_sharded", "parallel.prefetch_blocks = 2\n",
     "deck.toml:1:28  parallel.prefetch_blocks  would be ignored: parallel.shard is not \"parameters\"  legal: "
     "parallel.shard = \"parameters\""},
    {"prefetch_of_sharded_gradients", "parallel = {shard = 'gradients', prefetch_blocks = 0}\n",
     "deck.toml:1:52  parallel.prefetch_blocks  would be ignored: parallel.shard is not \"parameters\""},
    {"parameters_that_are_not_given_up", "parallel.reshard_after_forward = false\n",
     "deck.toml:1:34  parallel.reshard_after_forward  would be ignored: parallel.shard is not \"parameters\"  legal: "
     "parallel.shard = \"parameters\""},
    {"shards_of_nothing", "parallel.shard_ranks = 2\n",
     "deck.toml:1:24  parallel.shard_ranks  would be ignored: parallel.shard is \"none\"  legal: parallel.shard = "
     "\"optimizer\", \"gradients\" or \"parameters\""},
    {"fewer_shard_ranks_than_none", "parallel = {shard = 'optimizer', shard_ranks = -1}\n",
     "deck.toml:1:48  parallel.shard_ranks  -1 is out of range"},
    {"order_of_sharded_gradients", "parallel = {shard = 'optimizer', gradient_sync = 'flat'}\n",
     "deck.toml:1:50  parallel.gradient_sync  would be ignored: what is sharded crosses the network unit by unit, as "
     "soon as it is ready  legal: parallel.gradient_sync = \"bucket\", the default, or parallel.shard = \"none\""},
    {"buckets_of_sharded_gradients", "parallel = {shard = 'gradients', bucket_mbyte = 5}\n",
     "deck.toml:1:49  parallel.bucket_mbyte  would be ignored: there are no buckets  legal: parallel.gradient_sync = "
     "\"bucket\" with parallel.shard = \"none\""},
    {"buckets_without_buckets", "parallel = {gradient_sync = 'overlap', bucket_mbyte = 5}\n",
     "deck.toml:1:55  parallel.bucket_mbyte  would be ignored: there are no buckets"},
    {"bf16_gradients_of_fp32", "precision = {gradients = 'bf16', reduce = 'bf16'}\n",
     "deck.toml:1:26  precision.gradients  \"bf16\" would discard digits that other formats compute  legal: "
     "precision.compute"},
    {"bf16_gradients_reduced_in_fp32", "precision = {compute = 'bf16', gradients = 'bf16'}\n",
     "deck.toml:1:44  precision.reduce  \"fp32\" is wider than the stored gradients  legal: precision.reduce"},
    {"loss_scale_of_bf16", "precision = {compute = 'bf16', initial_loss_scale = 1024.0}\n",
     "deck.toml:1:53  precision.initial_loss_scale  would be ignored: precision.compute is not \"fp16\", so losses are "
     "not scaled  legal: precision.compute = \"fp16\" beside it"},
    {"no_master_of_fp32", "precision.master = 'none'\n",
     "deck.toml:1:20  precision.master  would be ignored: with a 32-bit precision.compute there is no other copy of "
     "the "
     "weights  legal: precision.master = \"fp32\", or precision.compute = \"bf16\""},
    // legal words that this version does not support
    {"offloaded_parameters_that_are_not_sharded", "parallel = {offload = 'parameters', shard = 'gradients'}\n",
     "deck.toml:1:23  parallel.offload  \"parameters\" streams the units that parallel.shard = \"parameters\" gathers, "
     "on one rank, too  legal: parallel.shard = \"parameters\" beside it, or parallel.offload = \"optimizer\""},
    {"missing_engine_fp32", "attention.kernel = 'wgmma'\n",
     "deck.toml:1:20  attention.kernel  \"wgmma\" with a 32-bit precision.compute is not in this version"},
    {"a_limit_where_the_first_bad_step_stops", "train.bad_steps_limit = 5\n",
     "deck.toml:1:25  train.bad_steps_limit  would be ignored: the first bad step stops the run"},
    {"a_window_without_spikes", "train.spike_window = 5\n",
     "deck.toml:1:22  train.spike_window  would be ignored: no step is called a spike"},
    {"slots_of_what_is_not_offloaded", "parallel.offload_slots = 5\n",
     "deck.toml:1:26  parallel.offload_slots  would be ignored: parallel.offload is \"none\""},
    {"two_rates_between_hosts", "plan = {network = 'ndr', node_link_gbyte_per_s = 20}\n",
     "deck.toml:1:19  plan.network  would be ignored: plan.node_link_gbyte_per_s is given  legal: one of the two"},
    {"adapters_of_no_network", "plan.network_per = 'rank'\n",
     "deck.toml:1:20  plan.network_per  would be ignored: plan.network is not given  legal: plan.network beside it"},
    {"slots_of_a_graph", "train.graph = true\nparallel = {offload = 'optimizer', offload_slots = 5}\n",
     "deck.toml:2:52  parallel.offload_slots  would have no effect: in a graph, an update's copies end with it  "
     "legal: parallel.offload_slots = 3, or train.graph = false"},
    {"missing_tensor_cores_in_fp32", "attention.kernel = 'flash1/5'\n",
     "deck.toml:1:20  attention.kernel  \"flash1/5\" with a 32-bit precision.compute is not in this version: of "
     "attention on tensor cores only \"mma\" takes it; use attention.kernel = \"flash1/4\""},
    {"no_master_in_fp16", "precision.compute = 'fp16'\nprecision.master = 'none'\n",
     "deck.toml:2:20  precision.master  \"none\" is not for precision.compute = \"fp16\""},
    {"recomputation_of_nothing", "train.recompute = 'all_but_attention'\n",
     "deck.toml:1:19  train.recompute  would be ignored: train.checkpoint_activations is 0"},
    {"kept_results_of_standard_attention",
     "train = {checkpoint_activations = 1, recompute = 'all_but_attention'}\nattention.kernel = 'standard'\n",
     "deck.toml:1:50  train.recompute  standard attention's backward pass needs its probabilities"},
};

INSTANTIATE_TEST_SUITE_P(Deck, Fault, testing::ValuesIn(kCases), [](const auto& info) { return info.param.title; });

TEST(Faults, nearest_names_are_offered) {
  EXPECT_THAT(deck_refusal("[train]\nstpes = 5\n"), HasSubstr("  nearest: train.steps\n"));
  EXPECT_THAT(deck_refusal("[trian]\nsteps = 5\n"), HasSubstr("  nearest: train\n"));
  EXPECT_THAT(deck_refusal("[train]\nlearning_rate = 5\n"), HasSubstr("  nearest: optimizer.learning_rate\n"));
  EXPECT_THAT(deck_refusal("[train]\nxyzzy = 5\n"), Not(HasSubstr("nearest")));
}

TEST(Faults, an_integer_may_stand_for_a_number_but_not_the_other_way_round) {
  EXPECT_EQ(read("optimizer.clip_norm = 2\n").optimizer.clip_norm, 2.0);
  EXPECT_THAT(deck_refusal("train.steps = 2.0\n"), HasSubstr("is the float 2.0"));
}

TEST(Faults, all_are_told_at_once_in_the_order_of_the_deck) {
  const std::string message = deck_refusal(
      "[train]\nsteps = 0\nstpes = 1\n[model]\nd_model = 'a'\nnum_heads = 3\n[optimizer]\nmin_learning_rate = 2\n",
      {"job.kind=trian", "nowhere.to=5"});
  EXPECT_THAT(message, HasSubstr("6 faults in deck deck.toml:"));
  const char* order[] = {"deck.toml:2:9  train.steps",
                         "deck.toml:3:1  train.stpes",
                         "deck.toml:5:11  model.d_model  is the string",
                         "deck.toml:8:21  optimizer.min_learning_rate",
                         "command line  job.kind  \"trian\" is not a word",
                         "command line  nowhere.to  unknown key"};
  std::size_t last = 0;
  for (const char* part : order) {
    const std::size_t at = message.find(part);
    ASSERT_NE(at, std::string::npos) << part << "\n" << message;
    EXPECT_GT(at, last) << part;
    last = at;
  }
  EXPECT_THAT(message, Not(HasSubstr("multiple of"))) << "a rule on a key that is faulty already is noise";
  EXPECT_THAT(message, testing::EndsWith("`tessera --explain KEY` says what a key means."));
}

TEST(Faults, of_overrides_stand_at_the_command_line) {
  const std::string deck = "train.steps = 9\n";
  EXPECT_THAT(deck_refusal(deck, {"train.steps=many"}), HasSubstr("command line  train.steps  is the string \"many\""));
  EXPECT_THAT(deck_refusal(deck, {"train.stepz=1"}), HasSubstr("command line  train.stepz  unknown key"));
  EXPECT_THAT(deck_refusal(deck, {"steps=1"}), HasSubstr("nearest: train.steps"));
  EXPECT_THAT(deck_refusal(deck, {"train.steps"}), HasSubstr("is not an override  legal: section.key=value"));
  EXPECT_THAT(deck_refusal(deck, {"job.output=5"}), HasSubstr("quote it for TOML as well: 'job.output=\"...\"'"));
  EXPECT_THAT(deck_refusal(deck, {"job.output=a\xFF"}), HasSubstr("command line  job.output  is not UTF-8 text"));
  EXPECT_THAT(deck_refusal(deck, {"train.micro_batch_size=99"}),
              HasSubstr("command line  train.micro_batch_size  99 is more than train.batch_size = "));
}

TEST(Faults, an_override_mends_a_contradiction_of_the_deck_or_makes_one) {
  EXPECT_EQ(read("[train]\nbatch_size = 5\nmicro_batch_size = 6\n", {"train.batch_size=6"}).train.batch_size, 6);
  const std::string synthetic = "data.source = 'synthetic'\n";
  EXPECT_THAT(deck_refusal(synthetic, {"data.path=a"}), HasSubstr("command line  data.path  would be ignored"));
  EXPECT_EQ(read(synthetic, {"data.path=a", "data.source=tokens"}).data.source, DataSource::tokens);
}

TEST(Faults, none_in_a_run_that_ends_before_what_the_deck_names) {
  const std::string deck = "optimizer.warmup_steps = 40\ntrace.profile_steps = [20]\n";
  for (const std::int64_t steps : {1, 30}) {
    EXPECT_EQ(read(deck, {"train.steps=" + std::to_string(steps)}).train.steps, steps);
  }
}

TEST(Faults, text_is_bounded_and_what_is_accepted_can_be_read_again) {
  EXPECT_THAT(deck_refusal("train.steps = 1", {"generate.prompt=" + std::string(4000, 'x')}),
              HasSubstr("is longer than"));
  const Deck deck = parse_deck("train.steps = 1", "deck.toml", {"generate.prompt=" + std::string(3990, 'x')});
  EXPECT_TRUE(are_same(parse_deck(deck.resolved, "again.toml").settings, deck.settings));
}

}  // namespace
}  // namespace tessera::config
