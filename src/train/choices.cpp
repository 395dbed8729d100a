#include "train/choices.hpp"

#include <fmt/format.h>

#include <iterator>

#include "config/job_traits.hpp"
#include "errors.hpp"
#include "kernels/gemm/head_gemm.hpp"
#include "train/sharing.hpp"

namespace tessera::train {

model::Shape shape_of(const config::Model& m) {
  return {m.vocab_size, m.context_length, m.d_model, m.num_layers, m.num_heads, m.d_ff, m.rope_theta, m.norm_eps};
}

Dtype dtype_of(config::Precision precision) {
  if (precision == config::Precision::bf16) return Dtype::bf16;
  return precision == config::Precision::fp16 ? Dtype::fp16 : Dtype::fp32;
}

model::GenerateKernels generate_kernels(const config::Settings& settings, Dtype dtype, std::int64_t head_width,
                                        const Machine& machine) {
  return {.attention = choose_attention(settings.attention, dtype, head_width, machine),
          .math = math_of(settings.precision.compute),
          .target = machine.target,
          .decode_parts = settings.attention.decode_parts};
}

parallel::CollectivesOptions collectives_of(const config::Parallel& keys, int ranks) {
  using parallel::Library, parallel::TransferMethod;
  constexpr Library libraries[] = {Library::automatic, Library::mpi, Library::nccl};
  constexpr TransferMethod methods[] = {TransferMethod::automatic, TransferMethod::ring, TransferMethod::copy_engine};
  return {.library = libraries[static_cast<int>(keys.collectives)],
          .transfers = methods[static_cast<int>(keys.transfers)],
          .forms_groups = forms_groups(keys, ranks)};
}

namespace {

/// The decks that share their communicators: the rows that are chosen, else the deck itself. At least one.
std::vector<config::DeckRow> rows_of(const config::Deck& deck) {
  std::vector<config::DeckRow> rows;
  std::copy_if(deck.rows.begin(), deck.rows.end(), std::back_inserter(rows),
               [](const auto& row) { return row.is_chosen; });
  if (rows.empty()) rows.push_back({"", {}, deck.settings, ""});
  return rows;
}

}  // namespace

parallel::CollectivesOptions collectives_of(const config::Deck& deck, int ranks) {
  return collectives_of(rows_of(deck).front().settings.parallel, ranks);
}

void require_same_method(const config::Deck& deck, int ranks) {
  if (deck.settings.parallel.transfers != config::Transfers::automatic) return;
  std::string with, without;  // names of rows
  for (const config::DeckRow& row : rows_of(deck)) {
    (forms_groups(row.settings.parallel, ranks) ? with : without) = row.name;
  }
  if (with.empty() || without.empty()) return;
  throw Failure(
      Exit::usage,
      "parallel.transfers = \"auto\": {} ranks form groups in row {} but not in row {}, so it would choose different "
      "methods, but all rows share communicators: set parallel.transfers = \"ring\", or run the rows one by one ({})",
      ranks, with, without, config::traits_of(deck.settings.job.kind).rows_key);
}

kernels::GemmMath math_of(config::Precision precision) {
  return precision == config::Precision::tf32 ? kernels::GemmMath::tf32 : kernels::GemmMath::full;
}

kernels::AttentionKind kind_of(config::AttentionKernel kernel) {
  if (is_standard(kernel)) return kernels::AttentionKind::standard;
  if (kernel == config::AttentionKernel::tiled) return kernels::AttentionKind::tiled;
  return is_flash1(kernel) ? kernels::AttentionKind::flash1 : kernels::AttentionKind::flash2;
}

namespace {

/// Refuses ladder steps that the device lacks for the dtype, and tiles too large for its scratch memory.
void require_steps_and_tiles(const kernels::AttentionChoice& choice, Dtype dtype, int D, const Machine& machine) {
  if (!kernels::has_steps(choice, dtype, machine.target)) {
    throw Failure(
        Exit::usage, "attention.kernel = \"{}/{}\": {} has no such kernel for {}: {}", kernels::name_of(choice.kind),
        choice.steps, machine.build, name_of(dtype),
        choice.kind == kernels::AttentionKind::flash1
            ? "the fifth step needs tensor cores of a GPU and bf16 or fp16. Set attention.kernel = \"flash1/4\""
            : "the fourth step and the fifth need a GPU. Set attention.kernel = \"flash2\"");
  }
  const std::int64_t pad = kernels::attention_pad_bytes(choice, dtype, D, machine.target),
                     limit = kernels::scratch_limit(machine.target);
  if (pad > limit) {
    kernels::AttentionChoice smallest = choice;
    smallest.query_tile = smallest.key_tile = 16;
    const bool smaller_fit = kernels::attention_pad_bytes(smallest, dtype, D, machine.target) <= limit;
    throw Failure(Exit::usage,
                  "attention.query_tile = {}, attention.key_tile = {}: {} with heads of width {} in {} needs pads of "
                  "{} bytes for these tiles, and the device grants a team {} bytes of scratch. {}",
                  choice.query_tile, choice.key_tile, kernels::name_of(choice.kind), D, name_of(dtype), pad, limit,
                  smaller_fit ? "Set smaller tiles: 16, 32 or 64"
                              : "No tiles of this kernel fit: set attention.kernel = \"flash2\"");
  }
}

}  // namespace

kernels::AttentionChoice portable_choice(const config::Attention& attention) {
  using config::AttentionKernel;
  const AttentionKernel kernel = attention.kernel;
  kernels::AttentionChoice choice = kind_of(kernel);
  choice.deterministic = attention.deterministic;
  if (kernel == AttentionKernel::standard_0) choice.steps = 0;
  if (is_flash1(kernel)) choice.steps = static_cast<int>(kernel) - static_cast<int>(AttentionKernel::flash1);
  static_assert(static_cast<int>(AttentionKernel::flash2) - static_cast<int>(AttentionKernel::flash2_0) ==
                kernels::kNoLadder);
  if (is_flash2(kernel)) choice.steps = static_cast<int>(kernel) - static_cast<int>(AttentionKernel::flash2_0);
  choice.query_tile = static_cast<int>(attention.query_tile);
  choice.key_tile = static_cast<int>(attention.key_tile);
  return choice;
}

kernels::AttentionChoice choose_attention(const config::Attention& attention, Dtype dtype, std::int64_t head_width,
                                          const Machine& machine) {
  using config::AttentionKernel, kernels::Engine;
  const int D = static_cast<int>(head_width);
  const AttentionKernel kernel = attention.kernel;
  if (kernel == AttentionKernel::automatic) {
    return kernels::fastest_attention(dtype, D, attention.deterministic, machine.target);
  }
  kernels::AttentionChoice choice = portable_choice(attention);
  if (!is_by_engine(kernel)) {
    require_steps_and_tiles(choice, dtype, D, machine);
    return choice;
  }
  choice.forward = choice.backward = kernel == AttentionKernel::mma ? Engine::mma : Engine::wgmma;
  if (!kernels::has_forward(choice.forward, dtype, D, machine.target) ||
      !kernels::has_backward(choice.backward, dtype, D, machine.target)) {
    throw Failure(Exit::usage,
                  "attention.kernel = \"{}\": {} has no such kernel for {} and heads of width {}. The mma kernels take "
                  "widths that are multiples of 8 up to 256; the wgmma kernels need a build for sm_90a, bf16 or fp16 "
                  "and one of their widths. Set {}",
                  kernels::name_of(choice.backward), machine.build, name_of(dtype), D,
                  config::without_tensor_cores(kernel));
  }
  return choice;
}

std::string forward_text(const kernels::AttentionChoice& choice) {
  if (choice.steps == kernels::kNoLadder) return std::string(kernels::name_of(choice.forward));
  return fmt::format("{} step{}", choice.steps, choice.steps == 1 ? "" : "s");
}

std::string describe(const kernels::AttentionChoice& choice) {
  const std::string forward = forward_text(choice);
  if (choice.kind == kernels::AttentionKind::standard) {
    return choice.steps == kernels::kNoLadder ? "standard" : "standard (" + forward + ")";
  }
  std::string tiles;
  if (choice.query_tile > 0) tiles += fmt::format(", query tile {}", choice.query_tile);
  if (choice.key_tile > 0) tiles += fmt::format(", key tile {}", choice.key_tile);
  const std::string backward = fmt::format("backward flash2 {}", kernels::name_of(choice.backward));
  if (choice.kind == kernels::AttentionKind::tiled) return fmt::format("tiled ({}{})", backward, tiles);
  if (choice.kind == kernels::AttentionKind::flash1) return fmt::format("flash1 ({}, {}{})", forward, backward, tiles);
  if (choice.steps != kernels::kNoLadder || !tiles.empty()) {
    return fmt::format("flash2 ({}{}, backward {})", forward, tiles, kernels::name_of(choice.backward));
  }
  if (choice.forward == choice.backward) return fmt::format("flash2 ({})", forward);
  return fmt::format("flash2 (forward {}, backward {})", forward, kernels::name_of(choice.backward));
}

std::string products_text(const kernels::AttentionChoice& choice, Dtype dtype, kernels::GemmMath math,
                          const kernels::Target& target) {
  if (choice.kind == kernels::AttentionKind::standard && choice.steps == kernels::kNoLadder) {
    return kernels::has_head_library(dtype, target)
               ? ""
               : ", products by plain kernels, as standard/0: no library has them here";
  }
  if (dtype != Dtype::fp32 || !choice.has_tensor_engine()) return "";
  return math == kernels::GemmMath::tf32 ? ", fp32 by 1 TF32 product" : ", fp32 by 3 TF32 products";
}

kernels::GemmSelection selection_of(const config::Train& train) {
  return train.tune_gemm ? kernels::GemmSelection::timed : kernels::GemmSelection::heuristic;
}

}  // namespace tessera::train
