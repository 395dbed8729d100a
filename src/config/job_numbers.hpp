/// Slurm's numbers in job.directory and job.output: %j of the job, %A of its array, %a of the job in the array.
///
/// They are filled in when a deck is read inside a Slurm job. Elsewhere the placeholders stay, so that a deck can be
/// checked before it is submitted; a run with placeholders left is refused.
#pragma once

#include <string>

#include "config/settings.hpp"

namespace tessera::config {

/// The path with the numbers that this process's environment has filled in.
std::string with_job_numbers(const std::string& path);

/// Throws  Failure(Exit::usage) if a placeholder is left in a path.
void require_job_numbers(const Job& job);

}  // namespace tessera::config
