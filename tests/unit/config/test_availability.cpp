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
                                      {"attention.tuned=true", "attention.tuned = \"auto\""},
                                      {"attention.flash1_steps=5", "attention.flash1_steps = 4"},
                                      {"parallel.collectives=nccl", "parallel.collectives = \"mpi\""},
                                      {"parallel.all_reduce=ring", "parallel.all_reduce = \"auto\""},
                                      {"parallel.all_reduce=copy_engine", "parallel.all_reduce = \"auto\""}}) {
    const bool is_flash1 = std::string_view(text).starts_with("attention.flash1");  // takes 16 bits only
    const Settings settings =
        read(is_flash1 ? "precision.compute = 'bf16'\nattention.implementation = 'flash1'" : "train.steps = 1", {text});
    EXPECT_THAT(refusal(Exit::environment, [&] { check_build(settings, kCpu); }), HasSubstr(way_out));
    EXPECT_NO_THROW(check_build(settings, kGpu)) << text;
  }
}

TEST(Availability, all_refusals_of_a_build_come_at_once) {
  const Settings settings = read("train.graph = true\nattention.tuned = true\nprecision.compute = 'bf16'");
  const std::string message = refusal(Exit::environment, [&] { check_build(settings, kCpu); });
  EXPECT_THAT(message, HasSubstr("train.graph"));
  EXPECT_THAT(message, HasSubstr("attention.tuned"));
}

TEST(Availability, whoever_follows_the_advice_on_attention_tuned_gets_on) {
  const std::vector<std::string> asked = {"attention.tuned=true", "attention.engine=mma"};
  const std::vector<std::string> advised = {"attention.tuned=auto", "attention.engine=auto"};
  const auto advice = HasSubstr("attention.tuned = \"auto\" and attention.engine = \"auto\"");
  EXPECT_THAT(deck_refusal("train.steps = 1", asked), advice);  // fp32
  EXPECT_NO_THROW(check_build(read("train.steps = 1", advised), kCpu));
  const std::string_view bf16 = "precision.compute = 'bf16'";
  EXPECT_THAT(refusal(Exit::environment, [&] { check_build(read(bf16, asked), kCpu); }), advice);
  EXPECT_NO_THROW(check_build(read(bf16, advised), kCpu));
}

TEST(Availability, four_steps_of_flash1_run_on_every_build_tuned_or_not) {
  for (const char* tuned : {"auto", "true"}) {
    const Settings settings =
        read("attention = {implementation = 'flash1', flash1_steps = 4}", {std::string("attention.tuned=") + tuned});
    EXPECT_NO_THROW(check_build(settings, kCpu)) << tuned;
  }
}

TEST(Availability, the_defaults_run_on_every_build) {
  EXPECT_NO_THROW(check_build(Settings{}, kCpu));
  EXPECT_NO_THROW(check_build(Settings{}, kGpu));
}

}  // namespace
}  // namespace tessera::config
