/// The laboratory's kinds of jobs, and its keys and rules.
#pragma once

#include <memory>
#include <vector>

#include "config/extension.hpp"
#include "config/job_traits.hpp"
#include "config/settings.hpp"

namespace tessera::lab {

// Values of job.kind, beyond the product's.
inline constexpr config::JobKind kBenchStep{100}, kBenchAttention{101}, kBenchKernels{102}, kBenchComm{103},
    kBenchStrategies{104}, kBenchDecode{105}, kBenchGenerate{106}, kBenchAccumulation{107}, kExperiment{108};

/// What the laboratory adds to decks (lab_extension.cpp).
config::Extension lab_extension();

/// [bench] and [experiment] (lab_keys.cpp). `jobs` are the laboratory's.
std::vector<config::Key> all_lab_keys(const std::vector<config::JobTraits>& jobs);

/// Reads the tables of [experiment] that are no keys, product, rows and when_quick (experiment_reader.cpp).
std::shared_ptr<config::RowTables> make_tables();

/// Renamed keys of [bench] (old_keys.cpp).
std::vector<config::RenamedKeys> old_keys();

/// Faults of [bench] and [experiment] in any deck (lab_keys.cpp).
void check(const config::Settings& settings, config::Rules& rules);

/// The context that bench.generate needs memory for: the prompt, two tokens, the warm-up and the repeats.
config::SetUp generation_set_up(const config::Settings& deck);

}  // namespace tessera::lab
