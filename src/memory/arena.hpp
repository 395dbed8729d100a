/// The memory behind a layout: one allocation per memory space, handed out as unmanaged pointers. The host's is pinned
/// if the model computes on a GPU.
///
/// A new arena is filled with bytes 0xFF, which is NaN in every floating dtype: reading a tensor before it is
/// written gives a NaN loss instead of a plausible number. Nothing is allocated after construction.
///
/// Throws  Failure(Exit::out_of_memory) with the layout's table.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/scalar.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/layout.hpp"

namespace tessera::memory {

/// Memory that a process's libraries take after the check: BLAS's panels, buffers of MPI and HDF5. Measured on a CPU
/// (resident memory beyond the arena): 7 MiB; with micro-batches of 24,576 tokens 35 MiB.
inline constexpr std::int64_t kLibraryBytes = std::int64_t{64} << 20;

/// Memory left on a host [bytes]. Checked before allocating: under overcommit malloc succeeds, and the process is
/// killed later.
struct HostMemory {
  std::int64_t shared;  // the least of the system's available memory and the control groups' remainders
  std::int64_t own;     // what this process's limits leave (ulimit -v, ulimit -d), each rank having its own

  /// Each rank's share for its arena: kLibraryBytes are subtracted; not below 0.
  std::int64_t of_each(int ranks_on_host) const;
};

/// `root` is for tests.
HostMemory host_memory(const std::filesystem::path& root = "/");

/// host_memory().of_each(ranks_on_host)
std::int64_t available_host_bytes(int ranks_on_host = 1);

/// Checks that `ranks_on_host` arenas fit into the host's memory.
///
/// Throws  Failure(Exit::out_of_memory) with the layout's table and `advice`, which says what would fit.
void require_host_memory(const Layout& layout, int ranks_on_host, const std::string& advice);

/// For an arena's failed allocation in `space`. Call it in a catch block.
///
/// Throws  Failure(Exit::out_of_memory) with the layout's table and advice if `refusal` says that memory ran out
///         (another process took it meanwhile), else `refusal` itself.
[[noreturn]] void refuse_arena(const Layout& layout, Space space, const std::exception& refusal);

class Arena {
 public:
  explicit Arena(const Layout& layout);

  /// First element of a tensor; null for kAbsent.
  /// Throws  std::logic_error if Scalar is not the tensor's dtype.
  template <class Scalar>
  Scalar* data(TensorId id) const {
    if (id == kAbsent) return nullptr;
    const Tensor& tensor = (*layout_)[id];
    if (kDtype<Scalar> != tensor.dtype) throw std::logic_error("arena: '" + tensor.label + "' has another dtype");
    return static_cast<Scalar*>(raw(id));
  }

  /// All of a tensor; empty for kAbsent.
  template <class Number>
  kernels::Vector<Number, kernels::Device> array(TensorId id) const {
    const std::int64_t count = id == kAbsent ? 0 : (*layout_)[id].count;
    return kernels::Vector<Number, kernels::Device>(data<std::remove_const_t<Number>>(id), count);
  }

  /// First byte of a tensor.
  void* raw(TensorId id) const {
    const Tensor& tensor = (*layout_)[id];
    return (tensor.space == Space::host ? host_.base : device_.base) + tensor.offset;
  }

  const Layout& layout() const { return *layout_; }

  /// Keeps a GPU's memory until the process ends: for a rank that leaves others that may have it mapped
  /// (parallel/collectives/copy_engine.hpp).
  void keep_until_exit();

 private:
  template <class MemorySpace>
  struct Block {
    using Bytes = Kokkos::View<unsigned char*, MemorySpace>;
    Bytes bytes;
    unsigned char* base = nullptr;  // first byte on a multiple of the layout's alignment

    Block(const Layout& layout, Space space, const char* label);
  };

  const Layout* layout_;
  Block<kernels::Device::memory_space> device_;
  Block<std::conditional_t<kernels::kIsHost<kernels::Device>, Kokkos::HostSpace, kernels::PinnedSpace>> host_;
};

}  // namespace tessera::memory
