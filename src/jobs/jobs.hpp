/// What a deck can ask for: one function per job.kind, one file each.
///
/// A job runs on every rank of the world and returns the program's exit code. A failure that every rank meets alike
/// is thrown as CollectiveFailure (rank 0 reports it, all finalise); any other exception ends the launch.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "config/deck.hpp"
#include "errors.hpp"
#include "io/checkpoint.hpp"
#include "io/h5.hpp"
#include "kernels/core/scalar.hpp"
#include "memory/layout.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

struct Context {
  const config::Deck& deck;
  std::optional<std::string> resume;  // "auto" or a folder
  std::string command;                // as typed
  parallel::World& world;

  const config::Settings& settings() const { return deck.settings; }
};

Exit run_job(const Context& context);  // chooses by job.kind

Exit train(const Context& context);
Exit generate(const Context& context);
Exit verify_attention(const Context& context);
Exit verify_model(const Context& context);
Exit bench_attention(const Context& context);
Exit bench_kernels(const Context& context);
Exit bench_step(const Context& context);

/// A failure that every rank throws together, with the same code and message.
class CollectiveFailure : public Failure {
 public:
  using Failure::Failure;
};

/// What was caught on this rank, with the exit code that it means here: 7 where the rank's GPU is lost, whatever the
/// words are.
Failure failure_of(const parallel::World& world, const std::exception& caught);

/// Where a job catches what ends it, while its objects live, whose destructors may wait for what is gone: this rank
/// leaves, and the watchdog knows why.
void leave_with(parallel::World& world, const std::exception& caught);

/// Throws a CollectiveFailure. Waits for all ranks first, so that none takes another's leaving for a loss.
[[noreturn]] void fail_together(parallel::World& world, Exit code, const std::string& message);

/// Runs `work` on every rank and waits for all; if any rank failed, every rank throws the same CollectiveFailure,
/// which names the ranks where not all failed.
void together(parallel::World& world, const std::function<void()>& work);

/// The same with work for rank 0 only.
void on_root(parallel::World& world, const std::function<void()>& work);

/// Throws a CollectiveFailure (exit 6) unless `mine` is the same on every rank; `what` follows "rank N on HOST" there.
void require_same(parallel::World& world, const std::string& mine, const std::string& what);

/// How many times parallel.timeout_s a rank may wait for another's files.
inline constexpr double kPatience = 10;

/// The ranks as io wants them.
io::Peers peers_of(const parallel::World& world);

/// Refuses (exit 6) a job.directory that a new run may not have: one that is a file, or is not empty unless the job
/// overwrites. Touches nothing. For rank 0.
void require_new_directory(const config::Job& job);

/// Takes lines for people, on rank 0.
using Note = std::function<void(const std::string&)>;

/// A run's directory, held by this run until it ends, however it ends: rank 0 keeps an advisory lock on
/// <directory>/.lock.
class RunDirectory {
 public:
  /// Refuses (exit 6), unless `may_exist`, what require_new_directory does; makes the directory where it is missing.
  /// Another run that works in it is waited for, kLockPatience_s at most, with a note: ranks whose mpirun was killed
  /// live on for a moment. Then it is refused (exit 6). Rank 0 works, every rank waits.
  RunDirectory(const Context& context, bool may_exist, const Note& note);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  /// Deletes what a run leaves there, and nothing else (job.overwrite). For rank 0.
  void clear() const;

  static constexpr double kLockPatience_s = 10;

 private:
  std::filesystem::path path_;
  int lock_ = -1;  // file descriptor
};

/// A checkpoint's folder as a person names it: the folder itself, or a run's directory, whose newest one is taken.
std::filesystem::path checkpoint_folder(const std::string& path);

/// Where a job's result goes: job.output, or `name` in the job's directory, which is made. Refuses (exit 6) a file that
/// exists unless job.overwrite: ask before the work is done.
std::string result_path(const Context& context, const std::string& name);

/// Writes a result beside `path` and renames it there: whole or not at all.
void write_result(const std::string& path, const std::function<void(io::h5::File&)>& fill);

/// A rank's part in the memory where it computes: its host's, or its GPU's.
struct MemoryShare {
  int ranks = 1;          // that take theirs there, this one included
  std::int64_t held = 0;  // bytes that a plan counts and this rank has taken already: its collectives' buffers
};
MemoryShare share_of_memory(parallel::World& world);

/// Bytes that a plan may have there: what nobody has taken, split among the ranks, and what this rank holds.
std::int64_t available_bytes(const MemoryShare& share = {});

/// Throws Failure(Exit::out_of_memory) with the layout's table where a layout for each of the ranks does not fit there.
/// `advice` says what would fit.
void require_memory(const memory::Layout& layout, const MemoryShare& share, const std::string& advice);

/// Calls work.template operator()<Scalar>() with the storage type of a dtype of the deck.
template <class Work>
void with_scalar(Dtype dtype, const Work& work) {
  switch (dtype) {
    case Dtype::bf16: return work.template operator()<bfloat16>();
    case Dtype::fp16: return work.template operator()<float16>();
    default: return work.template operator()<float>();
  }
}

}  // namespace tessera::jobs
