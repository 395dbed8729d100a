#include "jobs/jobs.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace tessera::jobs {

namespace fs = std::filesystem;

Exit run_job(const Context& context) {
  switch (context.settings().job.kind) {
    case config::JobKind::train: return train(context);
    case config::JobKind::generate: return generate(context);
    case config::JobKind::verify_attention: return verify_attention(context);
    case config::JobKind::verify_model: return verify_model(context);
    case config::JobKind::bench_attention: return bench_attention(context);
    case config::JobKind::bench_kernels: return bench_kernels(context);
    case config::JobKind::bench_step: return bench_step(context);
  }
  throw std::logic_error("run_job: a job.kind without a job");
}

void together(const parallel::World& world, const std::function<void()>& work) {
  std::string mine = "0";  // exit code, then the message
  try {
    work();
  } catch (const Failure& failure) {
    mine = fmt::format("{} {}", static_cast<int>(failure.code()), failure.what());
  } catch (const std::bad_alloc&) {
    mine = fmt::format("{} out of memory", static_cast<int>(Exit::out_of_memory));
  } catch (const std::exception& failure) {
    mine = fmt::format("{} {}", static_cast<int>(Exit::environment), failure.what());
  }
  const std::vector<std::string> all = world.all_gather(mine);
  std::string ranks, first;
  int failed = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (all[rank] == "0") continue;
    if (failed++ == 0) first = all[rank];
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  if (failed == 0) return;
  const std::size_t space = first.find(' ');
  const std::string where = failed == world.size() ? "" : fmt::format("rank {}: ", ranks);
  throw CollectiveFailure(static_cast<Exit>(std::stoi(first.substr(0, space))), where + first.substr(space + 1));
}

void on_root(const parallel::World& world, const std::function<void()>& work) {
  std::string problem = "0";
  if (world.rank() == 0) {
    try {
      work();
    } catch (const Failure& failure) {
      problem = fmt::format("{} {}", static_cast<int>(failure.code()), failure.what());
    } catch (const std::exception& failure) {
      problem = fmt::format("{} {}", static_cast<int>(Exit::files), failure.what());
    }
  }
  problem = world.broadcast(problem);
  if (problem == "0") return;
  const std::size_t space = problem.find(' ');
  throw CollectiveFailure(static_cast<Exit>(std::stoi(problem.substr(0, space))), problem.substr(space + 1));
}

io::Peers peers_of(const parallel::World& world) {
  return {world.rank(), world.size(), [&world](const std::string& mine) { return world.all_gather(mine); }};
}

namespace {

constexpr const char* kLockName = ".lock";

bool holds_something(const fs::path& directory) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().filename() != kLockName) return true;
  }
  return false;
}

}  // namespace

RunDirectory::RunDirectory(const Context& context, bool may_exist) {
  const config::Job& job = context.settings().job;
  on_root(context.world, [&] {
    const fs::path directory = job.directory;
    std::error_code error;
    if (fs::exists(directory, error) && !fs::is_directory(directory, error)) {
      throw Failure(Exit::files, fmt::format("{}: job.directory is a file; name another directory", job.directory));
    }
    if (!may_exist && !job.overwrite && holds_something(directory)) {
      throw Failure(Exit::files,
                    fmt::format("{} is not empty, and a run never overwrites. Resume it (--resume auto), use another "
                                "directory (job.directory=...), or give it up (job.overwrite=true)", job.directory));
    }
    fs::create_directories(directory, error);
    if (!error) lock_ = open((directory / kLockName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (error || lock_ < 0) {
      throw Failure(Exit::files, fmt::format("{}: cannot be made or written: {}; name a directory that can be "
                                             "(job.directory=...)", job.directory, error ? error.message() : std::strerror(errno)));
    }
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw Failure(Exit::files, fmt::format("{}: another run is working in this directory; wait for it, or use another "
                                             "(job.directory=...)", job.directory));
    }
    if (!may_exist) {  // job.overwrite: only what a run writes goes; a directory named by mistake keeps the rest
      for (const char* name : {"checkpoints", "run.h5", "run.h5.tmp"}) fs::remove_all(directory / name, error);
    }
  });
}

RunDirectory::~RunDirectory() {
  if (lock_ >= 0) close(lock_);
}

std::string output_path(const Context& context, const std::string& name) {
  const config::Job& job = context.settings().job;
  const fs::path path = job.output.empty() ? fs::path(job.directory) / name : fs::path(job.output);
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) {
    throw Failure(Exit::files, fmt::format("{}: cannot be made: {}; choose another job.output", path.parent_path().string(),
                                           error.message()));
  }
  return path.string();
}

}  // namespace tessera::jobs
