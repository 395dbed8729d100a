/// Exit codes and messages of exceptions, for a job's ranks and for main. Common failure: parallel::World::agree.
#pragma once

#include <exception>
#include <string>

#include "errors.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

/// What an exception means: its exit code and message.
Failure failure_of(const std::exception& caught);

/// The same for an exception caught on this rank; exit code 7 if its GPU is lost, whatever the message says.
Failure failure_of(const parallel::World& world, const std::exception& caught);

/// The same in parallel's terms, for World.
parallel::Departure departure_of(const parallel::World& world, const std::exception& caught);

/// The text of the first rank whose text is not empty, on every rank; "" if there is none. Collective.
std::string first_word(const parallel::World& world, const std::string& mine);

/// Throws AgreedError (exit 6) unless `mine` is the same on every rank; `what` follows "rank N on HOST" in its message.
/// Collective.
void require_same(parallel::World& world, const std::string& mine, const std::string& what);

}  // namespace tessera::jobs
