/// MPI_CHECK(call): throws LossError with the call and MPI's message, since an MPI call that fails in mid-run means a
/// lost rank or a broken network. Only for the files of parallel/ that call MPI.
#pragma once

#include <mpi.h>

#include <string_view>

#include "parallel/errors.hpp"

namespace tessera::parallel::detail {

inline void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw LossError("{}: {}: a rank or the network is lost{}", call, std::string_view(text, length), kAfterLoss);
}

}  // namespace tessera::parallel::detail

#define MPI_CHECK(call) ::tessera::parallel::detail::mpi_check(call, #call)
