/// Which attention kernel runs: what kernels/attention/attention.hpp is given, and answers for.
#pragma once

namespace tessera::kernels {

enum class AttentionKind { standard, tiled, flash1, flash2 };

/// The instruction set that a flash2 kernel is written for.
enum class Engine {
  portable,  // Kokkos only, every dtype, head width and backend
  mma,       // tensor cores of NVIDIA GPUs from sm_80 on: all but fp64, head widths that are multiples of 8
  wgmma,     // warpgroups and copy engine of sm_90a: bf16 and fp16, some head widths
};

/// Of flash2: its engine's kernel, none of the ladder's; of standard: products by the library, not by team kernels.
inline constexpr int kNoLadder = -1;

/// The implementation that runs: its engine in each direction, its steps on the ladder (ladder_sizes.hpp), its tiles.
struct AttentionChoice {
  AttentionKind kind = AttentionKind::flash2;
  Engine forward = Engine::portable, backward = Engine::portable;  // of flash2; backward also of flash1 and tiled
  int steps;  // of flash1 0 to 5; of flash2 0 to 5, or kNoLadder; of standard 0, or kNoLadder: by the library
  int query_tile = 0, key_tile = 0;  // of a portable forward kernel, up to flash2's third step; 0: its own
  bool deterministic = true;         // false: backward may add gradients in any order

  AttentionChoice(AttentionKind implementation = AttentionKind::flash2)
      : kind(implementation), steps(kind == AttentionKind::flash1 ? 0 : kNoLadder) {}
  bool has_tensor_engine() const { return forward != Engine::portable || backward != Engine::portable; }
};

}  // namespace tessera::kernels
