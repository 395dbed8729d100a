/// Loads and stores by shared address, and the store of accumulator fragments as a tile.
///
/// Source  PTX ISA: ld, st, stmatrix.
#pragma once

#include "kernels/cuda/device.hpp"

namespace tessera::kernels::cuda {

TESSERA_DEVICE void shared_store(SharedAddress to, std::int32_t value) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
TESSERA_DEVICE std::int32_t shared_load_int(SharedAddress from) {
  std::int32_t value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  return value;
}

TESSERA_DEVICE void shared_store(SharedAddress to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
/// 16 bytes, aligned to 16.
TESSERA_DEVICE void shared_store(SharedAddress to, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
TESSERA_DEVICE float4 shared_load_float4(SharedAddress from) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(from)
               : "memory");
  return value;
}
TESSERA_DEVICE uint4 shared_load_words(SharedAddress from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

/// Stores four 8x8 matrices of 2-byte elements, one per register of the warp; lane l gives the address of the 16-byte
/// row l%8 of matrix l/8. In register m, lane l holds elements 2(l%4), 2(l%4)+1 of row l/4, as accumulators do.
TESSERA_DEVICE void store_matrices(SharedAddress row, std::uint32_t m0, std::uint32_t m1, std::uint32_t m2,
                                   std::uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(m0), "r"(m1), "r"(m2),
               "r"(m3)
               : "memory");
}
}  // namespace tessera::kernels::cuda
