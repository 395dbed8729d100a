/// Checks this process's limits (ulimit) before libraries start that cannot cope with them: Open MPI would end without
/// advice or hang, and OpenBLAS would retry a failed allocation for ever.
#pragma once

namespace tessera::jobs {

/// Call before MPI starts; `has_launcher`: mpirun or srun started this process, so MPI starts no daemon from it.
///
/// Throws  Failure(Exit::out_of_memory) for too little address space or data, Failure(Exit::environment) for too few
///         open files or too small files; the message names the limit and the command that raises it.
void require_limits(bool has_launcher);

/// Makes a host's BLAS allocate its buffers now, one for each thread, so that they count as memory already taken. Call
/// it once Kokkos runs, before memory is compared with a plan.
///
/// Throws  Failure(Exit::out_of_memory) if there is no room for them.
void take_blas_buffer();

}  // namespace tessera::jobs
