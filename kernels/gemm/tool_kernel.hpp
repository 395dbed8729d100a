/// Reports a library call to Kokkos Tools as a kernel, so that profiles contain the products too.
///
/// The label is tessera::gemm::<letters>[<library>], letters: n or t for op(a), then for op(b); or the caller's, with
/// the library.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <string>

#include "kernels/gemm/operation.hpp"

namespace tessera::kernels::detail {

constexpr const char* letters_of(Op op_a, Op op_b) {
  constexpr const char* letters[] = {"nn", "nt", "tn", "tt"};
  return letters[2 * static_cast<int>(op_a) + static_cast<int>(op_b)];
}

/// The label of a product that is nothing else, such as a part of attention.
constexpr const char* product_label(Op op_a, Op op_b) {
  constexpr const char* labels[] = {"tessera::gemm::nn", "tessera::gemm::nt", "tessera::gemm::tn", "tessera::gemm::tt"};
  return labels[2 * static_cast<int>(op_a) + static_cast<int>(op_b)];
}

class ToolKernel {
 public:
  template <class Exec>
  ToolKernel(const Exec& exec, const char* label, const char* library)
      : is_watched_(Kokkos::Tools::profileLibraryLoaded()) {
    if (!is_watched_) return;
    const std::string text = std::string(label) + "[" + library + "]";
    Kokkos::Tools::beginParallelFor(text, Kokkos::Tools::Experimental::device_id(exec), &id_);
  }
  ~ToolKernel() {
    if (is_watched_) Kokkos::Tools::endParallelFor(id_);
  }
  ToolKernel(const ToolKernel&) = delete;
  ToolKernel& operator=(const ToolKernel&) = delete;

 private:
  bool is_watched_;
  std::uint64_t id_ = 0;
};

}  // namespace tessera::kernels::detail
