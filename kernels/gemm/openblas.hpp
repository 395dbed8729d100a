/// What an OpenBLAS says of itself, be it loaded by the dynamic linker or part of the program.
#pragma once

#include <dlfcn.h>

#include <string>
#include <vector>

extern "C" {
[[gnu::weak]] int openblas_get_parallel();
[[gnu::weak]] char* openblas_get_config();
[[gnu::weak]] void* blas_memory_alloc(int);
[[gnu::weak]] void blas_memory_free(void*);
}

namespace tessera::kernels::openblas {

/// The function of that name: `linked`, or the one that was loaded; null if the BLAS is another.
template <class Function>
Function* find(Function* linked, const char* name) {
  return linked != nullptr ? linked : reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

/// Whether several threads may call the BLAS at the same time.
inline bool is_safe_for_threads() {
  static const bool is_safe = [] {
    auto* const parallel = find(openblas_get_parallel, "openblas_get_parallel");
    return parallel == nullptr || parallel() != 0;
  }();
  return is_safe;
}

/// Makes it map now, and keep, the buffers of so many threads that multiply at the same time. Another BLAS has none.
inline void map_buffers(int threads) {
  auto* const take = find(blas_memory_alloc, "blas_memory_alloc");
  auto* const give_back = find(blas_memory_free, "blas_memory_free");
  if (take == nullptr || give_back == nullptr) return;
  std::vector<void*> buffers(threads);
  for (void*& buffer : buffers) buffer = take(0);
  for (void* const buffer : buffers) give_back(buffer);
}

inline std::string description() {
  auto* const config = find(openblas_get_config, "openblas_get_config");
  return config != nullptr ? config() : "not OpenBLAS";
}

}  // namespace tessera::kernels::openblas
