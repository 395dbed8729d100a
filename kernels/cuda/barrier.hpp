/// Barriers in shared memory (mbarrier), named barriers, and the fences between ordinary stores and the async proxy.
///
/// An mbarrier counts arrivals and bytes of one phase; when both are complete the phase flips and the next begins. A
/// waiter names the parity of the phase it waits for: 0 for the first, 1 for the second, 0 for the third. Waiting for
/// parity 1 on a fresh barrier returns at once, which is how a ring of buffers starts empty.
///
/// Source  PTX ISA: mbarrier, bar, fence.proxy.
#pragma once

#include "kernels/cuda/device.hpp"

namespace tessera::kernels::cuda {

/// Bytes of one barrier; it must be aligned to them.
inline constexpr int kBarrierBytes = 8;

/// One thread of the block; then fence_barrier_init(), then a block-wide barrier.
TESSERA_DEVICE void barrier_init(SharedAddress barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes initialised barriers visible to the copy engine.
TESSERA_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

TESSERA_DEVICE void barrier_arrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives, and lets the phase wait for that many bytes of copies as well.
TESSERA_DEVICE void barrier_arrive_expecting(SharedAddress barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// Whether the phase of that parity is complete. The hardware may suspend the thread for a while first.
TESSERA_DEVICE bool barrier_try_wait(SharedAddress barrier, int parity) {
  std::uint32_t is_complete;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(is_complete)
      : "r"(barrier), "r"(parity)
      : "memory");
  return is_complete != 0;
}

/// The same, without suspending.
TESSERA_DEVICE bool barrier_test(SharedAddress barrier, int parity) {
  std::uint32_t is_complete;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(is_complete)
      : "r"(barrier), "r"(parity)
      : "memory");
  return is_complete != 0;
}

/// Attempts before a wait for a phase gives up: seconds, while a step of a kernel takes microseconds.
inline constexpr int kMaxWaits = 4'000'000;

/// Waits for the phase of that parity. A fault in a kernel's barriers ends in an error, not in a hang.
TESSERA_DEVICE void barrier_wait(SharedAddress barrier, int parity) {
#pragma unroll 1  // else dozens of copies push the kernel out of the instruction cache
  for (int i = 0; i < kMaxWaits; ++i) {
    if (barrier_try_wait(barrier, parity)) return;
  }
  __trap();
}

/// Named barriers 1 to 15 (0 is the block-wide one) of `threads` threads, whole warps: `sync` arrives and waits,
/// `arrive` only arrives. They have no parity: every thread must arrive once before any arrives again.
TESSERA_DEVICE void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TESSERA_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Orders a thread's stores to shared memory before reads by wgmma or the copy engine: called by every writing thread,
/// before the barrier that signals the reader.
TESSERA_DEVICE void fence_shared_for_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace tessera::kernels::cuda
