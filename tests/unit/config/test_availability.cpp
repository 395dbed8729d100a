/// What a build without CUDA or NCCL refuses, and that nothing is refused twice or by mistake.
#include "config/availability.hpp"

#include "config/keys.hpp"
#include "support.hpp"

namespace tessera::config {
namespace {

using testing::HasSubstr;

constexpr BuildFeatures kCpu{};
constexpr BuildFeatures kGpu{.cuda = true, .nccl = true};

TEST(Availability, what_needs_a_gpu_is_refused_by_a_cpu_build_with_the_way_out) {
  for (const auto& [text, way_out] : {std::pair{"precision.compute=tf32", "precision.compute = \"fp32\""},
                                      {"train.graph=true", "train.graph = false"},
                                      {"train.tune_gemm=true", "train.tune_gemm = false"},
                                      {"train.fused=false", "train.fused = true"},
                                      {"attention.kernel=mma", "attention.kernel = \"auto\""},
                                      {"attention.kernel=flash1/5", "attention.kernel = \"flash1/4\""},
                                      {"parallel.collectives=nccl", "parallel.collectives = \"mpi\""},
                                      {"parallel.transfers=ring", "parallel.transfers = \"auto\""},
                                      {"parallel.transfers=copy_engine", "parallel.transfers = \"auto\""}}) {
    const bool is_attention = std::string_view(text).starts_with("attention.");  // takes 16 bits only
    const Settings settings = read(is_attention ? "precision.compute = 'bf16'" : "train.steps = 1", {text});
    EXPECT_THAT(refusal(Exit::environment, [&] { check_build(settings, kCpu); }), HasSubstr(way_out));
    EXPECT_NO_THROW(check_build(settings, kGpu)) << text;
  }
}

TEST(Availability, kernels_of_the_ladder_need_the_laboratory) {
  for (const auto& [kernel, is_refused] : {std::pair{"tiled", true},
                                           {"flash1", true},
                                           {"flash1/4", true},
                                           {"flash2/0", true},
                                           {"flash2/3", true},
                                           {"flash2", false},
                                           {"standard", false},
                                           {"auto", false}}) {
    const Settings settings = read("train.steps = 1", {fmt::format("attention.kernel={}", kernel)});
    EXPECT_NO_THROW(check_build(settings, kCpu)) << kernel;
    const auto check = [&] { check_build(settings, {.ladder = false}); };
    if (is_refused) {
      EXPECT_THAT(refusal(Exit::environment, check), AllOf(HasSubstr(kernel), HasSubstr("TESSERA_ENABLE_LAB=ON")));
    } else {
      EXPECT_NO_THROW(check()) << kernel;
    }
  }
}

TEST(Availability, all_refusals_of_a_build_come_at_once) {
  const Settings settings = read("train.graph = true\nattention.kernel = 'wgmma'\nprecision.compute = 'bf16'");
  const std::string message = refusal(Exit::environment, [&] { check_build(settings, kCpu); });
  EXPECT_THAT(message, HasSubstr("train.graph"));
  EXPECT_THAT(message, HasSubstr("attention.kernel"));
}

TEST(Availability, whoever_follows_the_advice_on_attention_gets_on) {
  for (const auto& [asked, advised] : {std::pair{"attention.kernel=wgmma", "attention.kernel=auto"},
                                       {"attention.kernel=flash1/5", "attention.kernel=flash1/4"}}) {
    const std::string_view bf16 = "precision.compute = 'bf16'";
    EXPECT_THAT(deck_refusal("train.steps = 1", {asked}), HasSubstr("attention.kernel = "));  // fp32
    EXPECT_NO_THROW(check_build(read("train.steps = 1", {advised}), kCpu));
    EXPECT_NO_THROW(check_build(read(bf16, {advised}), kCpu));
  }
}

TEST(Availability, the_defaults_run_on_every_build) {
  EXPECT_NO_THROW(check_build(Settings{}, kCpu));
  EXPECT_NO_THROW(check_build(Settings{}, kGpu));
}

}  // namespace
}  // namespace tessera::config
