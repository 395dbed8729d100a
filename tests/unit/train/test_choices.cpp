/// What the deck's [attention] chooses, in this build and on the devices that a plan may name.
#include "train/choices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "errors.hpp"
#include "train/plan.hpp"
#include "unit/train/decks.hpp"

namespace tessera::train {
namespace {

using config::AttentionKernel;
using kernels::AttentionChoice, kernels::Engine;
using ::testing::HasSubstr;

const Machine kCpu{.build = "a build for CPUs", .target = kernels::kHostTarget};
const Machine kA100{.build = "a build for A100s", .target = kernels::gpu_target("80")};
const Machine kH100{.build = "a build for H100s", .target = kernels::gpu_target("90a")};
const Machine kH200{.build = "a build for H200s", .target = kernels::gpu_target("90a")};

std::string chosen(const config::Attention& attention, Dtype dtype, const Machine& machine, int D = 64) {
  return describe(choose_attention(attention, dtype, D, machine));
}

/// What it says when it refuses, as a fault of the deck.
std::string refusal_of(const config::Attention& attention, Dtype dtype, const Machine& machine, int D = 64) {
  try {
    const AttentionChoice choice = choose_attention(attention, dtype, D, machine);
    ADD_FAILURE() << "chose " << describe(choice);
    return "";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::usage);
    return failure.what();
  }
}

TEST(ChooseAttention, is_portable_where_the_deck_names_flash2) {
  for (const Machine& machine : {Machine{}, kCpu, kA100, kH100, kH200}) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
      EXPECT_EQ(chosen({.kernel = AttentionKernel::flash2}, dtype, machine), "flash2 (portable)") << machine.build;
    }
  }
}

TEST(ChooseAttention, takes_the_fastest_of_this_build_where_the_deck_leaves_it_open) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    const AttentionChoice choice = choose_attention({}, dtype, 64),
                          fastest = kernels::fastest_attention(dtype, 64, true);
    EXPECT_EQ(choice.forward, fastest.forward);
    EXPECT_EQ(choice.backward, fastest.backward);
    EXPECT_EQ(choice.steps, fastest.steps);
  }
}

TEST(ChooseAttention, is_the_portable_kernel_where_there_are_no_tensor_cores_for_it) {
  for (const Machine& gpu : {kA100, kH100, kH200}) {
    EXPECT_EQ(chosen({}, Dtype::fp32, gpu, 13), "flash2 (portable)");
    EXPECT_EQ(chosen({}, Dtype::bf16, gpu, 13), "flash2 (portable)");
    EXPECT_EQ(chosen({}, Dtype::fp32, gpu), "flash2 (mma)") << gpu.build;
    EXPECT_EQ(chosen({}, Dtype::fp32, gpu, 256), "flash2 (mma)");
    EXPECT_EQ(chosen({}, Dtype::bf16, gpu), gpu.target.has_wgmma ? "flash2 (wgmma)" : "flash2 (mma)");
  }
  EXPECT_EQ(chosen({}, Dtype::fp32, kCpu), "flash2 (portable)");
  EXPECT_EQ(chosen({}, Dtype::bf16, kCpu), "flash2 (portable)");
}

TEST(ChooseAttention, refuses_tensor_cores_that_the_device_does_not_have_and_names_the_fix) {
  for (const AttentionKernel kernel : {AttentionKernel::mma, AttentionKernel::wgmma}) {
    EXPECT_THAT(refusal_of({.kernel = kernel}, Dtype::bf16, kCpu), HasSubstr("a build for CPUs has no such kernel"));
    EXPECT_THAT(refusal_of({.kernel = kernel}, Dtype::bf16, kCpu), HasSubstr("Set attention.kernel = \"auto\""));
    EXPECT_THAT(refusal_of({.kernel = kernel}, Dtype::bf16, kH200, 13), HasSubstr("heads of width 13"));
  }
  EXPECT_THAT(refusal_of({.kernel = AttentionKernel::wgmma}, Dtype::fp32, kH200),
              HasSubstr("has no such kernel for fp32"));
  EXPECT_EQ(chosen({.kernel = AttentionKernel::mma}, Dtype::fp32, kA100), "flash2 (mma)");
  EXPECT_THAT(refusal_of({.kernel = AttentionKernel::flash1_5}, Dtype::bf16, kCpu),
              HasSubstr("Set attention.kernel = \"flash1/4\""));
  EXPECT_THAT(refusal_of({.kernel = AttentionKernel::flash2_4}, Dtype::fp32, kCpu),
              HasSubstr("need a GPU. Set attention.kernel = \"flash2\""));
  EXPECT_EQ(chosen({.kernel = AttentionKernel::mma}, Dtype::bf16, kH200), "flash2 (mma)");
  EXPECT_EQ(chosen({.kernel = AttentionKernel::wgmma}, Dtype::bf16, kH200), "flash2 (wgmma)");
}

TEST(ChooseAttention, says_by_how_many_products_tensor_cores_multiply_fp32) {
  using kernels::GemmMath;
  const AttentionChoice mma = choose_attention({}, Dtype::fp32, 64, kH200);
  EXPECT_EQ(products_text(mma, Dtype::fp32, GemmMath::full, kH200.target), ", fp32 by 3 TF32 products");
  EXPECT_EQ(products_text(mma, Dtype::fp32, GemmMath::tf32, kH200.target), ", fp32 by 1 TF32 product");
  EXPECT_EQ(products_text(mma, Dtype::bf16, GemmMath::full, kH200.target), "");
  EXPECT_EQ(products_text(choose_attention({}, Dtype::fp32, 64, kCpu), Dtype::fp32, GemmMath::full, kCpu.target), "");
}

TEST(ChooseAttention, says_where_no_library_multiplies_for_standard_attention) {
  const kernels::Target portable{.is_host = false, .is_portable = true};
  AttentionChoice by_library;
  by_library.kind = kernels::AttentionKind::standard;
  AttentionChoice by_teams = by_library;
  by_teams.steps = 0;
  for (const auto& [target, dtype, says] : {std::tuple(kCpu.target, Dtype::fp32, false),
                                            {kCpu.target, Dtype::bf16, true},
                                            {kH200.target, Dtype::bf16, false},
                                            {portable, Dtype::fp32, true}}) {
    EXPECT_EQ(products_text(by_library, dtype, kernels::GemmMath::full, target).empty(), !says);
    EXPECT_EQ(products_text(by_teams, dtype, kernels::GemmMath::full, target), "");
  }
}

TEST(ChooseAttention, takes_the_steps_and_tiles_of_the_deck) {
  const AttentionChoice flash1 =
      choose_attention({.kernel = AttentionKernel::flash1_3, .query_tile = 16}, Dtype::fp32, 64);
  EXPECT_EQ(flash1.kind, kernels::AttentionKind::flash1);
  EXPECT_EQ(flash1.steps, 3);
  EXPECT_EQ(describe(flash1), "flash1 (3 steps, backward flash2 portable, query tile 16)");
  EXPECT_EQ(choose_attention({.kernel = AttentionKernel::flash1}, Dtype::fp32, 64).steps, 0);
  EXPECT_EQ(choose_attention({.kernel = AttentionKernel::flash2_0}, Dtype::fp32, 64).steps, 0);
  EXPECT_EQ(describe(choose_attention({.kernel = AttentionKernel::standard}, Dtype::fp32, 64)), "standard");
  EXPECT_EQ(describe(choose_attention({.kernel = AttentionKernel::standard_0}, Dtype::fp32, 64)), "standard (0 steps)");
  EXPECT_EQ(choose_attention({.kernel = AttentionKernel::flash2}, Dtype::fp32, 64).steps, kernels::kNoLadder);
  const AttentionChoice flash2 =
      choose_attention({.kernel = AttentionKernel::flash2_1, .key_tile = 32}, Dtype::fp32, 64);
  EXPECT_EQ(describe(flash2), "flash2 (1 step, key tile 32, backward portable)");
  EXPECT_EQ(describe(choose_attention({.kernel = AttentionKernel::tiled}, Dtype::bf16, 64)),
            "tiled (backward flash2 portable)");
}

TEST(ChooseAttention, names_the_version_of_the_forward_pass_in_tables) {
  EXPECT_EQ(forward_text(choose_attention({.kernel = AttentionKernel::flash2_3}, Dtype::fp32, 64, kH200)), "3 steps");
  EXPECT_EQ(forward_text(choose_attention({.kernel = AttentionKernel::flash2_5}, Dtype::fp32, 64, kH200)), "5 steps");
  EXPECT_EQ(forward_text(choose_attention({}, Dtype::fp32, 64, kH200)), "mma");
  EXPECT_EQ(forward_text(choose_attention({}, Dtype::bf16, 64, kH200)), "wgmma");
  EXPECT_EQ(forward_text(choose_attention({}, Dtype::fp32, 64, kCpu)), "portable");
}

TEST(ChooseAttention, on_the_ladder_takes_as_much_memory_as_the_portable_kernel) {
  config::Settings deck = test::gpu_deck("small");
  deck.precision = {};  // fp32
  deck.attention.kernel = AttentionKernel::flash2_3;
  const Plan on_ladder = plan_training(deck, Dtype::fp32, 1, kH200);
  EXPECT_EQ(describe(on_ladder.options.attention), "flash2 (3 steps, backward portable)");
  deck.attention.kernel = AttentionKernel::flash2;
  const Plan portable = plan_training(deck, Dtype::fp32, 1, kH200);
  EXPECT_EQ(on_ladder.layout.table(), portable.layout.table());
  EXPECT_EQ(on_ladder.layout.total_bytes(), portable.layout.total_bytes());
}

}  // namespace
}  // namespace tessera::train
