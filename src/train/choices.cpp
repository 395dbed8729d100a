#include "train/choices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "config/job_traits.hpp"
#include "errors.hpp"
#include "kernels/core/words.hpp"
#include "train/sharing.hpp"

namespace tessera::train {

model::Shape shape_of(const config::Model& m) {
  return {m.vocab_size, m.context_length, m.d_model, m.num_layers, m.num_heads, m.d_ff, m.rope_theta, m.norm_eps};
}

Dtype dtype_of(config::Precision precision) {
  switch (precision) {
    case config::Precision::bf16: return Dtype::bf16;
    case config::Precision::fp16: return Dtype::fp16;
    case config::Precision::tf32:
    case config::Precision::fp32: break;
  }
  return Dtype::fp32;
}

model::GenerateKernels generate_kernels(const config::Settings& settings, Dtype dtype, std::int64_t head_width,
                                        const Machine& machine) {
  return {.attention = choose_attention(settings.attention, dtype, head_width, machine),
          .math = math_of(settings.precision.compute),
          .target = machine.target,
          .decode_parts = settings.attention.decode_parts};
}

parallel::CollectivesOptions collectives_of(const config::Parallel& keys, int ranks) {
  parallel::CollectivesOptions options{.forms_groups = forms_groups(keys, ranks)};
  switch (keys.collectives) {
    case config::Collectives::automatic: options.library = parallel::Library::automatic; break;
    case config::Collectives::mpi: options.library = parallel::Library::mpi; break;
    case config::Collectives::nccl: options.library = parallel::Library::nccl; break;
  }
  switch (keys.all_reduce) {
    case config::AllReduceMethod::automatic: options.all_reduce = parallel::TransferMethod::automatic; break;
    case config::AllReduceMethod::ring: options.all_reduce = parallel::TransferMethod::ring; break;
    case config::AllReduceMethod::copy_engine: options.all_reduce = parallel::TransferMethod::copy_engine; break;
  }
  return options;
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
  if (deck.settings.parallel.all_reduce != config::AllReduceMethod::automatic) return;
  std::string with, without;  // names of rows
  for (const config::DeckRow& row : rows_of(deck)) {
    (forms_groups(row.settings.parallel, ranks) ? with : without) = row.name;
  }
  if (with.empty() || without.empty()) return;
  throw Failure(Exit::usage,
                fmt::format("parallel.all_reduce = \"auto\": {} ranks form groups in row {} and none in row {}, and it "
                            "would choose another method for each, but all rows share their communicators: set "
                            "parallel.all_reduce = \"ring\", or run them one by one ({})",
                            ranks, with, without, config::traits_of(deck.settings.job.kind).rows_key));
}

kernels::GemmMath math_of(config::Precision precision) {
  return precision == config::Precision::tf32 ? kernels::GemmMath::tf32 : kernels::GemmMath::full;
}

kernels::AttentionKind kind_of(config::AttentionImplementation implementation) {
  switch (implementation) {
    case config::AttentionImplementation::standard: return kernels::AttentionKind::standard;
    case config::AttentionImplementation::tiled: return kernels::AttentionKind::tiled;
    case config::AttentionImplementation::flash1: return kernels::AttentionKind::flash1;
    case config::AttentionImplementation::automatic:
    case config::AttentionImplementation::flash2: break;
  }
  return kernels::AttentionKind::flash2;
}

namespace {

/// Refuses steps that the device does not have for the dtype, and tiles whose pads it has no room for.
void require_steps_and_tiles(const kernels::AttentionChoice& choice, Dtype dtype, int D, const Machine& machine) {
  if (!kernels::has_steps(choice, dtype, machine.target)) {
    throw Failure(
        Exit::usage,
        fmt::format("attention.{}_steps = {}: {} has no such kernel for {}: the fifth step needs tensor cores "
                    "of a GPU and bf16 or fp16. Set attention.flash1_steps = 4",
                    kernels::name_of(choice.kind), choice.steps, machine.build, name_of(dtype)));
  }
  const std::int64_t pad = kernels::attention_pad_bytes(choice, dtype, D, machine.target),
                     limit = kernels::scratch_limit(machine.target);
  if (pad > limit) {
    throw Failure(
        Exit::usage,
        fmt::format("attention.query_tile = {}, attention.key_tile = {}: {} with heads of width {} in {} needs "
                    "pads of {} bytes for these tiles, and the device grants a team {} bytes of scratch. Set "
                    "smaller tiles: 16, 32 or 64",
                    choice.query_tile, choice.key_tile, kernels::name_of(choice.kind), D, name_of(dtype), pad, limit));
  }
}

}  // namespace

kernels::AttentionChoice choose_attention(const config::Attention& attention, Dtype dtype, std::int64_t head_width,
                                          const Machine& machine) {
  using config::AttentionEngine, config::AttentionImplementation, config::AttentionTuned, kernels::Engine;
  const int D = static_cast<int>(head_width);
  kernels::AttentionChoice choice = kind_of(attention.implementation);
  choice.deterministic = attention.deterministic;
  if (choice.kind == kernels::AttentionKind::flash1) choice.steps = static_cast<int>(attention.flash1_steps);
  if (choice.kind == kernels::AttentionKind::flash2) choice.steps = static_cast<int>(attention.flash2_steps);
  choice.query_tile = static_cast<int>(attention.query_tile);
  choice.key_tile = static_cast<int>(attention.key_tile);
  const bool may_be_fastest = attention.implementation == AttentionImplementation::automatic;
  const bool is_portable =
      attention.tuned == AttentionTuned::no || (attention.tuned == AttentionTuned::automatic && !may_be_fastest);
  if (is_portable || choice.kind == kernels::AttentionKind::flash1) require_steps_and_tiles(choice, dtype, D, machine);
  if (is_portable) return choice;
  if (choice.kind == kernels::AttentionKind::standard || choice.kind == kernels::AttentionKind::tiled) {
    throw Failure(Exit::usage, fmt::format("attention.tuned = true: {} attention has no tuned kernel; set "
                                           "attention.implementation = \"flash2\", or {}",
                                           kernels::name_of(choice.kind), config::without_tuned(attention)));
  }
  const kernels::AttentionChoice fastest =
      kernels::fastest_attention(dtype, D, attention.deterministic, machine.target);
  if (choice.kind == kernels::AttentionKind::flash1 && attention.engine == AttentionEngine::automatic) {
    choice.backward = fastest.backward;
    return choice;
  }
  if (attention.tuned == AttentionTuned::automatic) return fastest;

  const bool has_engines = choice.kind == kernels::AttentionKind::flash2;  // flash1's is of its backward pass only
  if (has_engines) choice = fastest;
  if (attention.engine != AttentionEngine::automatic) {
    choice.backward = attention.engine == AttentionEngine::mma ? Engine::mma : Engine::wgmma;
    if (has_engines) {
      choice.forward = choice.backward;
      choice.steps = kernels::kNoLadder;
    }
  }
  if (has_engines && choice.steps != kernels::kNoLadder) return choice;  // a GPU, without tensor cores for these
  const bool is_there = choice.backward != Engine::portable &&
                        (!has_engines || (choice.forward != Engine::portable &&
                                          kernels::has_forward(choice.forward, dtype, D, machine.target))) &&
                        kernels::has_backward(choice.backward, dtype, D, machine.target);
  if (!is_there) {
    throw Failure(
        Exit::usage,
        fmt::format(
            "attention.tuned = true{}: {} has no such kernel for {} and heads of width {}. The mma kernels "
            "take bf16 and fp16 and widths that are multiples of 8 up to 256; the wgmma kernels need a build for "
            "sm_90a and one of their widths. Set {}",
            attention.engine == AttentionEngine::automatic
                ? ""
                : fmt::format(", attention.engine = \"{}\"", kernels::name_of(choice.backward)),
            machine.build, name_of(dtype), D, config::without_tuned(attention)));
  }
  return choice;
}

std::string forward_text(const kernels::AttentionChoice& choice) {
  if (choice.steps == kernels::kNoLadder) return std::string(kernels::name_of(choice.forward));
  return fmt::format("{} step{}", choice.steps, choice.steps == 1 ? "" : "s");
}

std::string describe(const kernels::AttentionChoice& choice) {
  if (choice.kind == kernels::AttentionKind::standard) return "standard";
  const std::string forward = forward_text(choice);
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

kernels::GemmSelection selection_of(const config::Train& train) {
  return train.tune_gemm ? kernels::GemmSelection::timed : kernels::GemmSelection::heuristic;
}

}  // namespace tessera::train
