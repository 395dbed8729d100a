/// Tickets: counters in global memory by which blocks of a launch take turns.
///
/// A block waits until the counter has reached its number, does its part, and adds one where others wait for that.
/// Whoever waits must be launched after those it waits for, else a full GPU stands still.
///
/// Source  PTX ISA: ld.acquire, red.release (memory consistency model).
#pragma once

#include "kernels/cuda/barrier.hpp"

namespace tessera::kernels::cuda {

/// The counter; what its other holders wrote before they passed it on is visible afterwards.
TESSERA_DEVICE std::int32_t read_ticket(const std::int32_t* ticket) {
  std::int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(ticket) : "memory");
  return value;
}

/// The counter, read early and without any ordering: to learn whether waiting will be needed, under other work.
TESSERA_DEVICE std::int32_t peek_ticket(const std::int32_t* ticket) {
  std::int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(ticket));
  return value;
}

/// Polls of a ticket in a row, about a millisecond; after them a nap before each; and when a wait gives up, after about
/// 20 s. Under racecheck a turn of the mma.sync backward pass, microseconds elsewhere, was waited for longer than 3 s.
inline constexpr int kEagerPolls = 1000, kMaxPolls = 4'000'000;
inline constexpr unsigned kNapNs = 4'000;

/// Waits until it is `turn`'s turn. A fault in the numbering ends with an error, not with a hang.
TESSERA_DEVICE void wait_for_turn(const std::int32_t* ticket, std::int32_t turn) {
#pragma unroll 1
  for (int i = 0; i < kMaxPolls; ++i) {
    if (read_ticket(ticket) == turn) return;
    if (i >= kEagerPolls) __nanosleep(kNapNs);
  }
  __trap();
}

/// Passes it on, after everything this thread wrote (and bulk operations that it has waited for).
TESSERA_DEVICE void pass_ticket(std::int32_t* ticket) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(ticket) : "memory");
}

}  // namespace tessera::kernels::cuda
