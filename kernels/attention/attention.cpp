#include "kernels/attention/attention.hpp"

#include "kernels/attention/flash2/ampere/engine.hpp"
#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/attention/flash2/backward.hpp"
#include "kernels/attention/flash2/dq_order.hpp"
#include "kernels/attention/flash2/forward.hpp"
#include "kernels/attention/flash2/hopper/engine.hpp"
#include "kernels/attention/flash2/hopper/sizes.hpp"
#include "kernels/attention/standard/standard.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {

std::string_view name_of(AttentionKind kind) {
  constexpr std::string_view names[] = {"standard", "flash2"};
  return names[static_cast<int>(kind)];
}

bool stores_scores(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::standard: return true;
    case AttentionKind::flash2: return false;
  }
  return false;
}

std::string_view name_of(Engine engine) {
  constexpr std::string_view names[] = {"portable", "mma", "wgmma"};
  return names[static_cast<int>(engine)];
}

namespace {

[[noreturn]] void refuse_engine(Engine engine) {
  throw std::invalid_argument("attention: this build has no " + std::string(name_of(engine)) +
                              " kernel for this dtype and head width; ask has_forward and has_backward");
}

bool is_16_bit(Dtype dtype) { return dtype == Dtype::bf16 || dtype == Dtype::fp16; }

}  // namespace

bool has_forward(Engine engine, Dtype dtype, int D, const Target& target) {
  switch (engine) {
    case Engine::portable: return true;
    case Engine::mma: return target.team_scratch_kib > 0 && is_16_bit(dtype) && ampere::supports_forward(D);
    case Engine::wgmma: return target.has_wgmma && is_16_bit(dtype) && detail::hopper_forward::supports(D);
  }
  return false;
}

bool has_backward(Engine engine, Dtype dtype, int D, const Target& target) {
  switch (engine) {
    case Engine::portable: return true;
    case Engine::mma: return is_16_bit(dtype) && ampere::supports_backward(target, D);
    case Engine::wgmma: return target.has_wgmma && is_16_bit(dtype) && detail::hopper_backward::supports(D);
  }
  return false;
}

std::int64_t attention_workspace_bytes(const AttentionChoice& choice, int B, int H, int Tq, int D) {
  switch (choice.kind) {
    case AttentionKind::standard: return 0;
    case AttentionKind::flash2: break;
  }
  switch (choice.backward) {
    case Engine::portable: return 0;
    case Engine::mma: return ampere::backward_workspace_bytes(B, H, Tq, D);
    case Engine::wgmma: return detail::hopper_backward::workspace_bytes(B, H, Tq, D);
  }
  return 0;
}

std::int64_t attention_scratch_bytes(const AttentionChoice& choice, Dtype dtype, int B, int H, int Tk, int D,
                                     const Target& target) {
  switch (choice.kind) {
    case AttentionKind::standard: return 0;
    case AttentionKind::flash2: break;
  }
  switch (choice.backward) {
    case Engine::portable:
      return dtype == Dtype::fp64 ? flash2_backward_scratch_bytes<double>(target, B, H, Tk, D)
                                  : flash2_backward_scratch_bytes<float>(target, B, H, Tk, D);
    case Engine::mma:
    case Engine::wgmma: return 0;
  }
  return 0;
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
  switch (choice.kind) {
    case AttentionKind::standard: return StandardForward<Exec, Scalar>{task, probabilities}.launch(exec);
    case AttentionKind::flash2: break;
  }
  switch (choice.forward) {
    case Engine::portable: return Flash2Forward<Exec, Scalar>{task}.launch(exec);
    case Engine::mma: {
      using Mma = AmpereEngine<Exec, Scalar>;
      if constexpr (Mma::kHasKernels) return typename Mma::Forward{task}.launch(exec);
      break;
    }
    case Engine::wgmma: {
      using Wgmma = HopperEngine<Exec, Scalar>;
      if constexpr (Wgmma::kHasKernels) return typename Wgmma::Forward{task, tile_counter}.launch(exec);
      break;
    }
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
  switch (choice.kind) {
    case AttentionKind::standard: return StandardBackward<Exec, Scalar>{task, probabilities, g.d_scores}.launch(exec);
    case AttentionKind::flash2: break;
  }
  [[maybe_unused]] const DqOrder order = choice.deterministic ? DqOrder::fixed : DqOrder::any;
  switch (choice.backward) {
    case Engine::portable: return Flash2Backward<Exec, Scalar>{task}.launch(exec);
    case Engine::mma: {
      using Mma = AmpereEngine<Exec, Scalar>;
      if constexpr (Mma::kHasKernels) return typename Mma::Backward{task, order, g.workspace}.launch(exec);
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

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct Attention<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
