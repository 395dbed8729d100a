#include "config/availability.hpp"

#include <fmt/format.h>

#include "config/keys.hpp"
#include "errors.hpp"

namespace tessera::config {

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
  const auto kernel = settings.attention.kernel;
  const auto named_kernel = [&] {
    return fmt::format("attention.kernel = {}", value_text(*find_key("attention.kernel"), settings));
  };
  refuse(!build.ladder && is_of_ladder(kernel), named_kernel(), "the laboratory (CMake option TESSERA_ENABLE_LAB=ON)",
         "attention.kernel = \"auto\"");
  if (!build.cuda) {
    refuse(settings.precision.compute == Precision::tf32, "precision.compute = \"tf32\"", "CUDA",
           "precision.compute = \"fp32\"");
    refuse(settings.train.graph, "train.graph = true", "CUDA", "train.graph = false");
    refuse(settings.generate.graph, "generate.graph = true", "CUDA", "generate.graph = false");
    refuse(settings.train.tune_gemm, "train.tune_gemm = true", "CUDA", "train.tune_gemm = false");
    refuse(!settings.train.fused, "train.fused = false", "CUDA", "train.fused = true");
    refuse(needs_tensor_cores(kernel), named_kernel(), "CUDA", without_tensor_cores(kernel));
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
