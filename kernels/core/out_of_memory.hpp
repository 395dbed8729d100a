/// Whether an error's text says that memory has run out: Kokkos, CUDA's libraries and NCCL report it as text only.
#pragma once

#include <string_view>

namespace tessera {

inline bool tells_of_no_memory(std::string_view text) {
  for (const std::string_view words : {"failed to allocate", "out of memory", "ALLOC_FAILED", "Failed to malloc",
                                       "Failed to CUDA "}) {  // the last: NCCL
    if (text.find(words) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace tessera
