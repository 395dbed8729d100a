/// Whether a device computes right, asked at the start of a run: products whose sums are known exactly, products that
/// must repeat, and on a GPU the bandwidth of its memory.
///
///   a[i,k] = f[(i+k) mod p],  b[k,j] = g[(k+j) mod p]   =>   c[i,j] = K/p sum_s f[s] g[(s + j - i) mod p]
///
/// if p divides K. f and g hold small integers, so every partial sum is an integer below 2^24: exact in float, in any
/// order and on any architecture. A second pair of f and g has fractions; those products need only repeat bit for bit.
/// bf16 goes through Gemm (on a GPU the tensor cores), fp32 through HeadProduct: neither starts a library that a run
/// in 16 bits would not use. The result has more tiles than any GPU has multiprocessors.
///
/// Departs  a GPU that errs once in an hour passes: this finds what is broken, not what is rare.
/// Memory   on a GPU 512 MiB, on a host less than 1 MiB; freed before it returns.
/// Cost     below a second on a GPU, mostly the start of cuBLASLt, which a run needs anyway; a millisecond on a host.
/// Async    fences. Forgets the algorithms that Gemm chose (set_gemm_algorithms), and so must precede a job's products.
/// Throws   whatever allocating, launching and cuBLASLt throw.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

struct DeviceCheck {
  std::string wrong;       // which product erred and how; empty: none did
  double gbyte_per_s = 0;  // of copies within the device's memory, bytes read and written; 0 on a host
  double took_s = 0;
};

DeviceCheck check_device();

/// Entries of a matrix whose bits are not those of another.
struct DifferentBits {
  std::int64_t count;
  std::int64_t first;  // row * columns + column; only if count > 0
};
DifferentBits different_bits(const Device& exec, Matrix<const float, Device> made,
                             Matrix<const float, Device> expected);

}  // namespace tessera::kernels
