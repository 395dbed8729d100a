#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/flash2/backward.hpp"
#include "kernels/attention/flash2/register_tiles.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/rmsnorm.hpp"

namespace tessera::test {
namespace {

using kernels::Engine;
using kernels::gpu_target;
using kernels::has_backward;
using kernels::has_forward;
using kernels::kHostTarget;

TEST(Target, of_this_build_is_a_host_where_kernels_run_on_one) {
  EXPECT_EQ(kernels::kHere.is_host, kernels::kIsHost<kernels::Device>);
  EXPECT_EQ(kernels::kHere.has_vendor_parts(), kernels::kHere.team_scratch_kib > 0);
}

TEST(Target, has_the_engines_whose_instructions_and_scratch_it_has) {
  const kernels::Target ampere = gpu_target("80"), small = gpu_target("89"), hopper = gpu_target("90a");
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp64}) {
    const bool is_16_bit = bytes_of(dtype) == 2;
    for (const kernels::Target& target : {kHostTarget, ampere, small, hopper}) {
      EXPECT_TRUE(has_forward(Engine::portable, dtype, 13, target) &&
                  has_backward(Engine::portable, dtype, 13, target));
      EXPECT_EQ(has_forward(Engine::mma, dtype, 64, target), dtype != Dtype::fp64 && !target.is_host);
      EXPECT_EQ(has_backward(Engine::mma, dtype, 64, target), dtype != Dtype::fp64 && !target.is_host);
      EXPECT_EQ(has_forward(Engine::wgmma, dtype, 64, target), is_16_bit && target.has_wgmma);
      EXPECT_EQ(has_backward(Engine::wgmma, dtype, 64, target), is_16_bit && target.has_wgmma);
    }
  }
  for (int D = 1; D <= 264; ++D) {
    const bool is_whole = D % 8 == 0 && D <= 256;
    const auto is_one_of = [&](std::initializer_list<int> list) { return std::ranges::find(list, D) != list.end(); };
    EXPECT_EQ(has_forward(Engine::mma, Dtype::bf16, D, small), is_whole) << D;
    EXPECT_EQ(has_backward(Engine::mma, Dtype::bf16, D, ampere), is_whole) << D;
    EXPECT_EQ(has_backward(Engine::mma, Dtype::bf16, D, hopper), is_whole) << D;
    EXPECT_EQ(has_backward(Engine::mma, Dtype::bf16, D, small), is_whole && D <= 96) << D;
    EXPECT_EQ(has_forward(Engine::mma, Dtype::fp32, D, small), is_whole) << D;
    EXPECT_EQ(has_backward(Engine::mma, Dtype::fp32, D, ampere), is_whole) << D;
    EXPECT_EQ(has_backward(Engine::mma, Dtype::fp32, D, hopper), is_whole) << D;
    EXPECT_EQ(has_backward(Engine::mma, Dtype::fp32, D, small), is_whole && D <= 160) << D;
    EXPECT_EQ(has_forward(Engine::wgmma, Dtype::bf16, D, hopper), is_one_of({16, 32, 64, 80, 96, 128, 160, 192, 256}));
    EXPECT_EQ(has_backward(Engine::wgmma, Dtype::bf16, D, hopper), is_one_of({32, 64, 80, 96, 128, 256}));
  }
}

TEST(Target, takes_the_fastest_engine_that_it_has_in_each_direction) {
  const auto fastest = [](int D, const kernels::Target& target, Dtype dtype = Dtype::bf16) {
    const kernels::AttentionChoice choice = kernels::fastest_attention(dtype, D, true, target);
    return std::pair(choice.forward, choice.backward);
  };
  EXPECT_EQ(fastest(64, kHostTarget), std::pair(Engine::portable, Engine::portable));
  EXPECT_EQ(fastest(64, gpu_target("80")), std::pair(Engine::mma, Engine::mma));
  EXPECT_EQ(fastest(64, gpu_target("90a")), std::pair(Engine::wgmma, Engine::wgmma));
  EXPECT_EQ(fastest(160, gpu_target("90a")), std::pair(Engine::wgmma, Engine::mma));
  EXPECT_EQ(fastest(192, gpu_target("89")), std::pair(Engine::mma, Engine::portable));
  for (const char* capability : {"80", "90a"}) {
    EXPECT_EQ(fastest(64, gpu_target(capability), Dtype::fp32), std::pair(Engine::mma, Engine::mma));
  }
  EXPECT_EQ(fastest(192, gpu_target("89"), Dtype::fp32), std::pair(Engine::mma, Engine::portable));
  EXPECT_EQ(fastest(64, kHostTarget, Dtype::fp32), std::pair(Engine::portable, Engine::portable));
}

TEST(Target, takes_the_portable_kernel_where_no_tensor_core_serves_dtype_and_width) {
  for (const Dtype dtype : {Dtype::fp64, Dtype::fp32, Dtype::bf16}) {
    for (const kernels::Target& target : {kHostTarget, gpu_target("80"), gpu_target("86"), gpu_target("90a")}) {
      for (int D = 1; D <= 256; ++D) {
        const kernels::AttentionChoice choice = kernels::fastest_attention(dtype, D, true, target);
        EXPECT_EQ(choice.steps, kernels::kNoLadder);
        if (dtype == Dtype::fp64 || D % 8 != 0) {
          EXPECT_EQ(choice.forward, Engine::portable) << D;
          EXPECT_EQ(choice.backward, Engine::portable) << D;
        }
        EXPECT_LE(kernels::attention_pad_bytes(choice, dtype, D, target), scratch_limit(target)) << D;
      }
    }
  }
}

std::int64_t workspace(Engine backward, int D, Dtype dtype = Dtype::bf16,
                       const kernels::Target& target = gpu_target("90a")) {
  kernels::AttentionChoice choice;
  choice.backward = backward;
  return kernels::attention_workspace_bytes(choice, dtype, 2, 3, 200, D, target);
}

TEST(Target, workspaces_of_attention_are_those_of_the_contracts_in_every_build) {
  EXPECT_EQ(workspace(Engine::portable, 64, Dtype::bf16, kHostTarget), 0);
  // portable: lse and delta, in 16 bits also d_q of the next compiled width, a turn per 4 rows, and one counter
  EXPECT_EQ(workspace(Engine::portable, 72), 6 * 256 * (96 + 2) * 4 + (6 * 64 + 1) * 4);
  EXPECT_EQ(workspace(Engine::portable, 72, Dtype::fp32), 6 * 256 * 2 * 4 + (6 * 64 + 1) * 4);
  EXPECT_EQ(workspace(Engine::portable, 72, Dtype::fp64), 6 * 256 * 2 * 8 + (6 * 64 + 1) * 4);
  // mma: d_q of the next compiled width, lse and delta, four turns per 128 rows; 6 heads of 256 rows
  EXPECT_EQ(workspace(Engine::mma, 64), 6 * 256 * (64 + 2) * 4 + 6 * 2 * 4 * 4);
  EXPECT_EQ(workspace(Engine::mma, 72), 6 * 256 * (80 + 2) * 4 + 6 * 2 * 4 * 4);
  EXPECT_EQ(workspace(Engine::mma, 72, Dtype::fp32), 6 * 256 * 2 * 4 + 6 * 2 * 4 * 4) << "d_q itself holds its sums";
  // wgmma: the same and two tickets per tile of 128 (from D = 80 on: 64) rows, each part a multiple of 128 bytes
  EXPECT_EQ(workspace(Engine::wgmma, 64), 6 * 256 * (64 + 2) * 4 + 128 + 128);
  EXPECT_EQ(workspace(Engine::wgmma, 128), 6 * 256 * (128 + 2) * 4 + 2 * 128 + 128);
  EXPECT_THROW(workspace(Engine::wgmma, 160), std::invalid_argument);
}

TEST(Target, pads_of_flash2_in_registers_fit_the_gpu_and_48_KiB_where_nobody_knows_it) {
  using kernels::register_tiles;
  for (const auto& [gpu, kib] : {std::pair{gpu_target("90a"), 226},
                                 {gpu_target("80"), 48},
                                 {gpu_target("86"), 48},
                                 {kernels::Target{.is_host = false}, 48}}) {
    for (const int bytes : {4, 8}) {
      for (int D = 1; D <= 256; ++D) {
        const kernels::RegisterSet tiles = register_tiles(gpu, bytes, D);
        EXPECT_LE(forward_pad_bytes(tiles.forward, bytes), kib * 1024 - 16) << bytes << " D " << D;
        EXPECT_LE(backward_pad_bytes(tiles.backward, bytes), kib * 1024 - 16) << bytes << " D " << D;
        for (const kernels::RegisterTiles& pass : {tiles.forward, tiles.backward}) {
          EXPECT_GE(pass.width, D);
          EXPECT_LE(pass.threads(), 256);
        }
      }
    }
  }
}

TEST(Target, scratch_of_attention_is_that_of_the_portable_flash2_alone) {
  const kernels::Target gpu = gpu_target("90a");
  const auto scratch = [&](const kernels::AttentionChoice& choice, Dtype dtype) {
    return kernels::attention_scratch_bytes(choice, dtype, 5, 13, gpu);
  };
  kernels::AttentionChoice choice;
  EXPECT_EQ(scratch(choice, Dtype::bf16), 0) << "a GPU's pads are on chip";
  const int threads = kernels::kHere.is_host ? kernels::Device().concurrency() : 1;
  EXPECT_EQ(kernels::attention_scratch_bytes(choice, Dtype::bf16, 5, 13, kHostTarget),
            threads * kernels::flash2_backward_scratch_bytes<float>(kHostTarget, 5, 13));
  EXPECT_EQ(kernels::attention_scratch_bytes(choice, Dtype::fp64, 5, 13, kHostTarget),
            threads * kernels::flash2_backward_scratch_bytes<double>(kHostTarget, 5, 13));
  choice.backward = Engine::mma;
  EXPECT_EQ(scratch(choice, Dtype::bf16), 0);
  const kernels::AttentionChoice standard = kernels::AttentionKind::standard;
  EXPECT_EQ(scratch(standard, Dtype::fp32), 0);
  EXPECT_TRUE(kernels::stores_scores(standard.kind));
  EXPECT_FALSE(kernels::stores_scores(choice.kind));
}

TEST(Target, forward_workspaces_are_those_of_flash1_and_tiled) {
  const auto forward = [](kernels::AttentionKind kind, Dtype dtype, int key_tile) {
    kernels::AttentionChoice choice = kind;
    choice.key_tile = key_tile;
    return kernels::attention_forward_workspace_bytes(choice, dtype, 2, 3, 200, 24);
  };
  using kernels::AttentionKind;
  EXPECT_EQ(forward(AttentionKind::flash2, Dtype::bf16, 0), 0);
  EXPECT_EQ(forward(AttentionKind::standard, Dtype::bf16, 0), 0);
  EXPECT_EQ(forward(AttentionKind::flash1, Dtype::fp32, 0), 6 * 200 * 4);  // running sums
  EXPECT_EQ(forward(AttentionKind::flash1, Dtype::fp64, 0), 6 * 200 * 8);
  EXPECT_EQ(forward(AttentionKind::flash1, Dtype::bf16, 0), 6 * 200 * 25 * 4);  // and the output so far
  EXPECT_EQ(forward(AttentionKind::tiled, Dtype::bf16, 0), 6 * 128 * (128 + 2 * 24 + 3) * 4);
  EXPECT_EQ(forward(AttentionKind::tiled, Dtype::fp64, 16), 6 * 128 * (16 + 2 * 24 + 3) * 8);
}

TEST(Target, tensor_cores_are_the_fifth_step_of_gpus_in_16_bits) {
  kernels::AttentionChoice choice = kernels::AttentionKind::flash1;
  choice.steps = 5;
  EXPECT_TRUE(kernels::has_steps(choice, Dtype::bf16, gpu_target("80")));
  EXPECT_FALSE(kernels::has_steps(choice, Dtype::fp32, gpu_target("80")));
  EXPECT_FALSE(kernels::has_steps(choice, Dtype::bf16, kHostTarget));
  choice.steps = 4;
  EXPECT_TRUE(kernels::has_steps(choice, Dtype::fp32, kHostTarget));
  choice.kind = kernels::AttentionKind::flash2;  // whose fourth is in registers
  EXPECT_FALSE(kernels::has_steps(choice, Dtype::fp32, kHostTarget));
  EXPECT_TRUE(kernels::has_steps(choice, Dtype::fp32, {.is_host = false, .is_portable = true}));
}

TEST(Target, the_ladders_own_tiles_fit_every_gpu_in_up_to_32_bits) {
  for (const int steps : {0, 4}) {
    kernels::AttentionChoice choice = kernels::AttentionKind::flash1;
    choice.steps = steps;
    for (int D = 8; D <= 256; ++D) {
      for (const Dtype dtype : {Dtype::fp32, Dtype::bf16})
        EXPECT_LE(kernels::attention_pad_bytes(choice, dtype, D, gpu_target("86")), scratch_limit(gpu_target("86")))
            << D;
      EXPECT_LE(kernels::attention_pad_bytes(choice, Dtype::fp64, D, gpu_target("90a")),
                scratch_limit(gpu_target("90a")));
    }
  }
}

TEST(Target, without_vendor_parts_pads_stay_in_48_KiB) {
  const kernels::Target portable{.is_host = false, .is_portable = true};
  for (int D = 1; D <= 256; ++D) {
    for (const auto& [kind, steps] : {std::pair{kernels::AttentionKind::flash1, 0},
                                      {kernels::AttentionKind::flash1, 4},
                                      {kernels::AttentionKind::flash2, 3},
                                      {kernels::AttentionKind::flash2, 4},
                                      {kernels::AttentionKind::flash2, kernels::kNoLadder}}) {
      kernels::AttentionChoice choice = kind;
      choice.steps = steps;
      const bool has_tiles = steps >= 0 && steps < 4 + (kind == kernels::AttentionKind::flash1);
      for (const Dtype dtype : {Dtype::fp64, Dtype::fp32, Dtype::bf16}) {
        const auto fits = [&] {
          return kernels::attention_pad_bytes(choice, dtype, D, portable) <= scratch_limit(portable);
        };
        choice.query_tile = choice.key_tile = has_tiles ? 16 : 0;
        const bool least_fit = fits();
        choice.query_tile = choice.key_tile = 0;
        EXPECT_EQ(fits(), least_fit) << name_of(kind) << ", " << steps << " steps, D " << D;
        EXPECT_TRUE(least_fit || (has_tiles && D > 64));
      }
    }
    EXPECT_FALSE(has_forward(Engine::mma, Dtype::bf16, D, portable));
    EXPECT_FALSE(has_backward(Engine::wgmma, Dtype::bf16, D, portable));
  }
}

TEST(Target, workspaces_of_the_other_kernels_depend_on_whether_it_is_a_host) {
  const kernels::Target gpu = gpu_target("90a");
  EXPECT_EQ(kernels::rmsnorm_partials(kHostTarget), 128);
  EXPECT_EQ(kernels::rmsnorm_partials(gpu), 8 * 132);
  EXPECT_EQ((kernels::gemm_workspace<bfloat16, float>(kHostTarget, 2, 3, 5)), 2 * 5 + 5 * 3);
  EXPECT_EQ((kernels::gemm_workspace<bfloat16, float>(gpu, 2, 3, 5)), (32 << 20) / 4 + 64);
  EXPECT_EQ((kernels::gemm_workspace<float, float>(gpu, 2, 3, 5)), 0);
  EXPECT_EQ((kernels::gemm_workspace<float, float>(gpu, 2, 3, 5, kernels::GemmMath::tf32)), (32 << 20) / 4 + 64);
  EXPECT_EQ(kernels::gemm_timing_bytes(kHostTarget, 1000), 0);
  EXPECT_EQ(kernels::gemm_timing_bytes(gpu, 1000), 1000 + (128 << 20));
  const kernels::Target portable{.is_host = false, .is_portable = true};  // panels, as on a host
  EXPECT_EQ((kernels::gemm_workspace<bfloat16, float>(portable, 2, 3, 5)), 2 * 5 + 5 * 3);
  EXPECT_EQ(kernels::gemm_timing_bytes(portable, 1000), 0);
  EXPECT_EQ(kernels::rmsnorm_partials(portable), 8 * 132);
  EXPECT_EQ(kernels::flash2_backward_scratch_bytes<float>(gpu, 5, 13), 0);
  // the pads of one team; a lane block is two vector registers
  const std::int64_t width = kernels::round_up(13, 2 * kernels::kVectorBytes / 4);
  EXPECT_EQ(kernels::flash2_backward_scratch_bytes<float>(kHostTarget, 5, 13),
            4 * (5 * 64 * width + 2 * 13 * 64 + 2 * 64 * 64 + 2 * 64 + 2 * 5 * width));
}

}  // namespace
}  // namespace tessera::test
