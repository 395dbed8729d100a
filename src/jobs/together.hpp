/// How the ranks of a job fail: together, with one message, or alone, under the watchdog.
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

/// An exception caught on this rank, with its exit code: 7 if the rank's GPU is lost, whatever the exception.
Failure failure_of(const parallel::World& world, const std::exception& caught);

/// Tells the watchdog that this rank leaves, and why. Call it where a job catches a fatal exception, before its objects
/// are destroyed: their destructors may wait for a lost rank or GPU.
void leave_with(parallel::World& world, const std::exception& caught);

/// Throws a CollectiveFailure. Waits for all ranks first, so that none takes another's exit for a loss.
[[noreturn]] void fail_together(parallel::World& world, Exit code, const std::string& message);

/// Runs `work` on every rank and waits for all. If any rank failed, every rank throws the same CollectiveFailure, which
/// names the failed ranks unless all failed.
void together(parallel::World& world, const std::function<void()>& work);

/// The same with `work` on rank 0 only.
void on_root(parallel::World& world, const std::function<void()>& work);

/// Throws a CollectiveFailure (exit 6) unless `mine` is the same on every rank; `what` follows "rank N on HOST" in its
/// message.
void require_same(parallel::World& world, const std::string& mine, const std::string& what);

/// Factor on parallel.timeout_s for waits on another rank's files.
inline constexpr double kPatience = 10;

/// The ranks in io's terms.
io::Peers peers_of(const parallel::World& world);

}  // namespace tessera::jobs
