#include "config/availability.hpp"

#include <utility>

#include <fmt/format.h>

#include "config/job_traits.hpp"
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
  const Attention& attention = settings.attention;
  const bool is_flash1 = attention.implementation == AttentionImplementation::flash1;
  if (is_flash1 && attention.flash1_steps == 5 && !is_16_bit)
    found.push_back({"attention.flash1_steps",
                     "5 with a 32-bit precision.compute is not in this version: the tensor cores' step takes bf16 or "
                     "fp16; use attention.flash1_steps = 4 (on a GPU also precision.compute = \"bf16\")"});
  if (attention.tuned == AttentionTuned::yes && attention.engine != AttentionEngine::automatic && !is_16_bit)
    found.push_back(
        {"attention.engine",
         fmt::format("by name with a 32-bit precision.compute is not in this version: tensor-core attention "
                     "takes bf16 or fp16; use {} (on a GPU also attention.engine = \"auto\" alone, or "
                     "precision.compute = \"bf16\")",
                     without_tuned(settings.attention))});
  for (const auto& [implementation, name] :
       {std::pair{AttentionImplementation::standard, "standard"}, {AttentionImplementation::tiled, "tiled"}})
    if (attention.tuned == AttentionTuned::yes && attention.implementation == implementation)
      found.push_back(
          {"attention.tuned",
           fmt::format("true with attention.implementation = \"{}\" is not in this version; use flash2", name)});
  return found;
}

std::string without_tuned(const Attention& attention) {
  const bool names_engine = attention.engine != AttentionEngine::automatic;
  return fmt::format("attention.tuned = \"auto\"{}", names_engine ? " and attention.engine = \"auto\"" : "");
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
    const bool is_flash1 = settings.attention.implementation == AttentionImplementation::flash1;
    refuse(settings.attention.tuned == AttentionTuned::yes && !is_flash1, "attention.tuned = true", "CUDA",
           without_tuned(settings.attention));
    refuse(is_flash1 && settings.attention.flash1_steps == 5, "attention.flash1_steps = 5", "CUDA",
           "attention.flash1_steps = 4");
  }
  if (!build.nccl) {
    refuse(settings.parallel.collectives == Collectives::nccl, "parallel.collectives = \"nccl\"", "NCCL",
           "parallel.collectives = \"mpi\"");
    refuse(settings.parallel.all_reduce != AllReduceMethod::automatic, "parallel.all_reduce by name", "NCCL",
           "parallel.all_reduce = \"auto\"");
  }
  if (!lines.empty())
    throw Failure(Exit::environment, lines +
                                         "Or run the deck with a build that has it; plan.device=h200 lets --plan "
                                         "answer for one.");
}

}  // namespace tessera::config
