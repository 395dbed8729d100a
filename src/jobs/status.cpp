#include "jobs/status.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <fstream>

#include "jobs/owner.hpp"

namespace tessera::jobs {

void Status::write(const std::string& state, const std::string& progress) {
  written_ = std::chrono::steady_clock::now();
  const std::string job = slurm_job([](const char* name) { return std::getenv(name); });
  const std::filesystem::path unfinished = path_.string() + ".tmp";
  std::ofstream file(unfinished);
  file << fmt::format("{:<9} {}  at {:%H:%M:%S}{}\n", state, progress, fmt::localtime(std::time(nullptr)),
                      job.empty() ? "" : "  job " + job);
  file.close();
  std::error_code lost;
  if (file) std::filesystem::rename(unfinished, path_, lost);
  if (!file || lost) std::filesystem::remove(unfinished, lost);
}

bool Status::is_due() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - written_).count() >= kEvery_s;
}

}  // namespace tessera::jobs
