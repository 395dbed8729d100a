/// The corpus of a job, opened and checked by all ranks together.
#pragma once

#include <functional>
#include <string>

#include "config/settings.hpp"
#include "data/corpus.hpp"
#include "io/console.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

/// Opens data.path on every rank and checks every token once per host: those of its ranks that have the same path take
/// turns, a piece each, in file order. `console` shows how far that is.
/// Throws  parallel::AgreedError: what Corpus::open refuses, of a file's tokens the first in file order;
///         Exit::stopped as soon as `stop_reason` of any rank is not "" while tokens are left to be checked. Every rank
///         asks it after each data::kReported tokens.
data::Corpus open_corpus(parallel::World& world, const config::Settings& settings,
                         const std::function<std::string()>& stop_reason, io::Console& console);

}  // namespace tessera::jobs
