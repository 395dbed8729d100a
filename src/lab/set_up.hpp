/// What --plan shows of the bench jobs whose memory is not that of the deck's optimizer steps.
#pragma once

#include "config/job_traits.hpp"
#include "config/settings.hpp"

namespace tessera::lab {

/// Of bench.step: steps, or by bench.phase forward passes alone.
config::SetUp step_set_up(const config::Settings& deck);

/// Of bench.generate: a context for the prompt and the tokens that continue it, two of them before the warm-up
/// (bench_generate.cpp).
config::SetUp generation_set_up(const config::Settings& deck);

}  // namespace tessera::lab
