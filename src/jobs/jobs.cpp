#include "jobs/jobs.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "io/answer.hpp"
#include "kernels/core/device_info.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/tensor.hpp"
#include "memory/arena.hpp"
#include "parallel/device.hpp"
#include "parallel/errors.hpp"

namespace tessera::jobs {

namespace fs = std::filesystem;

Exit run_job(const Context& context) {
  if (context.resume && context.settings().job.kind != config::JobKind::train) {
    fail_together(context.world, Exit::usage,
                  "--resume continues a training run; this deck's job.kind is another (generate takes a checkpoint as "
                  "job.input)");
  }
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

Failure failure_of(const parallel::World& world, const std::exception& caught) {
  const auto* ours = dynamic_cast<const Failure*>(&caught);
  if (ours != nullptr && ours->code() == Exit::hang) return *ours;
  if (dynamic_cast<const parallel::LossError*>(&caught)) return Failure(Exit::hang, caught.what());
  if (const std::string lost = world.devices().empty() ? "" : parallel::device_fault(); !lost.empty()) {
    return Failure(Exit::hang, fmt::format("the GPU is lost: {} ({}); resume from the last checkpoint (--resume auto)",
                                           lost, caught.what()));
  }
  if (ours != nullptr) return *ours;
  if (dynamic_cast<const parallel::MemoryError*>(&caught)) return Failure(Exit::out_of_memory, caught.what());
  if (dynamic_cast<const parallel::EnvironmentError*>(&caught)) return Failure(Exit::environment, caught.what());
  const Exit code = exit_of(caught);
  const char* advice = code == Exit::out_of_memory ? ": an allocation failed; smaller batches or models need less" : "";
  return Failure(code, caught.what() + std::string(advice));
}

void leave_with(parallel::World& world, const std::exception& caught) {
  world.leave();  // first: asking for the cause may itself wait for the GPU
  const Failure failure = failure_of(world, caught);
  world.leave(parallel::Departure{static_cast<int>(failure.code()), failure.what()});
}

namespace {

/// Runs `work`; "" when it went well, else the failure as the other ranks are told.
std::string problem_of(const parallel::World& world, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& caught) {
    return told(failure_of(world, caught));
  }
  return "";
}

[[noreturn]] void fail_with(parallel::World& world, const std::string& problem, const std::string& where) {
  const Failure failure = failure_told(problem);
  fail_together(world, failure.code(), where + failure.what());
}

}  // namespace

void fail_together(parallel::World& world, Exit code, const std::string& message) {
  world.leave_together();
  throw CollectiveFailure(code, message);
}

void together(parallel::World& world, const std::function<void()>& work) {
  const std::vector<std::string> problems = world.all_gather(problem_of(world, work));
  std::string ranks, first;
  int failed = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (problems[rank].empty()) continue;
    if (failed++ == 0) first = problems[rank];
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  if (failed > 0) fail_with(world, first, failed == world.size() ? "" : fmt::format("rank {}: ", ranks));
}

void on_root(parallel::World& world, const std::function<void()>& work) {
  const std::string problem = world.broadcast(world.rank() == 0 ? problem_of(world, work) : "");
  if (!problem.empty()) fail_with(world, problem, "");
}

void require_same(parallel::World& world, const std::string& mine, const std::string& what) {
  const auto all = world.all_gather(mine);
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& text) { return text != all[0]; });
  if (other == all.end()) return;
  const auto rank = static_cast<std::size_t>(other - all.begin());
  const std::string host = world.all_gather(world.host())[rank];
  fail_together(world, Exit::files, fmt::format("rank {} on {} {}", rank, host, what));
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

void require_new_directory(const config::Job& job) {
  std::error_code error;
  if (fs::exists(job.directory, error) && !fs::is_directory(job.directory, error)) {
    throw Failure(Exit::files, fmt::format("{}: job.directory is a file; name another directory", job.directory));
  }
  if (job.overwrite || !holds_something(job.directory)) return;
  throw Failure(Exit::files,
                io::newest_checkpoint(job.directory)
                    ? fmt::format("{} holds a run. Resume it (--resume auto), use another directory "
                                  "(job.directory=...), or delete its run.h5 and checkpoints (job.overwrite=true)",
                                  job.directory)
                    : fmt::format("{} is not empty. Use another directory (job.directory=...), or run in it "
                                  "(job.overwrite=true): that deletes its run.h5 and checkpoints, if any, and nothing "
                                  "else",
                                  job.directory));
}

RunDirectory::RunDirectory(const Context& context, bool may_exist, const Note& note)
    : path_(context.settings().job.directory) {
  on_root(context.world, [&] {
    if (!may_exist) require_new_directory(context.settings().job);
    std::error_code error;
    fs::create_directories(path_, error);
    if (!error) lock_ = open((path_ / kLockName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (error || lock_ < 0) {
      throw Failure(Exit::files, fmt::format("{}: cannot be made or written: {}; name a directory that can be "
                                             "(job.directory=...)",
                                             path_.string(), error ? error.message() : std::strerror(errno)));
    }
    const auto is_taken = [&] { return flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; };
    if (!is_taken()) return;
    note(fmt::format("{}: another run is working in this directory; waiting {:.0f} s for its end\n", path_.string(),
                     kLockPatience_s));
    const double until_s = events::now_s() + kLockPatience_s;
    while (is_taken()) {
      if (events::now_s() > until_s) {
        throw Failure(Exit::files,
                      fmt::format("{}: another run is working in this directory; wait for it, or use another "
                                  "(job.directory=...)",
                                  path_.string()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (!may_exist) require_new_directory(context.settings().job);  // again: that run may have written meanwhile
  });
}

RunDirectory::~RunDirectory() {
  if (lock_ >= 0) close(lock_);
}

void RunDirectory::clear() const {
  std::error_code ignored;
  for (const char* name : {"checkpoints", "run.h5", "run.h5.tmp"}) fs::remove_all(path_ / name, ignored);
}

fs::path checkpoint_folder(const std::string& path) {
  std::error_code error;  // a link that leads nowhere has that name, too: reading it tells what is wrong with it
  if (fs::exists(fs::symlink_status(fs::path(path) / "index.h5", error))) return path;
  if (const auto newest = io::newest_checkpoint(path)) return *newest;
  throw Failure(Exit::files,
                fmt::format("{}: no checkpoint here; name a run's directory or one of its checkpoints/step_... "
                            "folders",
                            path));
}

std::string result_path(const Context& context, const std::string& name) {
  const config::Job& job = context.settings().job;
  const fs::path path = job.output.empty() ? fs::path(job.directory) / name : fs::path(job.output);
  std::error_code error;
  if (fs::exists(path, error) && !job.overwrite) {
    throw Failure(Exit::files, fmt::format("{} exists, and a job never overwrites: name another job.output, or set "
                                           "job.overwrite=true",
                                           path.string()));
  }
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) {
    throw Failure(Exit::files, fmt::format("{}: cannot be made: {}; choose another job.output",
                                           path.parent_path().string(), error.message()));
  }
  return path.string();
}

void write_result(const std::string& path, const std::function<void(io::h5::File&)>& fill) {
  const std::string unfinished = path + ".tmp";
  std::error_code error;
  try {
    io::h5::File file = io::h5::File::create(unfinished);
    fill(file);
    file.close();
    fs::rename(unfinished, path);
    io::answer(fmt::format("result in {}\n", path));
  } catch (const fs::filesystem_error& failure) {
    fs::remove(unfinished, error);
    throw Failure(Exit::files, fmt::format("{}: {}; choose another job.output", path, failure.code().message()));
  } catch (...) {
    fs::remove(unfinished, error);
    throw;
  }
}

namespace {
constexpr bool kComputesOnHost = kernels::kIsHost<kernels::Device>;
}

MemoryShare share_of_memory(parallel::World& world) {
  return {kComputesOnHost ? world.local_size() : world.ranks_on_device(), world.collectives().device_bytes()};
}

std::int64_t available_bytes(const MemoryShare& share) {
  const std::int64_t untaken =
      kComputesOnHost ? memory::available_host_bytes() : kernels::device_info<kernels::Device>().free_bytes;
  return untaken / share.ranks + share.held;
}

void require_memory(const memory::Layout& layout, const MemoryShare& share, const std::string& advice) {
  if (kComputesOnHost) return memory::require_host_memory(layout, share.ranks, advice);
  const std::int64_t available = available_bytes(share);
  if (layout.total_bytes() <= available) return;
  throw Failure(Exit::out_of_memory,
                fmt::format("this deck needs {} of memory on its {}, and {} are available{}\n{}{}",
                            memory::readable_bytes(layout.total_bytes()), kernels::device_info<kernels::Device>().name,
                            memory::readable_bytes(available),
                            share.ranks > 1 ? fmt::format(" to each of the {} ranks that share it", share.ranks) : "",
                            layout.table(), advice));
}

}  // namespace tessera::jobs
