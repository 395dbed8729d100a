/// The memory behind a layout: one allocation per memory space, handed out as unmanaged pointers. The host's is pinned
/// if Exec is a GPU.
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

/// Bytes of memory that this process may still take: the least of what the system has available, what its control
/// groups' limits leave, and RLIMIT_AS. With overcommit, malloc succeeds and the process is killed later, hence this
/// check. `root` is for tests.
std::int64_t available_host_bytes(const std::filesystem::path& root = "/");

/// Checks that `ranks_on_host` arenas fit into the host's memory.
///
/// Throws  Failure(Exit::out_of_memory) with the layout's table and `advice`, which says what would fit.
void require_host_memory(const Layout& layout, int ranks_on_host, const std::string& advice);

/// Throws what an arena throws whose memory in `space` could not be allocated. Call it in a catch block.
///
/// Throws  Failure(Exit::out_of_memory) with the layout's table and what needs less there, if `refusal` says that memory
///         ran out (another process took it meanwhile), else `refusal` itself.
[[noreturn]] void refuse_arena(const Layout& layout, Space space, const std::exception& refusal);

template <class Exec>
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

  /// First byte of a tensor.
  void* raw(TensorId id) const {
    const Tensor& tensor = (*layout_)[id];
    return (tensor.space == Space::host ? host_.base : device_.base) + tensor.offset;
  }

  const Layout& layout() const { return *layout_; }

  /// The memory of a GPU then outlives this, until the process ends: for a rank that leaves the others, which may have it
  /// mapped (parallel/copy_engine.hpp).
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
  Block<typename Exec::memory_space> device_;
  Block<std::conditional_t<kernels::kIsHost<Exec>, Kokkos::HostSpace, kernels::PinnedSpace>> host_;
};

}  // namespace tessera::memory
