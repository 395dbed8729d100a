#include "kernels/attention/attention.hpp"

#include <algorithm>

#include "kernels/attention/flash1/forward.hpp"
#include "kernels/attention/flash2/ampere/engine.hpp"
#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/attention/flash2/backward.hpp"
#include "kernels/attention/flash2/dq_order.hpp"
#include "kernels/attention/flash2/forward.hpp"
#include "kernels/attention/flash2/hopper/engine.hpp"
#include "kernels/attention/flash2/hopper/sizes.hpp"
#include "kernels/attention/flash2/register_backward.hpp"
#include "kernels/attention/flash2/register_forward.hpp"
#include "kernels/attention/ladder_kernels.hpp"
#include "kernels/attention/ladder_sizes.hpp"
#include "kernels/attention/standard/standard.hpp"
#include "kernels/attention/tiled/tiled.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/tiles.hpp"

namespace tessera::kernels {

std::string_view name_of(AttentionKind kind) {
  constexpr std::string_view names[] = {"standard", "tiled", "flash1", "flash2"};
  return names[static_cast<int>(kind)];
}

bool stores_scores(AttentionKind kind) { return kind == AttentionKind::standard; }

namespace {

int most_steps(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::flash1: return ladder::kFlash1Steps;
    case AttentionKind::flash2: return ladder::kFlash2Steps;
    case AttentionKind::standard: return 0;
    case AttentionKind::tiled: break;
  }
  return kNoLadder;
}

}  // namespace

std::string_view name_of(Engine engine) {
  constexpr std::string_view names[] = {"portable", "mma", "wgmma"};
  return names[static_cast<int>(engine)];
}

namespace {

[[noreturn]] void refuse_engine(Engine engine) {
  throw std::invalid_argument("attention: this build has no " + std::string(name_of(engine)) +
                              " kernel for this dtype and head width; ask has_forward and has_backward");
}

[[noreturn]] void refuse_steps(const AttentionChoice& choice) {
  throw std::invalid_argument("attention: this build has no " + std::string(name_of(choice.kind)) + " of " +
                              std::to_string(choice.steps) + " steps for this dtype; ask has_steps");
}

/// The kernels of flash2's forward pass: Flash2Ladder, RegisterForward, Flash2Forward, and an engine's.
enum class Flash2Kernel { ladder, registers, lanes, engine };

Flash2Kernel flash2_kernel(const AttentionChoice& choice, bool is_host) {
  if (choice.steps != kNoLadder)  // has_steps refuses a host's steps in registers
    return is_host || choice.steps <= ladder::kFlash2LaneSteps ? Flash2Kernel::ladder : Flash2Kernel::registers;
  if (choice.forward != Engine::portable) return Flash2Kernel::engine;
  const bool has_own_tiles = choice.query_tile == 0 && choice.key_tile == 0;
  return has_own_tiles && !is_host ? Flash2Kernel::registers : Flash2Kernel::lanes;
}

/// Of standard attention.
ProductsBy products_by(const AttentionChoice& choice) {
  return choice.steps == kNoLadder ? ProductsBy::library : ProductsBy::teams;
}

bool is_16_bit(Dtype dtype) { return dtype == Dtype::bf16 || dtype == Dtype::fp16; }

}  // namespace

bool has_forward(Engine engine, Dtype dtype, int D, const Target& target) {
  switch (engine) {
    case Engine::portable: return true;
    case Engine::mma:
      if (dtype == Dtype::fp32) return ampere::supports_float_forward(target, D);
      return target.team_scratch_kib > 0 && is_16_bit(dtype) && ampere::supports_forward(D);
    case Engine::wgmma: return target.has_wgmma && is_16_bit(dtype) && detail::hopper_forward::supports(D);
  }
  return false;
}

bool has_backward(Engine engine, Dtype dtype, int D, const Target& target) {
  switch (engine) {
    case Engine::portable: return true;
    case Engine::mma:
      if (dtype == Dtype::fp32) return ampere::supports_float_backward(target, D);
      return is_16_bit(dtype) && ampere::supports_backward(target, D);
    case Engine::wgmma: return target.has_wgmma && is_16_bit(dtype) && detail::hopper_backward::supports(D);
  }
  return false;
}

bool has_steps(const AttentionChoice& choice, Dtype dtype, const Target& target) {
  if (choice.kind == AttentionKind::flash1 && choice.steps == ladder::kTensorCores)
    return is_16_bit(dtype) && target.team_scratch_kib > 0;
  if (target.is_host && choice.kind == AttentionKind::flash2 && choice.steps > ladder::kFlash2LaneSteps) return false;
  const int least = choice.kind == AttentionKind::flash1 ? 0 : kNoLadder;
  return choice.steps >= least && choice.steps <= most_steps(choice.kind);
}

std::int64_t attention_pad_bytes(const AttentionChoice& choice, Dtype dtype, int D, const Target& target) {
  const int real_bytes = dtype == Dtype::fp64 ? 8 : 4;
  if (choice.kind == AttentionKind::standard || choice.kind == AttentionKind::tiled) return 0;
  const Flash2Kernel kernel =
      choice.kind == AttentionKind::flash2 ? flash2_kernel(choice, target.is_host) : Flash2Kernel::ladder;
  const auto tile_or = [](int chosen, int own) { return chosen > 0 ? chosen : own; };
  switch (kernel) {
    case Flash2Kernel::engine: return 0;
    case Flash2Kernel::registers: {
      const RegisterTiles tiles = register_tiles(target, real_bytes, D).forward;
      return forward_pad_bytes(choice.steps == kNoLadder ? tiles : tiles.on_step(choice.steps), real_bytes) + 16;
    }
    case Flash2Kernel::lanes: {
      const int own = flash2_forward_tile(target, real_bytes);
      const int lanes = round_up(tile_or(choice.query_tile, own), lane_block(target, real_bytes));
      return static_cast<std::int64_t>(flash2_forward_pad_reals(lanes, tile_or(choice.key_tile, own), D)) * real_bytes;
    }
    case Flash2Kernel::ladder: break;
  }
  const int own = ladder::default_tile(target, real_bytes, D);
  return ladder::scratch_bytes({choice.steps, static_cast<int>(bytes_of(dtype)), real_bytes,
                                tile_or(choice.query_tile, own), tile_or(choice.key_tile, own), D});
}

std::int64_t attention_forward_workspace_bytes(const AttentionChoice& choice, Dtype dtype, int B, int H, int Tq,
                                               int D) {
  switch (choice.kind) {
    case AttentionKind::tiled: return tiled_workspace_bytes(dtype, B, H, Tq, D, choice.query_tile, choice.key_tile);
    case AttentionKind::flash1: return flash1_workspace_bytes(dtype, B, H, Tq, D);
    case AttentionKind::standard:
    case AttentionKind::flash2: break;
  }
  return 0;
}

std::int64_t attention_workspace_bytes(const AttentionChoice& choice, Dtype dtype, int B, int H, int Tq, int D,
                                       const Target& target) {
  if (choice.kind == AttentionKind::standard) return 0;
  switch (choice.backward) {
    case Engine::portable:
      if (target.is_host) return 0;
      return dtype == Dtype::fp64 ? RegisterRows<double>::bytes(false, B, H, Tq, D)
                                  : RegisterRows<float>::bytes(is_16_bit(dtype), B, H, Tq, D);
    case Engine::mma:
      return dtype == Dtype::fp32 ? ampere::float_workspace_bytes(B, H, Tq)
                                  : ampere::backward_workspace_bytes(B, H, Tq, D);
    case Engine::wgmma: return detail::hopper_backward::workspace_bytes(B, H, Tq, D);
  }
  return 0;
}

std::int64_t attention_scratch_bytes(const AttentionChoice& choice, Dtype dtype, int Tk, int D, const Target& target) {
  if (choice.kind == AttentionKind::standard || !target.is_host) return 0;
  const std::int64_t backward = dtype == Dtype::fp64 ? flash2_backward_scratch_bytes<double>(target, Tk, D)
                                                     : flash2_backward_scratch_bytes<float>(target, Tk, D);
  const int threads = kIsHost<Device> ? Device().concurrency() : 1;  // Kokkos allocates for each of its own
  return threads * std::max(attention_pad_bytes(choice, dtype, D, target), backward);
}

AttentionChoice fastest_attention(Dtype dtype, int D, bool deterministic, const Target& target) {
  AttentionChoice choice;
  choice.deterministic = deterministic;
  for (const Engine engine : {Engine::mma, Engine::wgmma}) {  // the later, the faster
    if (has_forward(engine, dtype, D, target)) choice.forward = engine;
    if (has_backward(engine, dtype, D, target)) choice.backward = engine;
  }
  return choice;
}

template <class Exec, class Scalar>
void Attention<Exec, Scalar>::forward(const Exec& exec) const {
  const ForwardTask<Exec, Scalar> task{
      .q = q, .k = k, .v = v, .out = out, .lse = lse, .scale = scale, .causal = causal};
  if (!has_steps(choice, kDtype<Scalar>, kTargetOf<Exec>)) refuse_steps(choice);
  switch (choice.kind) {
    case AttentionKind::standard:
      return StandardForward<Exec, Scalar>{task, probabilities, products_by(choice), math}.launch(exec);
    case AttentionKind::tiled:
    case AttentionKind::flash1: return launch_ladder_kernel(exec, task, choice, workspace);
    case AttentionKind::flash2: break;
  }
  switch (flash2_kernel(choice, kIsHost<Exec>)) {
    case Flash2Kernel::ladder: return launch_ladder_kernel(exec, task, choice, workspace);
    case Flash2Kernel::registers:
      TESSERA_REQUIRE(choice.query_tile == 0 && choice.key_tile == 0,
                      "attention: from flash2's fourth step on, tiles are constants", choice.steps, choice.query_tile,
                      choice.key_tile);
      if constexpr (!kIsHost<Exec>) return RegisterForward<Exec, Scalar>{task, choice.steps}.launch(exec);
      break;
    case Flash2Kernel::lanes: {
      if constexpr (kIsHost<Exec>) {
        if (choice.query_tile == 0 && choice.key_tile == 0) return Flash2Forward<Exec, Scalar>{{}, task}.launch(exec);
      }
      const int own = flash2_forward_tile({.is_host = kIsHost<Exec>}, sizeof(Real));
      const ChosenTiles tiles{choice.query_tile > 0 ? choice.query_tile : own,
                              choice.key_tile > 0 ? choice.key_tile : own};
      return Flash2Forward<Exec, Scalar, ChosenTiles>{tiles, task}.launch(exec);
    }
    case Flash2Kernel::engine: break;
  }
  using Mma = AmpereEngine<Exec, Scalar>;
  using Wgmma = HopperEngine<Exec, Scalar>;
  if constexpr (Mma::kHasKernels) {
    if (choice.forward == Engine::mma) return Mma::forward(exec, task, math);
  }
  if constexpr (Wgmma::kHasKernels) {
    if (choice.forward == Engine::wgmma) return typename Wgmma::Forward{task, tile_counter}.launch(exec);
  }
  refuse_engine(choice.forward);
}

template <class Exec, class Scalar>
void Attention<Exec, Scalar>::backward(const Exec& exec, const Gradients& g) const {
  const BackwardTask<Exec, Scalar> task{.q = q,
                                        .k = k,
                                        .v = v,
                                        .out = out,
                                        .lse = lse,
                                        .d_out = g.d_out,
                                        .d_q = g.d_q,
                                        .d_k = g.d_k,
                                        .d_v = g.d_v,
                                        .scale = scale,
                                        .causal = causal};
  if (choice.kind == AttentionKind::standard)
    return StandardBackward<Exec, Scalar>{task, probabilities, g.d_scores, products_by(choice), math}.launch(exec);
  [[maybe_unused]] const DqOrder order = choice.deterministic ? DqOrder::fixed : DqOrder::any;
  switch (choice.backward) {
    case Engine::portable:
      if constexpr (kIsHost<Exec>) return Flash2Backward<Exec, Scalar>{task}.launch(exec);
      if constexpr (!kIsHost<Exec>) return RegisterBackward<Exec, Scalar>{task, g.workspace}.launch(exec);
      break;
    case Engine::mma: {
      using Mma = AmpereEngine<Exec, Scalar>;
      if constexpr (Mma::kHasKernels) return Mma::backward(exec, task, order, g.workspace, math);
      break;
    }
    case Engine::wgmma: {
      using Wgmma = HopperEngine<Exec, Scalar>;
      if constexpr (Wgmma::kHasKernels) return typename Wgmma::Backward{task, order, g.workspace}.launch(exec);
      break;
    }
  }
  refuse_engine(choice.backward);
}

TESSERA_INSTANTIATE_KERNEL(Attention);

}  // namespace tessera::kernels
