/// What exceptions mean to the ranks of a job, and to main. How all ranks fail together: parallel::World::agree.
#pragma once

#include <exception>
#include <string>

#include "errors.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

/// What an exception means: its exit code and message.
Failure failure_of(const std::exception& caught);

/// The same for an exception caught on this rank: exit code 7 if the rank's GPU is lost, whatever the message says.
Failure failure_of(const parallel::World& world, const std::exception& caught);

/// The same in parallel's terms, for World.
parallel::Departure departure_of(const parallel::World& world, const std::exception& caught);

/// What the first rank says that says something: the same on every rank, "" if none does. Collective.
std::string first_word(const parallel::World& world, const std::string& mine);

/// Throws AgreedError (exit 6) unless `mine` is the same on every rank; `what` follows "rank N on HOST" in its message.
/// Collective.
void require_same(parallel::World& world, const std::string& mine, const std::string& what);

}  // namespace tessera::jobs
