#include "config/job_numbers.hpp"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "errors.hpp"

namespace tessera::config {
namespace {

struct Number {
  std::string_view word;
  const char* variable;
  std::string_view job;  // that has one
};
constexpr Number kNumbers[] = {{"%j", "SLURM_JOB_ID", "a job of Slurm"},
                               {"%A", "SLURM_ARRAY_JOB_ID", "a job of an array"},
                               {"%a", "SLURM_ARRAY_TASK_ID", "a job of an array"}};

}  // namespace

std::string with_job_numbers(const std::string& path) {
  std::string text = path;
  for (const Number& number : kNumbers) {
    const char* const value = std::getenv(number.variable);
    if (value == nullptr) continue;
    for (auto at = text.find(number.word); at != std::string::npos; at = text.find(number.word, at))
      text.replace(at, number.word.size(), value);
  }
  return text;
}

void require_job_numbers(const Job& job) {
  for (const auto& [key, path] : {std::pair{"job.directory", job.directory}, std::pair{"job.output", job.output}}) {
    for (const Number& number : kNumbers) {
      if (path.find(number.word) == std::string::npos) continue;
      throw Failure(Exit::usage,
                    "{} = {}: {} is a number of {}, and this is none ({} is not set). Submit it as one "
                    "(scripts/slurm/submit), or name another path",
                    key, path, number.word, number.job, number.variable);
    }
  }
}

}  // namespace tessera::config
