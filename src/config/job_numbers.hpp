/// Slurm's numbers in job.directory and job.output: %j of the job, %A of its array, %a of the job in the array.
///
/// They are put in when a deck is read inside of such a job. Elsewhere the words stay, so that a deck can be checked
/// before it is submitted; a run without the numbers is refused.
#pragma once

#include <string>

#include "config/settings.hpp"

namespace tessera::config {

/// The path with those numbers in it that this process's environment has.
std::string with_job_numbers(const std::string& path);

/// Throws  Failure(Exit::usage) if a path still wants a number.
void require_job_numbers(const Job& job);

}  // namespace tessera::config
