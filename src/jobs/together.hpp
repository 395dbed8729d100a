/// How the ranks of a job fail: all together, with one message, or one by one, watched.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "errors.hpp"
#include "io/checkpoint.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

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

}  // namespace tessera::jobs
