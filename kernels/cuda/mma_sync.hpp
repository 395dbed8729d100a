/// The tensor-core instructions of sm_80 and up: mma.sync, the loads that feed it, and asynchronous copies.
///
/// Fragments of a warp, with g = lane/4 and t = lane%4 (m16n8k16, 2-byte inputs, float sums):
///
///   a[0..3]  16x16, rows g, g+8, g, g+8; columns 2t, 2t, 2t+8, 2t+8 (and the next one in the upper half of the word)
///   b[0..1]  16x8,  rows 2t, 2t+8 (and the next one); column g
///   c[0..3]  16x8,  rows g, g, g+8, g+8; columns 2t, 2t+1, 2t, 2t+1
///
/// so two neighbouring c fragments, rounded and packed, are one a fragment: products chain without leaving registers.
///
/// The loads are volatile but name no memory: they keep their order against barriers and copies, which are volatile
/// too, and leave the compiler free to move ordinary arithmetic across them.
///
/// Source  PTX ISA, 9.7.14.5.8 (mma.m16n8k16), 9.7.14.5.15 (ldmatrix), 9.7.9.25.3 (cp.async).
#pragma once

#include <type_traits>

#include "kernels/core/scalar.hpp"
#include "kernels/cuda/device.hpp"

namespace tessera::kernels::cuda {

/// Loads four 8x8 matrices of 2-byte elements: lane l gives the address of the 16-byte row l%8 of matrix l/8; in
/// register m it gets elements 2t, 2t+1 of row g of matrix m.
TESSERA_DEVICE void load_matrices(SharedAddress row, std::uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row));
}
/// The same, each matrix transposed on the way.
TESSERA_DEVICE void load_matrices_transposed(SharedAddress row, std::uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row));
}

/// Two matrices, transposed on the way; lanes 0 to 15 give the addresses.
TESSERA_DEVICE void load_2_matrices_transposed(SharedAddress row, std::uint32_t (&m)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(m[0]), "=r"(m[1]) : "r"(row));
}

/// A word, and two neighbouring floats aligned to 8 bytes.
TESSERA_DEVICE void shared_store_word(SharedAddress to, std::uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
TESSERA_DEVICE void shared_store_float2(SharedAddress to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
TESSERA_DEVICE float2 shared_load_float2(SharedAddress from) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(from));
  return pair;
}

/// c += a b, for 16x16 times 16x8.
template <class Scalar>
TESSERA_DEVICE void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<Scalar, bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<Scalar, float16>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// A float as a factor in TF32, of which tensor cores read 10 fraction bits: multiplied so that cutting the others off
/// leaves no bias, within 1.28 * 2^-11 relative. NaN stays NaN, which an integer addition does not ensure; the
/// conversion cvt.rna made attention 1.2 times slower (H100).
TESSERA_DEVICE std::uint32_t to_tf32(float x) { return __float_as_uint(x * (1 + 0.72f / 2048)); }
/// A float rounded to TF32, with zeros below: what is left of x is x minus this. Where this loses a NaN, the difference
/// still has it.
TESSERA_DEVICE std::uint32_t upper_tf32(float x) { return (__float_as_uint(x) + 0x1000u) & 0xffffe000u; }

/// c += a b, for 16x8 times 8x8 in TF32 (m16n8k8): a rows g, g+8, g, g+8; columns t, t, t+4, t+4; b rows t, t+4;
/// column g. The 13 lowest bits of a and b do not count.
TESSERA_DEVICE void multiply_add_tf32(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Zero, computed from the sign of x >= 0: whatever depends on it is scheduled after x.
TESSERA_DEVICE int zero_after(float x) { return static_cast<int>(__float_as_uint(x) >> 31); }

/// Adds four floats to four adjacent ones in global memory, aligned to 16 bytes; each addition is atomic by itself.
TESSERA_DEVICE void add_to_global(float* to, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
               "f"(x[3])
               : "memory");
#else
  for (int i = 0; i < 4; ++i)
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + i), "f"(x[i]) : "memory");
#endif
}

/// Copies 16 bytes to shared memory asynchronously, or writes 16 zeros if there is nothing to copy; both addresses are
/// aligned to 16. Copies form groups; a thread waits until at most kPending of its groups are in flight.
TESSERA_DEVICE void copy_16(SharedAddress to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
TESSERA_DEVICE void copy_16_or_zero(SharedAddress to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}
TESSERA_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
TESSERA_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tessera::kernels::cuda
