/// What the limits of this process (ulimit) must allow before libraries start that do not survive them: below these,
/// Open MPI ends in its own start without advice or hangs, and OpenBLAS repeats an allocation that failed for ever.
#pragma once

namespace tessera::jobs {

/// Call before MPI starts; `has_launcher`: mpirun or srun started this process, so MPI starts no daemon from it.
///
/// Throws  Failure(Exit::out_of_memory) for too little address space or data, Failure(Exit::environment) for too few
///         open files or too small files; the message names the limit and the command that raises it.
void require_limits(bool has_launcher);

/// Makes a host's BLAS take its buffer now, while there is room, and counts it among what this process has taken. Call
/// it once Kokkos runs, before memory is compared with a plan.
///
/// Throws  Failure(Exit::out_of_memory) if there is no room for it.
void take_blas_buffer();

}  // namespace tessera::jobs
