#include "jobs/directory.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <thread>
#include <vector>

#include "config/deck.hpp"  // row_folder
#include "config/job_traits.hpp"
#include "io/answer.hpp"
#include "io/checkpoint.hpp"
#include "io/files.hpp"
#include "io/trace.hpp"  // kRunFormat
#include "jobs/owner.hpp"
#include "kernels/core/events.hpp"

namespace tessera::jobs {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLockName = ".lock";
constexpr const char* kTrace = "run.h5";
constexpr const char* kUnfinishedTrace = "run.h5.tmp";
constexpr const char* kStatus = "status";

bool holds_something(const fs::path& directory) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().filename() != kLockName && entry.path().filename() != Owner::kName) return true;
  }
  return false;
}

/// Deletes a file or a folder with all that is in it; nothing if there is none.
void remove_whole(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    throw Failure(Exit::files,
                  "{}: cannot be deleted: {}; delete it yourself, or use another directory (job.directory=...)",
                  path.string(), error.message());
  }
}

/// What an HDF5 file says that wrote it; "" if it does not, or cannot be opened.
std::string format_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  try {
    return io::h5::File::open(path).format();
  } catch (const Failure&) {  // no HDF5 file
    return "";
  }
}

bool holds_experiment(const fs::path& directory) { return format_of(directory / kExperimentFile) == kExperimentFormat; }

/// Refuses to delete a file of that name which this program has not written.
void require_own(const fs::path& path, std::string_view format) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error)) || format_of(path) == format) return;
  throw Failure(Exit::files,
                "{} is not the {} that job.overwrite may replace: move it away, or use another job.directory",
                path.string(), format);
}

Failure unfit(const fs::path& folder, const std::string& why) {
  return Failure(Exit::files, "{}: cannot be created or written: {}; name a directory that can (job.directory=...)",
                 folder.string(), why);
}

/// The same of a run's status, which the run replaces.
void require_own_status(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return;
  std::string state;
  if (fs::is_regular_file(path, error)) std::ifstream(path) >> state;
  for (const std::string_view own : {"running", "stopped", "finished", "failed"}) {
    if (state == own) return;
  }
  throw Failure(Exit::files, "{} is not the status of a run: move it away, or use another job.directory",
                path.string());
}

/// Whether a job writes a file of that name into its directory.
bool is_of_a_job(const std::string& name) {
  if (name == kTrace || name == kUnfinishedTrace || name == Owner::kName) return true;
  for (std::string result : {"bench.h5", "attention.h5", "model.h5", kStatus}) {
    if (name == result || name.starts_with(result + ".tmp") || name.starts_with(result + ".part")) return true;
  }
  return false;
}

void clear_checkpoints(const fs::path& directory, const Note& note) {
  for (const fs::path& kept : io::remove_checkpoints(directory)) {
    note(fmt::format("{} was not written by this program, and stays\n", kept.string()));
  }
}

/// Deletes an experiment's file and the results of the rows that it names: other files there are the user's.
void clear_experiment(const fs::path& directory, const Note& note) {
  if (!holds_experiment(directory)) return;
  const fs::path path = directory / kExperimentFile;
  std::vector<std::string> names;
  std::vector<std::int64_t> numbers;
  {
    const io::h5::File file = io::h5::File::open(path);
    names = file.dataset("name").strings();
    numbers = file.dataset("row").values<std::int64_t>();
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    clear_row(directory / "rows" / config::row_folder(numbers[i], names[i]), note);
  }
  std::error_code ignored;
  if (!fs::is_symlink(directory / "rows", ignored)) fs::remove(directory / "rows", ignored);  // if it is empty
  remove_whole(path);
}

}  // namespace

void clear_row(const fs::path& folder, const Note& note) {
  std::vector<fs::path> results;
  std::error_code error;
  if (fs::is_symlink(folder, error)) {
    throw Failure(Exit::files,
                  "{} is a link: its target may belong to another run and is not deleted. Move the link away, or use "
                  "another directory (job.directory=...)",
                  folder.string());
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (is_of_a_job(entry.path().filename())) results.push_back(entry.path());
  }
  clear_checkpoints(folder, note);
  for (const fs::path& result : results) remove_whole(result);
  if (fs::is_directory(fs::symlink_status(folder, error)) && !holds_something(folder)) remove_whole(folder);
}

void require_new_directory(const config::Job& job) {
  std::error_code error;
  if (fs::exists(job.directory, error) && !fs::is_directory(job.directory, error)) {
    throw Failure(Exit::files, "{}: job.directory is a file; name another directory", job.directory);
  }
  if (job.overwrite) {
    io::require_own_checkpoints(job.directory);
    require_own_status(fs::path(job.directory) / kStatus);
  }
  if (job.overwrite || !holds_something(job.directory)) return;
  if (holds_experiment(job.directory)) {
    throw Failure(Exit::files,
                  "{} holds an experiment. Continue after its finished rows (--resume auto), use another directory "
                  "(job.directory=...), or delete its experiment.h5 and the rows that it names (job.overwrite=true)",
                  job.directory);
  }
  throw Failure(
      Exit::files,
      io::newest_checkpoint(job.directory)
          ? fmt::format("{} holds a run. Resume it (--resume auto), use another directory (job.directory=...), or "
                        "delete its run.h5 and checkpoints (job.overwrite=true)",
                        job.directory)
          : fmt::format("{} is not empty. Use another directory (job.directory=...), or run in it "
                        "(job.overwrite=true): that deletes its run.h5 and checkpoints, if any, and nothing else",
                        job.directory));
}

RunDirectory::RunDirectory(const Context& context, bool may_exist, const Note& note)
    : path_(context.settings().job.directory),
      is_experiment_(config::traits_of(context.settings().job.kind).has_rows()) {
  context.world.agree_on_root([&] {
    may_exist ? require_own_status(path_ / kStatus) : require_new_directory(context.settings().job);
    Owner(path_).require_free(note);
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) throw unfit(path_, error.message());
    lock(path_, note);
    const fs::path checkpoints = io::checkpoints_in(path_);
    if (fs::is_symlink(checkpoints, error) && fs::is_directory(checkpoints, error)) lock(checkpoints, note);
    if (!may_exist) require_new_directory(context.settings().job);  // again: that run may have written files
  });
  if (context.world.local_size() < context.world.size()) require_shared(context.world);
}

void RunDirectory::require_shared(parallel::World& world) const {
  std::string token;
  world.agree_on_root([&] {
    token = fmt::format("{}\n", std::chrono::system_clock::now().time_since_epoch().count());
    const bool is_written = ::ftruncate(locks_.front(), 0) == 0 &&
                            ::pwrite(locks_.front(), token.data(), token.size(), 0) == std::ssize(token) &&
                            ::fsync(locks_.front()) == 0;
    if (!is_written) throw unfit(path_ / kLockName, std::strerror(errno));
  });
  token = world.broadcast(token);
  world.agree([&] {
    if (world.local_rank() != 0) return;
    const double until_s = events::now_s() + kLockPatience_s;  // caches of a network's file system
    const auto here = [&] {
      std::ifstream file(path_ / kLockName);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    for (std::string found = here(); found != token; found = here()) {
      if (events::now_s() > until_s) {
        throw Failure(Exit::files,
                      "{}: this host ({}) does not see what rank 0 writes there: use a directory that all hosts share "
                      "(job.directory=...)",
                      path_.string(), world.places()[static_cast<std::size_t>(world.rank())].host);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
}

void RunDirectory::lock(const fs::path& folder, const Note& note) {
  const int lock = open((folder / kLockName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock < 0) throw unfit(folder, std::strerror(errno));
  locks_.push_back(lock);
  const double until_s = events::now_s() + kLockPatience_s;
  for (bool has_waited = false; flock(lock, LOCK_EX | LOCK_NB) != 0; has_waited = true) {
    if (errno != EWOULDBLOCK) {
      return note(
          fmt::format("warning    {}: this file system does not lock ({}), so nothing keeps a second run out: mount it "
                      "with locks (Lustre: -o flock), or see to it that no other run works there\n",
                      folder.string(), std::strerror(errno)));
    }
    if (!has_waited) {
      note(fmt::format("{}: another run is working in this directory; waiting {:.0f} s for its end\n", folder.string(),
                       kLockPatience_s));
    }
    if (events::now_s() > until_s) {
      throw Failure(Exit::files,
                    "{}: another run is working in this directory; wait for it, or use another (job.directory=...)",
                    folder.string());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

RunDirectory::~RunDirectory() {
  for (const int lock : locks_) close(lock);
}

bool RunDirectory::is_in_place() const {
  if (locks_.empty()) return true;
  struct stat held {
  }, there{};
  return ::stat((path_ / kLockName).c_str(), &there) == 0 && ::fstat(locks_.front(), &held) == 0 &&
         held.st_ino == there.st_ino && held.st_dev == there.st_dev;
}

void RunDirectory::require_in_place() const {
  if (is_in_place()) return;
  std::error_code error;
  const bool is_there = fs::exists(path_ / kLockName, error);
  throw Failure(Exit::files,
                "{}: was deleted, moved or replaced while the run wrote there (its {} is {}). Continue from where the "
                "checkpoints are now (--resume PATH), or start anew",
                path_.string(), kLockName, is_there ? "another" : "gone");
}

void RunDirectory::clear(const Note& note) const {
  if (is_experiment_) require_own(path_ / kExperimentFile, kExperimentFormat);
  require_own(path_ / kTrace, io::kRunFormat);
  clear_checkpoints(path_, note);  // first: the trace has the id of the run that wrote them
  remove_whole(path_ / kTrace);
  remove_whole(path_ / kUnfinishedTrace);
  clear_experiment(path_, note);
}

void RunDirectory::write_status(const std::string& state, const std::string& progress) {
  status_written_ = std::chrono::steady_clock::now();
  if (!is_in_place()) return;
  const std::string job = slurm_job([](const char* name) { return std::getenv(name); });
  const fs::path unfinished = path_ / fmt::format("{}.tmp", kStatus);
  std::ofstream file(unfinished);
  file << fmt::format("{:<9} {}  at {:%H:%M:%S}{}\n", state, progress, fmt::localtime(std::time(nullptr)),
                      job.empty() ? "" : "  job " + job);
  file.close();
  std::error_code lost;
  if (file) fs::rename(unfinished, path_ / kStatus, lost);
  if (!file || lost) fs::remove(unfinished, lost);
}

bool RunDirectory::is_status_due() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - status_written_).count() >= kStatusEvery_s;
}

fs::path checkpoint_folder(const std::string& path) {
  std::error_code error;  // a dangling link counts, too: reading it gives the precise error
  if (fs::exists(fs::symlink_status(fs::path(path) / "index.h5", error))) return path;
  if (const auto newest = io::newest_checkpoint(path)) return *newest;
  throw Failure(Exit::files,
                "{}: no checkpoint here; name a run's directory or one of its checkpoints/step_... folders", path);
}

namespace {

/// Where a file is written before it is renamed to `path`. Another job may write the same file.
std::string unfinished_path(const std::string& path) { return fmt::format("{}.tmp{}", path, getpid()); }

void require_no_result(const config::Job& job, const fs::path& path) {
  std::error_code error;
  if (job.overwrite || !fs::exists(path, error)) return;
  throw Failure(Exit::files, "{} exists: name another job.output, or allow the job to replace it (job.overwrite=true)",
                path.string());
}

/// Refuses a path at which no file can be made. Makes one beside it and deletes it: permissions do not tell on every
/// file system.
void require_writable(const fs::path& path, const char* key) {
  std::error_code error;
  std::string why = fs::is_directory(path, error) ? "it is a folder" : "";
  const std::string probe = unfinished_path(path.string());
  const int file = why.empty() ? open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
  if (file >= 0) {
    close(file);
    fs::remove(probe, error);
    return;
  }
  if (why.empty()) why = std::strerror(errno);
  throw Failure(Exit::files, "{}: the result cannot be written there: {}. Set {} to a path that can be written.",
                path.string(), why, key);
}

}  // namespace

std::string result_path(const Context& context, const std::string& name) {
  const config::Job& job = context.settings().job;
  const bool is_named = !job.output.empty();
  const fs::path path = is_named ? fs::path(job.output) : fs::path(job.directory) / name;
  const char* const key = is_named ? "job.output" : "job.directory";
  std::error_code different;
  for (const fs::path& read : {fs::path(job.input), context.deck.path}) {
    if (!read.empty() && fs::equivalent(read, path, different)) {
      throw Failure(Exit::usage, "{}: the job would replace what it reads: name another job.output", path.string());
    }
  }
  require_no_result(job, path);
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) {
    throw Failure(Exit::files, "{}: cannot be created: {}; choose another {}", path.parent_path().string(),
                  error.message(), key);
  }
  require_writable(path, key);
  return path.string();
}

void replace_file(const std::string& path, const std::function<void(io::h5::File&)>& fill) {
  const std::string unfinished = unfinished_path(path);
  try {
    io::h5::File file = io::h5::File::create(unfinished);
    fill(file);
    file.close();
    io::sync_file(unfinished);
    io::publish(unfinished, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove(unfinished, ignored);
    throw;
  }
}

std::string part_path(const std::string& path) { return fmt::format("{}.part{}", path, getpid()); }

void publish_part(const Context& context, const std::string& path) {
  require_no_result(context.settings().job, path);
  io::publish(part_path(path), path);
  io::answer(fmt::format("result in {}\n", path));
}

void write_result(const Context& context, const std::string& path, const std::function<void(io::h5::File&)>& fill) {
  require_no_result(context.settings().job, path);
  replace_file(path, fill);
  io::answer(fmt::format("result in {}\n", path));
}

}  // namespace tessera::jobs
