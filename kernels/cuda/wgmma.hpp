/// Matrix products of a warpgroup (4 warps, the first a multiple of 4) on Hopper's tensor cores, asynchronously:
///
///   d[64, N] (= or +=) a[64, 16] b[16, N]      a, b in bf16 or fp16, sums in float
///
/// `b` lies in shared memory, `a` there or in registers, `d` in registers. A chain of products reads
///
///   warpgroup_fence(); Wgmma<Scalar, N>::from_shared<...>(d, a, b, true); ...; warpgroup_commit();
///   warpgroup_wait<0>(d);
///
/// and between the fence and the wait nothing else may touch `d` or the registers of `a`, nor may a wait on a barrier
/// stand between two chains without a new fence (ptxas then serialises them, warnings C7510 to C7520).
///
/// Fragments (lane l of warp w, g = l/4, t = l%4): d[i] is row 16w + g + 8((i/2)%2), column 8(i/4) + 2t + i%2.
/// Registers a0..a3 hold the pairs (g, 2t), (g+8, 2t), (g, 2t+8), (g+8, 2t+8) of a 16x16 slice of each warp: eight
/// consecutive d[i], packed in order, are such a slice, so one product's result is the next one's operand.
///
/// Source  PTX ISA: wgmma.mma_async, matrix descriptors; the strides as measured for every layout used here.
#pragma once

#include "kernels/core/scalar.hpp"
#include "kernels/cuda/device.hpp"

namespace tessera::kernels::cuda {

/// A tile in shared memory as wgmma and the copy engine see it: panels kPanelBytes wide (128, 64 or 32), rows of a
/// panel contiguous, its 16-byte chunks exchanged by the swizzle of that width. Panels follow each other.
///
/// Its rows are m (of a) or n (of b) when the depth runs along the row ("depth-major", not transposed), else the
/// depth. 16 of the depth further are 32 bytes along the row of a panel, or 16 rows. `panel_stride`, in bytes, is used
/// by transposed tiles only, and only where N exceeds a panel.
template <int kPanelBytes>
struct TileDescriptor {
  static_assert(kPanelBytes == 128 || kPanelBytes == 64 || kPanelBytes == 32);
  static constexpr std::uint32_t kSwizzle = kPanelBytes == 128 ? 1 : kPanelBytes == 64 ? 2 : 3;
  static constexpr std::uint32_t kHigh = kPanelBytes * 8 / 16 | kSwizzle << 30;  // stride of 8 rows; swizzle

  std::uint32_t low;  // start, and stride of panels, both in units of 16 bytes

  TESSERA_DEVICE explicit TileDescriptor(SharedAddress tile, std::uint32_t panel_stride = 0)
      : low((tile & 0x3ffffu) >> 4 | panel_stride >> 4 << 16) {}
  /// The tile that starts `bytes` further.
  TESSERA_DEVICE TileDescriptor operator+(int bytes) const {
    TileDescriptor moved = *this;
    moved.low += bytes >> 4;
    return moved;
  }
  TESSERA_DEVICE std::uint64_t word() const { return std::uint64_t{kHigh} << 32 | low; }
};

/// Before the first product of a chain: orders it after this warpgroup's accesses to the registers.
TESSERA_DEVICE void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Ends a chain: a group that can be waited for.
TESSERA_DEVICE void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Makes the compiler assume that these registers change here.
template <int kCount>
TESSERA_DEVICE void touch(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
TESSERA_DEVICE void touch(std::uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

/// Waits until at most kPending groups are still running; `d` are results of one that is not.
template <int kPending>
TESSERA_DEVICE void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <int kPending, int kCount>
TESSERA_DEVICE void warpgroup_wait(float (&d)[kCount]) {
  warpgroup_wait<kPending>();
  touch(d);
}

/// warpgroup_wait<0>(d), but not before `number`, which is not negative (or is NaN), has been computed.
///
/// ptxas moves a wait as far up as it can, before arithmetic that is meant to overlap the product. A condition that
/// always holds, but that ptxas cannot evaluate, keeps the wait in place.
template <int kCount>
TESSERA_DEVICE void warpgroup_wait_after(float number, float (&d)[kCount]) {
  asm volatile(
      "{\n"
      ".reg .pred holds;\n"
      "setp.gtu.f32 holds, %0, 0fbf800000;\n"  // > -1, or unordered
      "@holds wgmma.wait_group.sync.aligned 0;\n"
      "}" ::"f"(number)
      : "memory");
  touch(d);
}

/// The products for N columns, a multiple of 16 up to 256. `accumulate` false overwrites d.
/// from_shared_fresh overwrites without reading the old values, which frees the registers of `d` until then.
template <class Scalar, int N>
struct Wgmma;

// The lists of N/2 registers, for every N: blocks of eight, as text and as operands.
#define TESSERA_TEXT_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TESSERA_TEXT_2 TESSERA_TEXT_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TESSERA_TEXT_3 TESSERA_TEXT_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TESSERA_TEXT_4 TESSERA_TEXT_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TESSERA_TEXT_5 TESSERA_TEXT_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TESSERA_TEXT_6 TESSERA_TEXT_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TESSERA_TEXT_7 TESSERA_TEXT_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TESSERA_TEXT_8 TESSERA_TEXT_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TESSERA_TEXT_9 TESSERA_TEXT_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TESSERA_TEXT_10 TESSERA_TEXT_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TESSERA_TEXT_11 TESSERA_TEXT_10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TESSERA_TEXT_12 TESSERA_TEXT_11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TESSERA_TEXT_13 TESSERA_TEXT_12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TESSERA_TEXT_14 TESSERA_TEXT_13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define TESSERA_TEXT_15 TESSERA_TEXT_14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define TESSERA_TEXT_16 TESSERA_TEXT_15 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define TESSERA_EIGHT(how, i) \
  how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3]), how(d[i + 4]), how(d[i + 5]), how(d[i + 6]), how(d[i + 7])
#define TESSERA_LIST_1(how) TESSERA_EIGHT(how, 0)
#define TESSERA_LIST_2(how) TESSERA_LIST_1(how), TESSERA_EIGHT(how, 8)
#define TESSERA_LIST_3(how) TESSERA_LIST_2(how), TESSERA_EIGHT(how, 16)
#define TESSERA_LIST_4(how) TESSERA_LIST_3(how), TESSERA_EIGHT(how, 24)
#define TESSERA_LIST_5(how) TESSERA_LIST_4(how), TESSERA_EIGHT(how, 32)
#define TESSERA_LIST_6(how) TESSERA_LIST_5(how), TESSERA_EIGHT(how, 40)
#define TESSERA_LIST_7(how) TESSERA_LIST_6(how), TESSERA_EIGHT(how, 48)
#define TESSERA_LIST_8(how) TESSERA_LIST_7(how), TESSERA_EIGHT(how, 56)
#define TESSERA_LIST_9(how) TESSERA_LIST_8(how), TESSERA_EIGHT(how, 64)
#define TESSERA_LIST_10(how) TESSERA_LIST_9(how), TESSERA_EIGHT(how, 72)
#define TESSERA_LIST_11(how) TESSERA_LIST_10(how), TESSERA_EIGHT(how, 80)
#define TESSERA_LIST_12(how) TESSERA_LIST_11(how), TESSERA_EIGHT(how, 88)
#define TESSERA_LIST_13(how) TESSERA_LIST_12(how), TESSERA_EIGHT(how, 96)
#define TESSERA_LIST_14(how) TESSERA_LIST_13(how), TESSERA_EIGHT(how, 104)
#define TESSERA_LIST_15(how) TESSERA_LIST_14(how), TESSERA_EIGHT(how, 112)
#define TESSERA_LIST_16(how) TESSERA_LIST_15(how), TESSERA_EIGHT(how, 120)

#define TESSERA_UPDATED(x) "+f"(x)
#define TESSERA_WRITTEN(x) "=f"(x)

// One width: `eighths` blocks of registers, then the numbers of the seven operands after them.
#define TESSERA_WGMMA(ScalarType, type, columns, eighths, o0, o1, o2, o3, o4, o5, o6)                                \
  template <>                                                                                                        \
  struct Wgmma<ScalarType, columns> {                                                                                \
    template <bool kATransposed, bool kBTransposed, int kA, int kB>                                                  \
    static TESSERA_DEVICE void from_shared(float (&d)[columns / 2], TileDescriptor<kA> a, TileDescriptor<kB> b,      \
                                           bool accumulate) {                                                        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o2                                                          \
                   ", 0;\n"                                                                                          \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" TESSERA_TEXT_##eighths \
                   "}, %" #o0 ", %" #o1 ", p, 1, 1, %" #o3 ", %" #o4 ";\n}"                                          \
                   : TESSERA_LIST_##eighths(TESSERA_UPDATED)                                                         \
                   : "l"(a.word()), "l"(b.word()), "r"(static_cast<int>(accumulate)), "n"(int(kATransposed)),        \
                     "n"(int(kBTransposed)));                                                                        \
    }                                                                                                                \
    template <bool kATransposed, bool kBTransposed, int kA, int kB>                                                  \
    static TESSERA_DEVICE void from_shared_fresh(float (&d)[columns / 2], TileDescriptor<kA> a,                      \
                                                 TileDescriptor<kB> b) {                                             \
      asm volatile(                                                                                                  \
          "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                                 \
          "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" TESSERA_TEXT_##eighths          \
          "}, %" #o0 ", %" #o1 ", p, 1, 1, %" #o2 ", %" #o3 ";\n}"                                                   \
          : TESSERA_LIST_##eighths(TESSERA_WRITTEN)                                                                  \
          : "l"(a.word()), "l"(b.word()), "n"(int(kATransposed)), "n"(int(kBTransposed)));                           \
    }                                                                                                                \
    template <bool kBTransposed, int kB>                                                                             \
    static TESSERA_DEVICE void from_registers(float (&d)[columns / 2], std::uint32_t a0, std::uint32_t a1,           \
                                              std::uint32_t a2, std::uint32_t a3, TileDescriptor<kB> b,              \
                                              bool accumulate) {                                                     \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o5                                                          \
                   ", 0;\n"                                                                                          \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" TESSERA_TEXT_##eighths \
                   "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 ", p, 1, 1, %" #o6 ";\n}"                    \
                   : TESSERA_LIST_##eighths(TESSERA_UPDATED)                                                         \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b.word()), "r"(static_cast<int>(accumulate)),           \
                     "n"(int(kBTransposed)));                                                                        \
    }                                                                                                                \
  };

#define TESSERA_WGMMA_WIDTHS(ScalarType, type)                                \
  TESSERA_WGMMA(ScalarType, type, 16, 1, 8, 9, 10, 11, 12, 13, 14)            \
  TESSERA_WGMMA(ScalarType, type, 32, 2, 16, 17, 18, 19, 20, 21, 22)          \
  TESSERA_WGMMA(ScalarType, type, 48, 3, 24, 25, 26, 27, 28, 29, 30)          \
  TESSERA_WGMMA(ScalarType, type, 64, 4, 32, 33, 34, 35, 36, 37, 38)          \
  TESSERA_WGMMA(ScalarType, type, 80, 5, 40, 41, 42, 43, 44, 45, 46)          \
  TESSERA_WGMMA(ScalarType, type, 96, 6, 48, 49, 50, 51, 52, 53, 54)          \
  TESSERA_WGMMA(ScalarType, type, 112, 7, 56, 57, 58, 59, 60, 61, 62)         \
  TESSERA_WGMMA(ScalarType, type, 128, 8, 64, 65, 66, 67, 68, 69, 70)         \
  TESSERA_WGMMA(ScalarType, type, 144, 9, 72, 73, 74, 75, 76, 77, 78)         \
  TESSERA_WGMMA(ScalarType, type, 160, 10, 80, 81, 82, 83, 84, 85, 86)        \
  TESSERA_WGMMA(ScalarType, type, 176, 11, 88, 89, 90, 91, 92, 93, 94)        \
  TESSERA_WGMMA(ScalarType, type, 192, 12, 96, 97, 98, 99, 100, 101, 102)     \
  TESSERA_WGMMA(ScalarType, type, 208, 13, 104, 105, 106, 107, 108, 109, 110) \
  TESSERA_WGMMA(ScalarType, type, 224, 14, 112, 113, 114, 115, 116, 117, 118) \
  TESSERA_WGMMA(ScalarType, type, 240, 15, 120, 121, 122, 123, 124, 125, 126) \
  TESSERA_WGMMA(ScalarType, type, 256, 16, 128, 129, 130, 131, 132, 133, 134)

TESSERA_WGMMA_WIDTHS(bfloat16, "bf16")
TESSERA_WGMMA_WIDTHS(float16, "f16")

#undef TESSERA_WGMMA_WIDTHS
#undef TESSERA_WGMMA
#undef TESSERA_WRITTEN
#undef TESSERA_UPDATED
#undef TESSERA_LIST_16
#undef TESSERA_LIST_15
#undef TESSERA_LIST_14
#undef TESSERA_LIST_13
#undef TESSERA_LIST_12
#undef TESSERA_LIST_11
#undef TESSERA_LIST_10
#undef TESSERA_LIST_9
#undef TESSERA_LIST_8
#undef TESSERA_LIST_7
#undef TESSERA_LIST_6
#undef TESSERA_LIST_5
#undef TESSERA_LIST_4
#undef TESSERA_LIST_3
#undef TESSERA_LIST_2
#undef TESSERA_LIST_1
#undef TESSERA_EIGHT
#undef TESSERA_TEXT_16
#undef TESSERA_TEXT_15
#undef TESSERA_TEXT_14
#undef TESSERA_TEXT_13
#undef TESSERA_TEXT_12
#undef TESSERA_TEXT_11
#undef TESSERA_TEXT_10
#undef TESSERA_TEXT_9
#undef TESSERA_TEXT_8
#undef TESSERA_TEXT_7
#undef TESSERA_TEXT_6
#undef TESSERA_TEXT_5
#undef TESSERA_TEXT_4
#undef TESSERA_TEXT_3
#undef TESSERA_TEXT_2
#undef TESSERA_TEXT_1

}  // namespace tessera::kernels::cuda
