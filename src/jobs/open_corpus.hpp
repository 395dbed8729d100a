/// The corpus of a job, opened and checked by all ranks together.
#pragma once

#include <functional>
#include <string>

#include "config/settings.hpp"
#include "data/corpus.hpp"
#include "io/console.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

/// Opens data.path on every rank and checks every token once per host: its ranks with the same path take turns, a piece
/// each, in file order. `console` shows the progress.
/// Throws  parallel::AgreedError: as Corpus::open, for the first bad token in file order; Exit::stopped if any rank's
///         `stop_reason`, called after every data::kReported tokens, is not "" while tokens remain unchecked.
data::Corpus open_corpus(parallel::World& world, const config::Settings& settings,
                         const std::function<std::string()>& stop_reason, io::Console& console);

}  // namespace tessera::jobs
