/// Operations inside a thread or warp: register budget, fast exponential, two 16-bit numbers in a word, exchanges.
///
/// Source  PTX ISA: setmaxnreg, ex2, cvt, shfl.
#pragma once

#include <type_traits>

#include "kernels/core/scalar.hpp"
#include "kernels/cuda/device.hpp"

namespace tessera::kernels::cuda {

/// A warpgroup takes registers from the block's pool, waiting until others have returned enough, or returns some. Each
/// role of a specialised kernel calls one of them once, at the start of its branch. kRegisters is a multiple of 8 from
/// 24 to 256. The kernel needs LaunchBounds<threads, 1>, else ptxas ignores both (warning C7508).
template <int kRegisters>
TESSERA_DEVICE void take_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
TESSERA_DEVICE void give_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// The warp's number in the team, in a form that the compiler knows to be uniform in the warp.
TESSERA_DEVICE int warp_of_team() { return __shfl_sync(0xffffffffu, threadIdx.y, 0); }

/// A number that is the same in all lanes, in a form that the compiler knows to be uniform: what is computed from it
/// stays in uniform registers, where wgmma needs its descriptors.
TESSERA_DEVICE std::uint32_t same_in_warp(std::uint32_t number) { return __shfl_sync(0xffffffffu, number, 0); }

/// The lane's number, read once: the compiler would read the special register again at every use.
TESSERA_DEVICE int lane_of_warp() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// 2^x, 2 ulp; subnormal results become 0, 2^-inf = 0. Half an instruction of the special-function unit per cycle.
TESSERA_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two floats rounded to Scalar (nearest even) in one word, `low` in the lower half.
template <class Scalar>
TESSERA_DEVICE std::uint32_t pack(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<Scalar, bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<Scalar, float16>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

/// The inverse.
template <class Scalar>
TESSERA_DEVICE float2 unpack(std::uint32_t word) {
  if constexpr (std::is_same_v<Scalar, bfloat16>) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  } else {
    static_assert(std::is_same_v<Scalar, float16>);
    float2 pair;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high;\n"
        "}"
        : "=f"(pair.x), "=f"(pair.y)
        : "r"(word));
    return pair;
  }
}

/// Largest value and sum over the four lanes that share a row of an accumulator fragment.
TESSERA_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
TESSERA_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// The same over all lanes of the warp, for float and double.
template <class Real>
TESSERA_DEVICE Real warp_max(Real x) {
#pragma unroll
  for (int step = kWarpLanes / 2; step > 0; step /= 2) x = ::max(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
template <class Real>
TESSERA_DEVICE Real warp_sum(Real x) {
#pragma unroll
  for (int step = kWarpLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

/// The sum over each kGroup neighbouring lanes of the warp; all of them get it.
template <int kGroup, class Real>
TESSERA_DEVICE Real group_sum(Real x) {
#pragma unroll
  for (int step = kGroup / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

/// Transposes a 4x4 matrix of words over the four lanes of a quad: lane t gives row t and gets column t.
///
/// Accumulators leave a lane with words of four 16-byte pieces; afterwards it has all four words of one piece.
TESSERA_DEVICE uint4 quad_transpose(std::uint32_t w0, std::uint32_t w1, std::uint32_t w2, std::uint32_t w3) {
  const bool is_odd = threadIdx.x & 1, is_upper = threadIdx.x & 2;
  const std::uint32_t x = __shfl_xor_sync(0xffffffffu, is_odd ? w0 : w1, 1);
  const std::uint32_t y = __shfl_xor_sync(0xffffffffu, is_odd ? w2 : w3, 1);
  const std::uint32_t a0 = is_odd ? x : w0, a1 = is_odd ? w1 : x;  // two lanes' words of piece 0 (odd: 1)
  const std::uint32_t b0 = is_odd ? y : w2, b1 = is_odd ? w3 : y;  // of piece 2 (odd: 3)
  const std::uint32_t z0 = __shfl_xor_sync(0xffffffffu, is_upper ? a0 : b0, 2);
  const std::uint32_t z1 = __shfl_xor_sync(0xffffffffu, is_upper ? a1 : b1, 2);
  return is_upper ? make_uint4(z0, z1, b0, b1) : make_uint4(a0, a1, z0, z1);
}

}  // namespace tessera::kernels::cuda
