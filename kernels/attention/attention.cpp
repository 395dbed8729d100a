#include "kernels/attention/attention.hpp"

#include "kernels/attention/flash2/backward.hpp"
#include "kernels/attention/flash2/forward.hpp"
#include "kernels/attention/standard/standard.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#ifdef KOKKOS_ENABLE_CUDA
  #include "kernels/attention/flash2/ampere/backward.hpp"
  #include "kernels/attention/flash2/ampere/forward.hpp"
  #include "kernels/attention/flash2/hopper/backward.hpp"
  #include "kernels/attention/flash2/hopper/forward.hpp"
  #include "kernels/cuda/device.hpp"
#endif

namespace tessera::kernels {

std::string_view name_of(Engine engine) {
  constexpr std::string_view names[] = {"portable", "mma", "wgmma"};
  return names[static_cast<int>(engine)];
}

namespace {

[[noreturn]] void refuse_engine(Engine engine) {
  throw std::invalid_argument("attention: this build has no " + std::string(name_of(engine)) +
                              " kernel for this dtype and head width; ask has_forward and has_backward");
}

}  // namespace

#ifdef KOKKOS_ENABLE_CUDA
namespace {

template <class Scalar>
inline constexpr bool kHasTensorCores = sizeof(Scalar) == 2;

bool is_16_bit(Dtype dtype) { return dtype == Dtype::bf16 || dtype == Dtype::fp16; }

}  // namespace

bool has_forward(Engine engine, Dtype dtype, int D) {
  switch (engine) {
    case Engine::portable: return true;
    case Engine::mma: return is_16_bit(dtype) && AmpereForward<bfloat16>::supports(D);
    case Engine::wgmma: return cuda::kBuiltForHopper && is_16_bit(dtype) && HopperForward<bfloat16>::supports(D);
  }
  return false;
}

bool has_backward(Engine engine, Dtype dtype, int D) {
  switch (engine) {
    case Engine::portable: return true;
    case Engine::mma: return is_16_bit(dtype) && AmpereBackward<bfloat16>::supports(D);
    case Engine::wgmma: return cuda::kBuiltForHopper && is_16_bit(dtype) && HopperBackward<bfloat16>::supports(D);
  }
  return false;
}

std::int64_t attention_workspace_bytes(const AttentionChoice& choice, int B, int H, int Tq, int D) {
  if (choice.kind != AttentionKind::flash2) return 0;
  switch (choice.backward) {
    case Engine::portable: break;
    case Engine::mma: return AmpereBackward<bfloat16>::workspace_bytes(B, H, Tq, D);
    case Engine::wgmma: return HopperBackward<bfloat16>::workspace_bytes(B, H, Tq, D);
  }
  return 0;
}
#else
bool has_forward(Engine engine, Dtype, int) { return engine == Engine::portable; }
bool has_backward(Engine engine, Dtype, int) { return engine == Engine::portable; }
std::int64_t attention_workspace_bytes(const AttentionChoice&, int, int, int, int) { return 0; }
#endif

AttentionChoice fastest_attention(Dtype dtype, int D, bool deterministic) {
  AttentionChoice choice;
  choice.deterministic = deterministic;
  for (const Engine engine : {Engine::mma, Engine::wgmma}) {  // the later, the faster
    if (has_forward(engine, dtype, D)) choice.forward = engine;
    if (has_backward(engine, dtype, D)) choice.backward = engine;
  }
  return choice;
}

template <class Exec, class Scalar>
void Attention<Exec, Scalar>::forward(const Exec& exec) const {
  if (choice.kind == AttentionKind::standard) {
    return StandardForward<Exec, Scalar>{.q = q,
                                         .k = k,
                                         .v = v,
                                         .out = out,
                                         .lse = lse,
                                         .probabilities = probabilities,
                                         .scale = scale,
                                         .causal = causal}
        .launch(exec);
  }
  if (choice.forward == Engine::portable) {
    return Flash2Forward<Exec, Scalar>{.q = q, .k = k, .v = v, .out = out, .lse = lse, .scale = scale, .causal = causal}
        .launch(exec);
  }
#ifdef KOKKOS_ENABLE_CUDA
  if constexpr (kHasTensorCores<Scalar>) {
    if (choice.forward == Engine::mma) {
      return AmpereForward<Scalar>{.q = q, .k = k, .v = v, .out = out, .lse = lse, .scale = scale, .causal = causal}
          .launch(exec);
    }
    if (cuda::kBuiltForHopper) {
      return HopperForward<Scalar>{.q = q,
                                   .k = k,
                                   .v = v,
                                   .out = out,
                                   .lse = lse,
                                   .scale = scale,
                                   .causal = causal,
                                   .tile_counter = tile_counter}
          .launch(exec);
    }
  }
#endif
  refuse_engine(choice.forward);
}

template <class Exec, class Scalar>
void Attention<Exec, Scalar>::backward(const Exec& exec, const Gradients& g) const {
  if (choice.kind == AttentionKind::standard) {
    return StandardBackward<Exec, Scalar>{.q = q,
                                          .k = k,
                                          .v = v,
                                          .d_out = g.d_out,
                                          .probabilities = probabilities,
                                          .d_scores = g.d_scores,
                                          .d_q = g.d_q,
                                          .d_k = g.d_k,
                                          .d_v = g.d_v,
                                          .scale = scale}
        .launch(exec);
  }
  if (choice.backward == Engine::portable) {
    return Flash2Backward<Exec, Scalar>{.q = q,
                                        .k = k,
                                        .v = v,
                                        .out = out,
                                        .lse = lse,
                                        .d_out = g.d_out,
                                        .d_q = g.d_q,
                                        .d_k = g.d_k,
                                        .d_v = g.d_v,
                                        .scale = scale,
                                        .causal = causal}
        .launch(exec);
  }
#ifdef KOKKOS_ENABLE_CUDA
  if constexpr (kHasTensorCores<Scalar>) {
    const DqOrder order = choice.deterministic ? DqOrder::fixed : DqOrder::any;
    if (choice.backward == Engine::mma) {
      return AmpereBackward<Scalar>{.q = q,
                                    .k = k,
                                    .v = v,
                                    .out = out,
                                    .lse = lse,
                                    .d_out = g.d_out,
                                    .d_q = g.d_q,
                                    .d_k = g.d_k,
                                    .d_v = g.d_v,
                                    .scale = scale,
                                    .causal = causal,
                                    .order = order,
                                    .workspace = g.workspace}
          .launch(exec);
    }
    if (cuda::kBuiltForHopper) {
      return HopperBackward<Scalar>{.q = q,
                                    .k = k,
                                    .v = v,
                                    .out = out,
                                    .lse = lse,
                                    .d_out = g.d_out,
                                    .d_q = g.d_q,
                                    .d_k = g.d_k,
                                    .d_v = g.d_v,
                                    .scale = scale,
                                    .causal = causal,
                                    .order = order,
                                    .workspace = g.workspace}
          .launch(exec);
    }
  }
#endif
  refuse_engine(choice.backward);
}

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct Attention<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
