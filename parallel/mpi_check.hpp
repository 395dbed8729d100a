/// MPI_CHECK(call): throws with the call and MPI's own words. Only for the files of parallel/ that call MPI.
#pragma once

#include <mpi.h>

#include <stdexcept>
#include <string>

namespace tessera::parallel::detail {

inline void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(std::string(call) + ": " + std::string(text, length));
}

}  // namespace tessera::parallel::detail

#define MPI_CHECK(call) ::tessera::parallel::detail::mpi_check(call, #call)
