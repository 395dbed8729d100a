/// The copy engine (TMA): tiles of head tensors between global and shared memory, plain bulk copies, bulk additions.
///
/// A tile of `rows` tokens of one head lies in shared memory as consecutive panels of HeadPanels<D>::kBytes per row,
/// swizzled: exactly what TileDescriptor describes. One thread requests a tile; an mbarrier (barrier.hpp) counts its
/// bytes. Tokens outside the tensor are loaded as zeros, which count, and are not stored.
///
/// Source  PTX ISA: cp.async.bulk, cp.reduce.async.bulk, cp.async.bulk.tensor; CUDA driver API: cuTensorMapEncodeTiled.
#pragma once

#include <cuda.h>

#include "kernels/core/packet.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/cuda/check.hpp"
#include "kernels/cuda/device.hpp"

namespace tessera::kernels::cuda {

/// How a row of D two-byte numbers is cut into panels: the widest swizzle whose width divides it.
template <int D>
struct HeadPanels {
  static_assert(D % 16 == 0 && D <= 256);
  static constexpr int kWidth = D % 64 == 0 ? 64 : D % 32 == 0 ? 32 : 16;  // elements
  static constexpr int kBytes = 2 * kWidth;
  static constexpr int kCount = D / kWidth;
};

/// Whether the copy engine can read or write this tensor: rows must be aligned to 16 bytes.
template <class Tensor>
bool is_copyable(const Tensor& heads) {
  return rows_start_at_packets(heads) && heads.stride(3) == 1;
}

/// Describes the tiles of `rows` tokens (at most 256) of a [B,H,T,D] tensor with at least one element, for
/// load_head_tile. It is made for this address and shape; pass it by value in the functor.
template <int D, class Scalar>
CUtensorMap head_tensor_map(const HeadTensor<Scalar, Kokkos::Cuda>& heads, int rows) {
  using Panels = HeadPanels<D>;
  static_assert(sizeof(Scalar) == 2);
  TESSERA_REQUIRE(heads.extent_int(3) == D && heads.size() > 0,
                  "tensor map: head width must be the kernel's, no extent 0", heads.extent(3), D, heads.size());
  TESSERA_REQUIRE(is_copyable(heads),
                  "tensor map: address and strides must be multiples of 16 bytes, the head width contiguous",
                  reinterpret_cast<std::uintptr_t>(heads.data()) % 16, heads.stride(0), heads.stride(1),
                  heads.stride(2), heads.stride(3));
  const auto extent = [&](int axis) { return static_cast<cuuint64_t>(heads.extent(axis)); };
  // The stride of an axis of one element is never used, but must be legal.
  const auto bytes = [&](int axis) {
    return heads.extent(axis) > 1 ? cuuint64_t{2} * heads.stride(axis) : cuuint64_t{16};
  };
  const cuuint64_t extents[] = {Panels::kWidth, extent(2), Panels::kCount, extent(1), extent(0)};
  const cuuint64_t strides[] = {bytes(2), Panels::kBytes, bytes(1), bytes(0)};
  const cuuint32_t box[] = {Panels::kWidth, static_cast<cuuint32_t>(rows), Panels::kCount, 1, 1};
  const cuuint32_t every[] = {1, 1, 1, 1, 1};
  constexpr CUtensorMapSwizzle kSwizzle = Panels::kBytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                          : Panels::kBytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                 : CU_TENSOR_MAP_SWIZZLE_32B;
  constexpr CUtensorMapDataType kType = std::is_same_v<std::remove_const_t<Scalar>, float16>
                                            ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                            : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  CUtensorMap map;
  check(cuTensorMapEncodeTiled(&map, kType, 5, const_cast<void*>(static_cast<const void*>(heads.data())), extents,
                               strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, kSwizzle,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "tensor map: the driver refuses it");
  return map;
}

/// The tile of head (b, h) that starts at token `row`; 2 * D * rows bytes complete on `barrier`.
TESSERA_DEVICE void load_head_tile(SharedAddress to, const CUtensorMap& map, SharedAddress barrier, int row, int h,
                                   int b) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(0), "r"(row), "r"(0), "r"(h), "r"(b)
      : "memory");
}

/// Copies `bytes` contiguous bytes, a multiple of 16 like both addresses; they complete on `barrier`.
TESSERA_DEVICE void load_bytes(SharedAddress to, const void* from, int bytes, SharedAddress barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/// The reverse; part of the current bulk group.
TESSERA_DEVICE void store_bytes(void* to, SharedAddress from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}

/// to[i] += from[i] for bytes/4 floats, a multiple of 16 bytes; each addition is atomic. Part of the current bulk
/// group.
TESSERA_DEVICE void add_floats(float* to, SharedAddress from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}

/// Ends a group of the thread's bulk stores or additions.
TESSERA_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until at most kPending groups of this thread are unfinished.
template <int kPending>
TESSERA_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
/// The same, but only until their shared memory has been read and may be written again.
template <int kPending>
TESSERA_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace tessera::kernels::cuda
