/// Tickets: counters in global memory by which blocks of a launch take turns.
///
/// A block waits until the counter has reached its number, does its part, and increments the counter. A block must
/// start after those that it waits for, else a full GPU deadlocks. So blocks either take their numbers from a counter
/// when they start, or a kernel relies on blocks starting in the order of their indices: GPUs do so, though CUDA does
/// not promise it.
///
/// Source  PTX ISA: ld.acquire, red.release (memory consistency model).
#pragma once

#include "kernels/cuda/barrier.hpp"

namespace tessera::kernels::cuda {

/// The counter; what its earlier holders wrote before they passed it on is visible afterwards.
TESSERA_DEVICE std::int32_t read_ticket(const std::int32_t* ticket) {
  std::int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(ticket) : "memory");
  return value;
}

/// Reads the counter early and without ordering, overlapped with other work, to see whether a wait will be needed. If
/// not, the additions in memory that depend on the value read still follow those of earlier holders, because a GPU
/// performs both in its L2 cache. The memory model promises this only after a fence, which would cost the mma.sync
/// backward pass 6 to 11 % (H200, D = 80 and 128, T = 4096).
TESSERA_DEVICE std::int32_t peek_ticket(const std::int32_t* ticket) {
  std::int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(ticket));
  return value;
}

/// Consecutive polls of a ticket, about a millisecond; after them a sleep before each; a wait gives up after about
/// 20 s. A turn of the mma.sync backward pass takes microseconds, but more than 3 s under racecheck.
inline constexpr int kEagerPolls = 1000, kMaxPolls = 4'000'000;
inline constexpr unsigned kNapNs = 4'000;

/// Waits for `turn`. A fault in the numbering ends in an error, not in a hang.
TESSERA_DEVICE void wait_for_turn(const std::int32_t* ticket, std::int32_t turn) {
#pragma unroll 1
  for (int i = 0; i < kMaxPolls; ++i) {
    if (read_ticket(ticket) == turn) return;
    if (i >= kEagerPolls) __nanosleep(kNapNs);
  }
  __trap();
}

/// Passes it on, after all writes of this thread (and bulk operations that it has waited for).
TESSERA_DEVICE void pass_ticket(std::int32_t* ticket) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(ticket) : "memory");
}

}  // namespace tessera::kernels::cuda
