#include "config/availability.hpp"

#include <utility>

#include <fmt/format.h>

#include "config/job_traits.hpp"
#include "config/keys.hpp"
#include "errors.hpp"

namespace tessera::config {

std::vector<MissingCombination> missing_combinations(const Settings& settings) {
  std::vector<MissingCombination> found;
  const Precision compute = settings.precision.compute;
  const bool is_16_bit = compute == Precision::bf16 || compute == Precision::fp16;
  if (settings.precision.master == MasterPrecision::none && compute == Precision::fp16)
    found.push_back(
        {"precision.master",
         "\"none\" is not for precision.compute = \"fp16\", whose range is too small for weights and updates; use "
         "precision.master = \"fp32\", or precision.compute = \"bf16\""});
  if (traits_of(settings.job.kind).has_own_dtype) return found;
  if (needs_tensor_cores(settings.attention.kernel) && !is_16_bit)
    found.push_back(
        {"attention.kernel",
         fmt::format("{} with a 32-bit precision.compute is not in this version: tensor-core attention takes "
                     "bf16 or fp16; use {} (on a GPU also precision.compute = \"bf16\")",
                     value_text(*find_key("attention.kernel"), settings),
                     without_tensor_cores(settings.attention.kernel))});
  return found;
}

bool needs_tensor_cores(AttentionKernel kernel) { return kernel == AttentionKernel::flash1_5 || is_by_engine(kernel); }

std::string_view without_tensor_cores(AttentionKernel kernel) {
  return is_flash1(kernel) ? "attention.kernel = \"flash1/4\"" : "attention.kernel = \"auto\"";
}

void check_build(const Settings& settings, const BuildFeatures& build) {
  std::string lines;
  const auto refuse = [&](bool asked, std::string_view what, std::string_view needs, std::string_view instead) {
    if (!asked) return;
    lines += fmt::format("{} needs a build with {}, which {} lacks: set {}\n", what, needs, build.name, instead);
  };
  if (!build.cuda) {
    refuse(settings.precision.compute == Precision::tf32, "precision.compute = \"tf32\"", "CUDA",
           "precision.compute = \"fp32\"");
    refuse(settings.train.graph, "train.graph = true", "CUDA", "train.graph = false");
    refuse(settings.generate.graph, "generate.graph = true", "CUDA", "generate.graph = false");
    refuse(settings.train.tune_gemm, "train.tune_gemm = true", "CUDA", "train.tune_gemm = false");
    refuse(!settings.train.fused, "train.fused = false", "CUDA", "train.fused = true");
    const AttentionKernel kernel = settings.attention.kernel;
    refuse(needs_tensor_cores(kernel),
           fmt::format("attention.kernel = {}", value_text(*find_key("attention.kernel"), settings)), "CUDA",
           without_tensor_cores(kernel));
  }
  if (!build.nccl) {
    refuse(settings.parallel.collectives == Collectives::nccl, "parallel.collectives = \"nccl\"", "NCCL",
           "parallel.collectives = \"mpi\"");
    refuse(settings.parallel.transfers != Transfers::automatic, "parallel.transfers by name", "NCCL",
           "parallel.transfers = \"auto\"");
  }
  if (!lines.empty())
    throw Failure(Exit::environment, lines +
                                         "Or run the deck with a build that has it; plan.device=h200 lets --plan "
                                         "answer for one.");
}

}  // namespace tessera::config
