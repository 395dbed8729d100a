/// What an OpenBLAS says of itself, be it loaded by the dynamic linker or part of the program.
#pragma once

#include <dlfcn.h>

#include <string>

extern "C" {
[[gnu::weak]] int openblas_get_parallel();
[[gnu::weak]] char* openblas_get_config();
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

inline std::string description() {
  auto* const config = find(openblas_get_config, "openblas_get_config");
  return config != nullptr ? config() : "not OpenBLAS";
}

}  // namespace tessera::kernels::openblas
