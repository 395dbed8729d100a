#include "train/plan.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>

#include "config/keys.hpp"
#include "config/rules.hpp"
#include "errors.hpp"
#include "kernels/clear_spans.hpp"
#include "kernels/cuda/target.hpp"
#include "kernels/update_blocks.hpp"
#include "optim/step_state.hpp"
#include "parallel/device.hpp"
#include "parallel/collectives/squares.hpp"
#include "parallel/strategies/replicated.hpp"
#include "support/no_collectives.hpp"
#include "train/arrays.hpp"
#include "train/offload.hpp"
#include "train/exchange.hpp"
#include "unit/train/decks.hpp"

namespace tessera::train {
namespace {

using memory::Category;
using ::testing::HasSubstr;

std::int64_t sum_of(const Plan& plan, Category category) {
  std::int64_t bytes = 0;
  for (const memory::Tensor& tensor : plan.layout.tensors()) bytes += tensor.category == category ? tensor.bytes : 0;
  return bytes;
}

TEST(Plan, takes_names_from_the_deck) {
  EXPECT_EQ(dtype_of(config::Precision::fp32), Dtype::fp32);
  EXPECT_EQ(dtype_of(config::Precision::tf32), Dtype::fp32);
  EXPECT_EQ(dtype_of(config::Precision::bf16), Dtype::bf16);
  EXPECT_EQ(dtype_of(config::Precision::fp16), Dtype::fp16);
  EXPECT_EQ(kind_of(config::AttentionKernel::standard), kernels::AttentionKind::standard);
  EXPECT_EQ(kind_of(config::AttentionKernel::standard_0), kernels::AttentionKind::standard);
  EXPECT_EQ(kind_of(config::AttentionKernel::flash2), kernels::AttentionKind::flash2);
  EXPECT_EQ(kind_of(config::AttentionKernel::automatic), kernels::AttentionKind::flash2);
  EXPECT_EQ(kind_of(config::AttentionKernel::flash1), kernels::AttentionKind::flash1);
  EXPECT_EQ(kind_of(config::AttentionKernel::tiled), kernels::AttentionKind::tiled);
  const model::Shape shape = shape_of(test::small_deck().model);
  EXPECT_EQ(shape.V, 101);
  EXPECT_EQ(shape.T, 32);
  EXPECT_EQ(shape.C, 64);
  EXPECT_EQ(shape.L, 3);
  EXPECT_EQ(shape.H, 4);
  EXPECT_EQ(shape.F, 160);
  EXPECT_EQ(shape.D(), 16);
}

TEST(Plan, fp32_holds_four_numbers_per_parameter) {
  const Plan plan = plan_training(test::small_deck(), Dtype::fp32, 1);
  const std::int64_t P = plan.table.flat_count();
  EXPECT_EQ(sum_of(plan, Category::parameters), 4 * P);
  EXPECT_EQ(sum_of(plan, Category::gradients), 4 * P);
  EXPECT_EQ(sum_of(plan, Category::optimizer), 8 * P);
  EXPECT_EQ(plan.arrays.master, memory::kAbsent);
}

TEST(Plan, lion_holds_one_moment_less) {
  config::Settings deck = test::small_deck();
  deck.optimizer.kind = config::OptimizerKind::lion;
  const Plan plan = plan_training(deck, Dtype::fp32, 1), narrow = plan_training(deck, Dtype::bf16, 1);
  const std::int64_t P = plan.table.flat_count();
  EXPECT_EQ(sum_of(plan, Category::optimizer), 4 * P);
  EXPECT_EQ(sum_of(narrow, Category::optimizer), (2 + 4) * P);
  deck.parallel.offload = config::Offload::optimizer;
  const Plan offloaded = plan_training(deck, Dtype::fp32, 1);
  EXPECT_EQ(offloaded_bytes(offloaded), 4 * P);
  deck.job.kind = config::JobKind::train;
  for (const auto& [kind, bytes] : {std::pair{config::OptimizerKind::adamw, 12}, {config::OptimizerKind::lion, 8}}) {
    deck.optimizer.kind = kind;
    EXPECT_THAT(describe(plan_training(deck, Dtype::fp32, 1), deck),
                HasSubstr("checkpoint " + memory::readable_bytes(bytes * plan.table.parameter_count()) + " on disk\n"));
  }
}

TEST(Plan, an_optimizer_that_needs_whole_matrices_is_refused_what_cuts_them) {
  const optim::Traits whole{.name = "whole", .moments = {}, .needs_whole_matrices = true};
  const auto refusal = [&](config::Shard shard, config::Offload offload, int ranks) -> std::string {
    config::Settings deck = test::small_deck();
    deck.parallel.shard = shard;
    const Plan plan = plan_training(deck, Dtype::fp32, ranks);
    try {
      require_whole_matrices(whole, plan.sharing, offload);
    } catch (const Failure& caught) {
      EXPECT_EQ(caught.code(), Exit::usage);
      return caught.what();
    }
    return "";
  };
  using config::Offload;
  using config::Shard;
  EXPECT_EQ(refusal(Shard::none, Offload::none, 3), "");
  EXPECT_EQ(refusal(Shard::optimizer, Offload::none, 1), "");
  EXPECT_THAT(refusal(Shard::optimizer, Offload::none, 3), HasSubstr("use parallel.shard = \"none\""));
  EXPECT_THAT(refusal(Shard::none, Offload::optimizer, 1), HasSubstr("use parallel.offload = \"none\""));
}

TEST(Optimizers, have_the_names_that_decks_have_for_them) {
  for (const config::Key& key : config::all_keys()) {
    if (key.name != "optimizer.kind") continue;
    for (const config::Word& word : key.legal.words) {
      EXPECT_EQ(optim::traits_of(static_cast<config::OptimizerKind>(word.value)).name, word.text);
    }
    return;
  }
  FAIL() << "no key optimizer.kind";
}

TEST(Plan, bf16_holds_the_lower_halves_of_its_weights_beside_them) {
  const Plan plan = plan_training(test::small_deck(), Dtype::bf16, 1);
  const std::int64_t P = plan.table.flat_count();
  EXPECT_EQ(sum_of(plan, Category::parameters), 2 * P);
  EXPECT_EQ(sum_of(plan, Category::gradients), 4 * P);
  EXPECT_EQ(sum_of(plan, Category::optimizer), (2 + 8) * P);

  config::Settings narrow = test::small_deck();
  narrow.precision.gradients = config::GradientPrecision::bf16;
  EXPECT_EQ(sum_of(plan_training(narrow, Dtype::bf16, 1), Category::gradients), 2 * P);
}

TEST(Plan, fp16_holds_fp32_master_weights_beside_its_own) {
  const Plan plan = plan_training(test::small_deck(), Dtype::fp16, 1);
  const std::int64_t P = plan.table.flat_count();
  EXPECT_EQ(sum_of(plan, Category::parameters), 2 * P);
  EXPECT_EQ(sum_of(plan, Category::gradients), 4 * P);
  EXPECT_EQ(sum_of(plan, Category::optimizer), (4 + 8) * P);
}

TEST(Plan, more_ranks_or_micro_steps_need_less_activation_memory) {
  const std::int64_t one = sum_of(plan_training(test::small_deck(), Dtype::fp32, 1), Category::activations);
  const std::int64_t four = sum_of(plan_training(test::small_deck(), Dtype::fp32, 4), Category::activations);
  EXPECT_NEAR(static_cast<double>(one) / static_cast<double>(four), 4, 0.05);
  config::Settings micro = test::small_deck();
  micro.train.micro_batch_size = 3;
  EXPECT_EQ(sum_of(plan_training(micro, Dtype::fp32, 1), Category::activations), four);
}

TEST(Plan, room_for_the_scalars_of_the_step_is_exact) {
  const Plan plan = plan_training(test::small_deck(), Dtype::fp32, 1);
  EXPECT_EQ(plan.layout[plan.numbers.state].bytes, static_cast<std::int64_t>(sizeof(optim::StepState)));
  EXPECT_EQ(plan.layout[plan.numbers.state].offset % alignof(optim::StepState), 0u);
}

TEST(Plan, what_is_timed_at_first_and_the_text_afterwards_share_their_memory) {
  config::Settings deck = test::small_deck();
  const auto outside = [&](bool times, std::int64_t tokens) {
    deck.train.tune_gemm = times;
    deck.train.sample_tokens = tokens;
    const Plan plan = plan_training(deck, Dtype::bf16, 1);
    return plan.layout.total_bytes() - plan.layout.arena_bytes();
  };
  const std::int64_t none = outside(false, 0), timing = outside(true, 0), text = outside(false, 10);
  EXPECT_GE(timing, none);  // nothing on hosts
  EXPECT_GT(text, none);
  EXPECT_EQ(outside(true, 10), std::max(timing, text));
}

TEST(StepFlop, is_six_per_weight_and_token_and_causal_attention) {
  const Plan plan = plan_training(test::small_deck(), Dtype::fp32, 1);
  const double V = 101, T = 32, C = 64, L = 3, F = 160, tokens = 12 * T;
  const double weights =
      L * (3 * C * C + C * C + 2 * F * C + C * F + 2 * C) + C + V * C;  // the embedding multiplies nothing
  // scores and their weighted sum: 2 products of 2*T*C each, half of it causal, three times with backward
  EXPECT_DOUBLE_EQ(step_flop(plan), tokens * (6 * weights + L * 3 * (2 * 2 * T * C) / 2));
  EXPECT_DOUBLE_EQ(step_flop(plan_training(test::small_deck(), Dtype::fp32, 3)), step_flop(plan));
}

TEST(Describe, prints_the_model_the_batch_the_memory_and_what_crosses_the_network) {
  const config::Settings deck = test::small_deck();
  const Plan one = plan_training(deck, Dtype::fp32, 1), three = plan_training(deck, Dtype::fp32, 3);
  const std::string text = describe(three, deck);
  EXPECT_THAT(text, HasSubstr(std::to_string(three.table.parameter_count()) + " parameters"));
  EXPECT_THAT(text, HasSubstr("12 sequences x 32 tokens = 3 ranks x 1 micro-step x 4 sequences\n"));
  EXPECT_THAT(describe(one, deck), HasSubstr("12 sequences x 32 tokens = 1 rank x 1 micro-step x 12 sequences\n"));
  EXPECT_THAT(text, HasSubstr(three.layout.table()));
  const NetworkBytes bytes = network_bytes(three);
  EXPECT_DOUBLE_EQ(bytes.sent(), bytes.gradients * 4 / 3);  // 2 (R-1) / R
  const std::string sent = memory::readable_bytes(static_cast<std::int64_t>(bytes.sent()));
  EXPECT_THAT(text, HasSubstr("; each rank sends and receives " + sent + "\n           by all-reduce " + sent + "\n"));
  EXPECT_THAT(describe(one, deck), ::testing::Not(HasSubstr("network")));
}

TEST(Describe, says_when_the_shares_are_not_equal) {
  config::Settings deck = test::small_deck();
  deck.parallel.allow_uneven = true;
  deck.train.batch_size = 5;
  EXPECT_THAT(describe(plan_training(deck, Dtype::fp32, 2), deck),
              HasSubstr("5 sequences x 32 tokens = 2 ranks x 1 micro-step x 3 sequences at most (uneven)\n"));
  deck.train.batch_size = 12;
  deck.train.micro_batch_size = 4;  // 6 a rank: 4 and 2
  EXPECT_THAT(describe(plan_training(deck, Dtype::fp32, 2), deck),
              HasSubstr("12 sequences x 32 tokens = 2 ranks x 2 micro-steps x 4 sequences at most (uneven)\n"));
}

TEST(Describe, notes_what_the_run_does_not_get_to) {
  config::Settings deck = test::small_deck();
  const auto described = [&] { return describe(plan_training(deck, Dtype::fp32, 1), deck); };
  deck.train.steps = 40;
  deck.optimizer.warmup_steps = 40;
  deck.trace.profile_steps = {1, 40};
  EXPECT_THAT(described(), ::testing::Not(HasSubstr("note ")));
  deck.train.steps = 30;
  EXPECT_THAT(described(), HasSubstr("within its warm-up: train.steps = 30, optimizer.warmup_steps = 40\n"));
  EXPECT_THAT(described(), HasSubstr("before step 40 of trace.profile_steps: train.steps = 30\n"));
}

TEST(Describe, notes_that_one_rank_alone_rounds_no_gradient_for_the_network) {
  config::Settings deck = test::small_deck();
  const std::string note = "note       precision.reduce rounds nothing: this is one rank alone";
  const auto described = [&](int ranks) { return describe(plan_training(deck, Dtype::bf16, ranks), deck); };
  EXPECT_THAT(described(1), ::testing::Not(HasSubstr(note)));
  deck.precision.reduce = config::ReducePrecision::bf16;
  EXPECT_THAT(described(1), HasSubstr(note));
  EXPECT_THAT(described(2), ::testing::Not(HasSubstr(note)));
  deck.precision.gradients = config::GradientPrecision::bf16;  // which wants precision.reduce beside it
  EXPECT_THAT(described(1), ::testing::Not(HasSubstr(note)));
}

TEST(Describe, says_in_how_many_parts_and_copies_the_state_lies) {
  config::Settings deck = test::small_deck();
  deck.parallel.shard = config::Shard::parameters;
  const auto described = [&](std::int64_t shard_ranks) {
    deck.parallel.shard_ranks = shard_ranks;
    return describe(plan_training(deck, Dtype::fp32, 4), deck);
  };
  EXPECT_THAT(described(0), HasSubstr("sharing    parameters in 4 parts\n"));
  EXPECT_THAT(described(2), HasSubstr("sharing    parameters in 2 parts, 2 times over\n"));
  EXPECT_THAT(described(1), ::testing::Not(HasSubstr("sharing ")));
  deck.parallel.offload = config::Offload::parameters;
  EXPECT_THAT(described(1), HasSubstr("sharing    nothing is sharded: each rank has its weights on its host\n"));
}

TEST(PlanText, is_for_the_ranks_that_are_started_unless_the_deck_names_a_number) {
  config::Settings deck = test::small_deck();
  EXPECT_THAT(plan_text(deck, 1), HasSubstr("plan       for 1 rank (as started"));
  const std::string three = plan_text(deck, 3);
  EXPECT_THAT(three, HasSubstr("plan       for 3 ranks (as started"));
  EXPECT_THAT(three, HasSubstr(describe(plan_training(deck, Dtype::fp32, 3), deck)));
  deck.parallel.ranks = 2;
  const std::string two = plan_text(deck, 3);
  EXPECT_THAT(two, HasSubstr("plan       for 2 ranks (parallel.ranks)"));
  EXPECT_THAT(two, HasSubstr(describe(plan_training(deck, Dtype::fp32, 2), deck)));
}

TEST(PlanText, takes_what_no_row_of_a_benchmark_of_steps_exceeds) {
  config::Settings deck = test::small_deck();
  const std::int64_t fused = plan_training(deck, Dtype::bf16, 1).layout.total_bytes();
  deck.train.fused = false;
  EXPECT_EQ(plan_training(deck, Dtype::bf16, 1).layout.total_bytes(), fused);
  deck.train.graph = true;
  EXPECT_EQ(plan_training(deck, Dtype::bf16, 1).layout.total_bytes(), fused);
}

/// The exit code and the words with which a deck's plan is refused.
std::pair<Exit, std::string> refusal_of(const config::Settings& deck) {
  try {
    plan_text(deck, 1);
  } catch (const Failure& failure) {
    return {failure.code(), failure.what()};
  }
  return {Exit::finished, ""};
}

TEST(PlanText, is_refused_for_jobs_that_do_not_train) {
  using config::JobKind;
  for (const JobKind kind : {JobKind::generate, JobKind::verify_attention, JobKind::verify_model}) {
    config::Settings deck = test::small_deck();
    deck.job.kind = kind;
    const auto [code, words] = refusal_of(deck);
    EXPECT_EQ(code, Exit::usage);
    EXPECT_THAT(words, HasSubstr("has no plan"));
  }
}

TEST(PlanText, of_a_deck_that_this_build_cannot_run_is_refused_in_the_words_of_the_run) {
  config::Settings deck = test::small_deck();
  deck.precision.compute = config::Precision::bf16;
  deck.attention.kernel = config::AttentionKernel::wgmma;
  deck.train.graph = true;
  std::pair<Exit, std::string> of_run{Exit::finished, ""};
  try {
    config::check_build(deck, this_build());
  } catch (const Failure& failure) {
    of_run = {failure.code(), failure.what()};
  }
  EXPECT_EQ(of_run.first, this_build().cuda ? Exit::finished : Exit::environment);
  EXPECT_EQ(refusal_of(deck), of_run);
}

const Machine kH200{.build = "a build for H200s", .target = kernels::gpu_target("90a"), .has_nccl = true};

// --- the largest models ----------------------------------------------------------------------------------------------

/// The largest model and batch that the keys' own ranges allow, in micro-batches of one short sequence.
config::Settings largest_deck() {
  const auto most = [](const char* key) { return static_cast<std::int64_t>(config::find_key(key)->legal.max); };
  config::Settings s;
  s.model.vocab_size = most("model.vocab_size");
  s.model.d_model = most("model.d_model");
  s.model.num_heads = most("model.num_heads");
  s.model.num_layers = most("model.num_layers");
  s.model.d_ff = most("model.d_ff");
  s.train.batch_size = most("train.batch_size");
  s.train.micro_batch_size = 1;
  s.train.steps = most("train.steps");
  s.parallel.ranks = most("parallel.ranks");
  return s;
}

/// A blank or a bracket, a sign and a digit: in no plan.
void expect_no_negative_number(const std::string& text) {
  for (std::size_t at = text.find('-'); at != std::string::npos; at = text.find('-', at + 1)) {
    const bool is_sign = at > 0 && (text[at - 1] == ' ' || text[at - 1] == '(') && std::isdigit(text[at + 1]);
    EXPECT_FALSE(is_sign) << text.substr(text.rfind('\n', at) + 1, 200);
  }
}

TEST(PlanText, of_the_largest_legal_keys_has_no_negative_size) {
  config::Settings deck = largest_deck();
  const std::string plain = plan_text(deck, 1);
  expect_no_negative_number(plain);
  EXPECT_THAT(plain, testing::ContainsRegex("\nper host   [0-9.]+ YiB "));
  EXPECT_THAT(plain, HasSubstr(" (1048576 ranks)\n"));

  deck.precision.compute = config::Precision::fp16;
  deck.precision.reduce = config::ReducePrecision::bf16;
  deck.plan.device = config::PlanDevice::h200;
  deck.plan.link_gbyte_per_s = deck.plan.host_link_gbyte_per_s = 100;
  deck.parallel.shard = config::Shard::parameters;
  deck.parallel.shard_ranks = 1;
  deck.parallel.offload = config::Offload::parameters;
  const std::string offloaded = plan_text(deck, 1);
  expect_no_negative_number(offloaded);
  EXPECT_THAT(offloaded, HasSubstr(" YiB of host memory (1048576 ranks)\n"));
}

TEST(PlanText, of_a_tensor_beyond_64_bits_is_refused_by_its_name_and_keys) {
  config::Settings deck = test::small_deck();
  deck.model.context_length = 1 << 24;
  deck.train.batch_size = 4096;
  deck.attention.kernel = config::AttentionKernel::standard;
  const auto [code, words] = refusal_of(deck);
  EXPECT_EQ(code, Exit::usage);
  EXPECT_THAT(words, HasSubstr("block.00.probabilities [4096, 4, 16777216, 16777216] of fp32 is more than 64 bits"));
  EXPECT_THAT(words, HasSubstr("model.context_length (in standard attention: its square)"));

  deck.attention.kernel = config::AttentionKernel::flash2;
  const auto [token_code, token_words] = refusal_of(deck);  // 2^36 tokens, of which an int holds 0
  EXPECT_EQ(token_code, Exit::usage);
  EXPECT_THAT(token_words, HasSubstr("4096 sequences of 16777216 tokens are more than the 2147479552"));
  EXPECT_THAT(token_words, HasSubstr("train.micro_batch_size"));
  deck.train.micro_batch_size = 127;
  deck.parallel.allow_uneven = true;
  EXPECT_EQ(refusal_of(deck).first, Exit::finished);
  deck.train.micro_batch_size = 128;
  EXPECT_EQ(refusal_of(deck).first, Exit::usage);
}

/// The lists that a run builds are counted by arithmetic: those of this one would take terabytes.
TEST(Plan, of_a_large_vocabulary_builds_none_of_the_lists_that_it_counts) {
  config::Settings deck = test::small_deck();
  deck.model.vocab_size = 1 << 30;
  deck.model.d_model = 1 << 18;
  deck.model.num_heads = 1024;
  deck.parallel.offload = config::Offload::optimizer;
  const Plan plan = plan_training(deck, Dtype::bf16, 1, kH200);
  const std::int64_t table = std::int64_t{1} << (30 + 18);
  EXPECT_GE(plan.layout[plan.cleared].shape[0], table / kernels::kClearedPerTeam);
  EXPECT_GE(plan.layout[plan.update.blocks].shape[0], 2 * table / kernels::kUpdateBlock);
  EXPECT_GE(chunk_count(plan.sharing.ownership.owned_count()), 2 * table >> 22);
}

TEST(Plan, counts_what_a_run_builds) {
  const config::Settings large = test::gpu_deck("small");
  for (const config::Shard shard :
       {config::Shard::none, config::Shard::optimizer, config::Shard::gradients, config::Shard::parameters}) {
    for (const config::Offload offload : {config::Offload::none, config::Offload::optimizer}) {
      for (const int ranks : {1, 3, 4}) {
        config::Settings deck = large;
        deck.train.batch_size = ranks;
        deck.parallel.shard = shard;
        deck.parallel.offload = offload;
        const Plan plan = plan_training(deck, Dtype::bf16, ranks, kH200);
        const Sharing& sharing = plan.sharing;
        EXPECT_EQ(plan.layout[plan.cleared].shape[0], std::ssize(clear_lists(plan.table, sharing).spans));
        const bool is_offloaded = offload != config::Offload::none;
        for (int rank = 0; rank < ranks; ++rank) {
          std::vector<kernels::UpdateSpan> spans;
          for (const OwnedSpan& span : owned_spans(plan.table, sharing, sharing.shard_of(rank))) {
            spans.push_back({span.state, span.grad, span.state, span.count, false});
          }
          const std::int64_t built = std::ssize(kernels::make_update_blocks(spans));
          const std::int64_t chunks = is_offloaded ? std::ssize(chunks_of(sharing.ownership.owned_count())) : 0;
          EXPECT_GE(plan.layout[plan.update.blocks].shape[0], built + chunks);
          if (sharing.ownership.shards() == 1) {
            EXPECT_EQ(plan.layout[plan.update.blocks].shape[0], built + chunks);
          }
        }
      }
    }
  }
}

TEST(Gathers, of_a_step_are_those_of_its_first_micro_step_and_of_one_that_stands_for_the_others) {
  for (const bool reshards : {true, false}) {
    for (const std::int64_t prefetch : {0, 1, 2, 5}) {
      for (const std::int64_t checkpoint : {0, 1, 2}) {
        config::Settings deck = test::small_deck();
        deck.parallel.shard = config::Shard::parameters;
        deck.parallel.reshard_after_forward = reshards;
        deck.parallel.prefetch_blocks = prefetch;
        const Plan plan = plan_training(deck, Dtype::fp32, 2);
        const model::Segments segments{plan.shape.L, checkpoint};
        const Gathers gathers = gathers_of(plan.table, plan.sharing, segments);
        const std::vector<int> openings = openings_of(plan.table, segments);
        for (const int micro_steps : {1, 2, 5}) {
          std::vector<int> expected, joined = gathers.first;
          const std::vector<bool> stays = parallel::stays_in_place(openings, micro_steps, plan.sharing.weights_places);
          for (std::size_t i = 0; i < stays.size(); ++i) {
            if (!stays[i]) expected.push_back(openings[i % openings.size()]);
          }
          for (int i = 1; i < micro_steps; ++i) {
            joined.insert(joined.end(), gathers.later.begin(), gathers.later.end());
          }
          EXPECT_EQ(joined, expected) << reshards << prefetch << checkpoint << ", " << micro_steps << " micro-steps";
        }
      }
    }
  }
}

/// The deck of input/bench/step_gpu/deck.toml, as a graph whose products are timed.
config::Settings tuned_gpu_deck() {
  config::Settings s = test::gpu_deck("small");
  s.train.graph = s.train.tune_gemm = true;
  return s;
}

TEST(PlanDevice, here_is_what_this_build_computes_on) {
  config::Settings deck = test::small_deck();
  deck.train.sample_tokens = 10;
  const std::string architecture = parallel::compiled_architecture();  // "sm_90a", or nothing
  Machine named;
  named.target = kernels::kIsHost<kernels::Device> ? kernels::kHostTarget
                 : kernels::kHere.is_portable      ? kernels::Target{.is_host = false, .is_portable = true}
                                                   : kernels::gpu_target(architecture.substr(3));
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    const Plan here = plan_training(deck, dtype, 2), there = plan_training(deck, dtype, 2, named);
    EXPECT_EQ(here.layout.table(), there.layout.table());
    EXPECT_EQ(here.layout.total_bytes(), there.layout.total_bytes());
    ASSERT_EQ(here.layout.tensors().size(), there.layout.tensors().size());
    for (std::size_t i = 0; i < here.layout.tensors().size(); ++i) {
      EXPECT_EQ(here.layout.tensors()[i].offset, there.layout.tensors()[i].offset) << here.layout.tensors()[i].label;
    }
  }
}

TEST(PlanText, of_cpus_is_that_of_a_build_for_them_but_for_the_name) {
  if (!kernels::kIsHost<kernels::Device>) GTEST_SKIP() << "this build is for GPUs";
  config::Settings deck = test::small_deck();
  const std::string here = plan_text(deck, 2);
  deck.plan.device = config::PlanDevice::cpu;
  const std::string cpu = plan_text(deck, 2);
  EXPECT_THAT(cpu, HasSubstr("on CPUs (plan.device)\n"));
  EXPECT_EQ(cpu.substr(cpu.find('\n')), here.substr(here.find('\n')));
}

TEST(PlanDevice, h200_takes_to_the_byte_what_its_own_build_plans_and_what_was_measured_there) {
  struct Golden {
    std::string_view size;
    std::int64_t bytes;  // as a build for sm_90a plans
    double gib;          // as taken on an H200: input/bench/step_gpu, of which plans are within 0.2 %
  };
  config::Settings deck = tuned_gpu_deck();
  deck.train.tune_gemm = false;
  for (const Golden& row : {Golden{"small", 2'497'255'424, 2.3}, Golden{"medium", 7'636'580'096, 7.1},
                            Golden{"large", 16'703'960'320, 15.6}, Golden{"xl", 33'136'506'880, 30.9},
                            Golden{"2.7b", 53'229'073'152, 49.6}}) {
    deck.model = test::with_size(deck.model, row.size);
    const std::int64_t bytes = plan_training(deck, Dtype::bf16, 1, kH200).layout.total_bytes();
    EXPECT_EQ(bytes, row.bytes) << row.size;
    EXPECT_NEAR(static_cast<double>(bytes) / (1 << 30), row.gib, 0.05 + 0.002 * row.gib) << row.size;
  }
}

/// Collectives of `size` ranks, seen by one of them, whose sums leave squares as copy engines' do: parts of equal
/// bytes, rounded up to 256, and a partial sum for each 16 KiB of this rank's.
class Engines final : public test::NoCollectives {
 public:
  using NoCollectives::NoCollectives;
  std::unique_ptr<parallel::Transfer> make(const parallel::Message& message) override {
    const std::int64_t bytes = message.wire.count > 0 ? message.wire.bytes() : message.span.bytes();
    const std::int64_t part = ((bytes + size() - 1) / size() + 255) / 256 * 256;
    const std::int64_t own = std::clamp(bytes - rank() * part, std::int64_t{0}, part);
    return std::make_unique<Sum>(own);
  }

 private:
  struct Sum final : parallel::Transfer {
    explicit Sum(std::int64_t bytes) : bytes(bytes) {}
    bool leave_squares(parallel::Squares& room) override {
      room.take(bytes);
      return true;
    }
    void start(const kernels::Device&) override {}
    bool test() override { return true; }
    void join(const kernels::Device&) override {}
    Times times() override { return {}; }
    std::int64_t bytes;
  };
};

TEST(Priority, of_a_step_is_raised_where_transfers_yield_with_ZeRO_1_and_2_and_with_offload) {
  struct Yielding final : test::NoCollectives {
    bool can_yield() const override { return true; }
  };
  using enum config::Shard;
  for (const auto shard : {none, optimizer, gradients, parameters}) {
    config::Parallel keys;
    keys.shard = shard;
    const auto is_raised = [&](const parallel::Collectives& collectives) {
      return priority_of(keys, collectives) == kernels::StreamPriority::raised;
    };
    EXPECT_EQ(is_raised(test::NoCollectives()), shard == optimizer || shard == gradients);
    EXPECT_EQ(is_raised(Yielding()), shard != parameters);
    keys.offload = config::Offload::optimizer;
    EXPECT_TRUE(is_raised(test::NoCollectives()));
  }
}

TEST(PlanDevice, norm_has_room_for_the_squares_that_transfers_leave_in_every_order) {
  using enum config::GradientSync;
  for (const int ranks : {2, 3, 5, 8, 16}) {
    for (const auto order : {per_parameter, flat, overlap, bucket}) {
      for (const auto& [gradients, reduce] : {std::pair{config::GradientPrecision::fp32, config::ReducePrecision::fp32},
                                              {config::GradientPrecision::fp32, config::ReducePrecision::bf16},
                                              {config::GradientPrecision::bf16, config::ReducePrecision::bf16}}) {
        config::Settings deck = test::gpu_deck("small");
        deck.train.batch_size = ranks;
        deck.parallel.gradient_sync = order;
        deck.parallel.bucket_mbyte = 3;
        deck.precision.gradients = gradients;
        deck.precision.reduce = reduce;
        const Plan plan = plan_training(deck, Dtype::bf16, ranks, kH200);
        ASSERT_TRUE(leaves_squares(plan));
        const Dtype kept = plan.layout[plan.arrays.grads].dtype;
        const parallel::Span wire = plan.arrays.wire == memory::kAbsent
                                        ? parallel::Span{}
                                        : parallel::Span{"wire", nullptr, plan.table.flat_count(), Dtype::bf16};
        const parallel::Span room{"room", nullptr, plan.layout[plan.update.norm_partial].count, Dtype::fp64};
        std::vector<parallel::Span> spans;
        char* address = nullptr;  // never followed
        for (const memory::Part& part : model::parts_of(plan.table, "grad.")) {
          spans.push_back({part.label, address, part.count, kept});
          address += spans.back().bytes();
        }
        for (int rank = 0; rank < ranks; ++rank) {
          Engines engines(rank, ranks);
          const parallel::Replicated strategy(engines, {}, spans, order_of(deck.parallel), wire, {room, room});
          EXPECT_GT(strategy.squares().value_or(-1), 0) << ranks << " ranks, order " << static_cast<int>(order);
        }
      }
    }
  }
}

TEST(PlanDevice, workspaces_are_those_of_its_kernels) {
  const Plan plan = plan_training(tuned_gpu_deck(), Dtype::bf16, 1, kH200);
  const auto bytes_of_tensor = [&](std::string_view label) {
    for (const memory::Tensor& tensor : plan.layout.tensors()) {
      if (tensor.label == label) return tensor.bytes;
    }
    return std::int64_t{0};
  };
  EXPECT_EQ(bytes_of_tensor("gemm.workspace"), (32 << 20) + 256);
  EXPECT_EQ(bytes_of_tensor("norm.partial"), 8 * 132 * 768 * 4);
  EXPECT_EQ(bytes_of_tensor("head.logits"), std::int64_t{4} * 512 * 10000 * 2);  // one chunk
  EXPECT_EQ(bytes_of_tensor("attention.counter"), 4);
  EXPECT_EQ(bytes_of_tensor("attention.workspace"),
            kernels::attention_workspace_bytes(plan.options.attention, Dtype::bf16, 4, 12, 512, 64));
  EXPECT_EQ(plan.options.attention.backward, kernels::Engine::wgmma);
  // the largest product is the gradient of the head, in fp32
  EXPECT_EQ(plan.layout.total_bytes() - plan.layout.arena_bytes(),
            std::max(2048 * 10000 * 2, 10000 * 768 * 4) + (128 << 20));
}

TEST(PlanDevice, flash1_and_tiled_have_a_workspace_in_both_passes) {
  for (const auto kernel : {config::AttentionKernel::flash1, config::AttentionKernel::tiled}) {
    config::Settings deck = tuned_gpu_deck();
    deck.attention = {.kernel = kernel};
    const Plan plan = plan_training(deck, Dtype::bf16, 1, kH200);
    std::int64_t bytes = 0;
    for (const memory::Tensor& tensor : plan.layout.tensors()) {
      if (tensor.label == "attention.workspace") bytes += tensor.bytes;
    }
    const std::int64_t rows = 4 * 12 * 512;  // B H T; D 64
    const auto& attention = plan.options.attention;
    const std::int64_t forward = kernels::attention_forward_workspace_bytes(attention, Dtype::bf16, 4, 12, 512, 64);
    EXPECT_EQ(forward,
              kernel == config::AttentionKernel::flash1 ? rows * (64 + 1) * 4 : 4 * 12 * 128 * (128 + 2 * 64 + 3) * 4);
    // backward is flash2's; one tensor serves both passes
    EXPECT_EQ(bytes, std::max(forward, kernels::attention_workspace_bytes(attention, Dtype::bf16, 4, 12, 512, 64,
                                                                          plan.options.target)));
  }
}

TEST(PlanDevice, refuses_tiles_that_do_not_fit_its_scratch_by_bytes_and_limit) {
  config::Settings deck = tuned_gpu_deck();
  deck.attention = {.kernel = config::AttentionKernel::flash1, .query_tile = 128, .key_tile = 128};
  EXPECT_NO_THROW(plan_text(deck, 1));  // heads of 64 in bf16
  deck.precision.compute = config::Precision::fp32;
  deck.attention.kernel = config::AttentionKernel::flash1_4;
  deck.model.num_heads = 6;  // heads of 128
  const auto [code, words] = refusal_of(deck);
  EXPECT_EQ(code, Exit::usage);
  // scores 128 x 132, out 128 x 132, four numbers per query, q, k and v 128 x 132; 16 bytes to begin at a packet
  EXPECT_THAT(words, HasSubstr(fmt::format("pads of {} bytes", (128 * 132 * 5 + 4 * 128) * 4 + 16)));
  EXPECT_THAT(words, HasSubstr(fmt::format("a team {} bytes of scratch. Set smaller tiles", 227 * 1024 - 1024)));
}

TEST(PlanDevice, names_flash2_where_no_tiles_of_a_kernel_fit) {
  const Machine machine{.target = {.is_host = false, .is_portable = true}};  // 48 KiB
  const config::Attention flash1{.kernel = config::AttentionKernel::flash1};
  EXPECT_NO_THROW(choose_attention(flash1, Dtype::fp32, 128, machine));
  try {
    choose_attention(flash1, Dtype::fp32, 256, machine);
    ADD_FAILURE() << "tiles of 16 need more than 48 KiB";
  } catch (const Failure& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("No tiles of this kernel fit: set attention.kernel = \"flash2\""));
  }
}

TEST(PlanDevice, flash1_takes_tensor_cores_where_the_gpu_and_the_dtype_have_them) {
  config::Settings deck = tuned_gpu_deck();
  deck.attention.kernel = config::AttentionKernel::flash1_5;
  EXPECT_THAT(plan_text(deck, 1), HasSubstr("attention  flash1 (5 steps, backward flash2 portable), "));
}

TEST(PlanDevice, a_gpu_counts_the_buffers_of_its_collectives) {
  config::Settings deck = tuned_gpu_deck();
  deck.train.tune_gemm = false;
  Machine machine = kH200;
  const auto outside = [&](int ranks) {
    const Plan plan = plan_training(deck, Dtype::bf16, ranks, machine);
    return plan.layout.total_bytes() - plan.layout.arena_bytes();
  };
  EXPECT_EQ(outside(1), 0);
  EXPECT_EQ(outside(4), std::int64_t{490 + 160} << 20);
  machine.reaches_peers = false;  // no copy engine reaches another host
  EXPECT_EQ(outside(4), std::int64_t{490} << 20);
}

TEST(RequireSameMethod, refuses_rows_with_and_without_groups_that_share_their_communicators) {
  config::Deck deck;
  for (const std::int64_t shard_ranks : {0, 2}) {
    config::DeckRow row{"shard_" + std::to_string(shard_ranks), {}, {}, ""};
    row.settings.parallel.shard = config::Shard::parameters;
    row.settings.parallel.shard_ranks = shard_ranks;
    deck.rows.push_back(row);
  }
  EXPECT_NO_THROW(require_same_method(deck, 2));
  EXPECT_THROW(require_same_method(deck, 4), Failure);
  EXPECT_FALSE(collectives_of(deck, 4).forms_groups);
  deck.rows.front().is_chosen = false;
  EXPECT_NO_THROW(require_same_method(deck, 4));
  EXPECT_TRUE(collectives_of(deck, 4).forms_groups) << "those of the row that runs, not of the deck";
  deck.rows.front().is_chosen = true;
  deck.settings.parallel.transfers = config::Transfers::ring;
  EXPECT_NO_THROW(require_same_method(deck, 4));
}

/// Copy engines serve all ranks together, and each group has a communicator of its own. Overlap copy engines NCCL moves
/// the first weights alone, where every rank keeps all.
TEST(PlanDevice, a_gpu_counts_the_communicators_of_its_groups_and_no_receive_buffer) {
  config::Settings deck = tuned_gpu_deck();
  deck.train.tune_gemm = false;
  deck.parallel.shard = config::Shard::parameters;
  const auto outside = [&](std::int64_t shard_ranks) {
    deck.parallel.shard_ranks = shard_ranks;
    EXPECT_EQ(collectives_of(deck.parallel, 4).forms_groups, shard_ranks == 2) << shard_ranks;
    const Plan plan = plan_training(deck, Dtype::bf16, 4, kH200);
    return plan.layout.total_bytes() - plan.layout.arena_bytes();
  };
  EXPECT_EQ(outside(0), std::int64_t{160} << 20);
  EXPECT_EQ(outside(1), std::int64_t{490 + 160} << 20);
  EXPECT_EQ(outside(2), std::int64_t{3 * 490} << 20);
  EXPECT_EQ(outside(4), std::int64_t{160} << 20);
}

/// Whatever the size of the model, as test_collective.cpp measures it.
TEST(PlanDevice, counts_what_collectives_over_mpi_take_of_the_host) {
  config::Settings deck = tuned_gpu_deck();
  deck.attention = {};
  deck.train.tune_gemm = false;
  const auto outside = [&](const Machine& machine, memory::Space space) {
    const Plan plan = plan_training(deck, Dtype::fp32, 4, machine);
    return plan.layout.total_bytes(space) - plan.layout.arena_bytes(space);
  };
  constexpr std::int64_t kPieces = 8 << 20;  // of one communicator under way
  const Machine cpu{.target = kernels::kHostTarget, .has_nccl = false};
  EXPECT_EQ(outside(cpu, memory::Space::host), 0);
  const std::int64_t none = outside(cpu, memory::Space::device);
  deck.parallel.shard = config::Shard::gradients;
  EXPECT_EQ(outside(cpu, memory::Space::device) - none, (1 + 2 - 1) * kPieces);
  deck.parallel.shard_ranks = 2;
  EXPECT_EQ(outside(cpu, memory::Space::device) - none, (1 + 2 + 1 - 1) * kPieces);
  deck.parallel.collectives = config::Collectives::mpi;
  EXPECT_LT(outside(kH200, memory::Space::device), kPieces);  // nothing of NCCL
  EXPECT_EQ(outside(kH200, memory::Space::host), (2 + 3) * kPieces);
}

TEST(PlanDevice, says_whether_a_gpu_has_the_memory) {
  config::Settings deck = tuned_gpu_deck();
  EXPECT_THAT(plan_text(deck, 1), HasSubstr("on H200s (plan.device; sm_90a)\n"));
  EXPECT_THAT(plan_text(deck, 1), HasSubstr(": fits, an H200 has 139.3 GiB free\n"));
  deck.model = test::with_size(deck.model, "8b");
  deck.plan.device = config::PlanDevice::h100;
  EXPECT_THAT(plan_text(deck, 1), HasSubstr(": TOO MUCH, an H100 has 78.7 GiB free\n"));
  deck.plan.device = config::PlanDevice::a100;
  EXPECT_THAT(plan_text(deck, 1), HasSubstr("attention  flash2 (mma), "));
}

TEST(PlanDevice, refuses_what_no_build_for_it_can_run) {
  config::Settings deck = tuned_gpu_deck();
  deck.plan.device = config::PlanDevice::cpu;
  const auto [code, words] = refusal_of(deck);
  EXPECT_EQ(code, Exit::environment);
  EXPECT_THAT(words, HasSubstr("train.graph = true needs a build with CUDA, which a build for CPUs lacks"));

  deck.plan.device = config::PlanDevice::a100;
  deck.attention.kernel = config::AttentionKernel::wgmma;
  const auto [engine_code, engine_words] = refusal_of(deck);
  EXPECT_EQ(engine_code, Exit::usage);
  EXPECT_THAT(engine_words, HasSubstr("a build for A100s has no such kernel for bf16"));

  deck = tuned_gpu_deck();
  deck.parallel.ranks = 8;
  deck.train.batch_size = 8;
  deck.plan.ranks_per_node = 4;
  deck.parallel.transfers = config::Transfers::copy_engine;
  const auto [spread_code, spread_words] = refusal_of(deck);
  EXPECT_EQ(spread_code, Exit::usage);
  EXPECT_THAT(spread_words, HasSubstr("plan.ranks_per_node = 4 puts 8 ranks on several"));

  deck.plan.ranks_per_node = 0;
  deck.parallel.ranks = 17;
  deck.train.batch_size = 17;
  const auto [many_code, many_words] = refusal_of(deck);
  EXPECT_EQ(many_code, Exit::usage);
  EXPECT_THAT(many_words, HasSubstr("serves 16 ranks at most, not 17"));
  deck.parallel.transfers = config::Transfers::automatic;
  EXPECT_FALSE(machine_of(deck.plan, 17).reaches_peers) << "the ring serves them";
  EXPECT_TRUE(machine_of(deck.plan, 16).reaches_peers);
}

TEST(PlanText, sums_the_memory_of_the_ranks_of_a_host) {
  config::Settings deck = test::small_deck();
  deck.plan.device = config::PlanDevice::cpu;
  const Plan plan = plan_training(deck, Dtype::fp32, 3, {.target = kernels::kHostTarget, .has_nccl = false});
  const std::int64_t each = plan.layout.total_bytes() + plan.layout.arena_bytes(memory::Space::host);
  const auto host_of = [&](std::int64_t ranks, const std::string& words) {
    return "per rank   " + memory::readable_bytes(each) + " (" + std::to_string(each) + " bytes)\nper host   " +
           memory::readable_bytes(ranks * each) + " (" + words + ")\n";
  };
  EXPECT_THAT(plan_text(deck, 3), HasSubstr(host_of(3, "3 ranks")));
  deck.plan.ranks_per_node = 3;
  EXPECT_THAT(plan_text(deck, 3), HasSubstr(host_of(3, "3 ranks")));
  deck.plan.ranks_per_node = 1;
  EXPECT_THAT(plan_text(deck, 3), HasSubstr(host_of(1, "1 rank on each of 3 hosts")));
  deck.plan.ranks_per_node = 2;
  EXPECT_THAT(plan_text(deck, 3), HasSubstr(host_of(2, "2 ranks on each of 2 hosts, the last with fewer")));

  deck.plan.device = config::PlanDevice::h100;
  EXPECT_THAT(plan_text(deck, 3), HasSubstr(" on 2 GPUs, "));
}

}  // namespace
}  // namespace tessera::train
