/// What a product is, in words that every library behind gemm.hpp takes: operands, arithmetic, choice, workspace.
#pragma once

#include <cstdint>

#include "kernels/core/target.hpp"

namespace tessera::kernels {

enum class Op : bool { none, transpose };
enum class GemmMath : bool { full, tf32 };  // tf32: float operands on tensor cores, rounded to 10 fraction bits

/// How an algorithm is chosen at the first product of a kind (cuBLASLt only; others have none to choose).
enum class GemmSelection : bool {
  heuristic,  // the library's first proposal: the same in every process on the same library and GPU
  timed,      // the fastest of its proposals on the actual operands: fences and allocates once; c is unaffected
};

/// Bytes of device memory that a timed selection holds while it runs, for a result of `result_bytes`: the result, and a
/// buffer to flush the caches.
inline constexpr std::int64_t kGemmFlushBytes = std::int64_t{128} << 20;  // larger than any L2 cache so far
constexpr std::int64_t gemm_timing_bytes(const Target& target, std::int64_t result_bytes) {
  return target.has_vendor_parts() ? result_bytes + kGemmFlushBytes : 0;
}

/// Floats of workspace that a product of these sizes needs.
template <class In, class Out>
constexpr std::int64_t gemm_workspace(const Target& target, std::int64_t m, std::int64_t n, std::int64_t k,
                                      GemmMath math = GemmMath::full) {
  // 32 MiB from the first address that is a multiple of 256 bytes (cublaslt.hpp)
  if (target.has_vendor_parts()) return sizeof(In) > 2 && math == GemmMath::full ? 0 : (std::int64_t{1} << 23) + 64;
  if (sizeof(In) > 2) return 0;
  return m * k + k * n + (sizeof(Out) > 2 ? 0 : m * n);
}

}  // namespace tessera::kernels
