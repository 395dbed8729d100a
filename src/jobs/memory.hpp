/// How much of the host's or GPU's memory the ranks of a job may use.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "config/settings.hpp"
#include "memory/layout.hpp"
#include "parallel/world.hpp"
#include "train/plan.hpp"

namespace tessera::jobs {

/// A rank's share of the memory in which it computes: its host's, or its GPU's.
struct MemoryShare {
  int ranks = 1;          // that share this memory, this one included
  std::int64_t held = 0;  // bytes that a plan counts and this rank already holds: its collectives' buffers
};
MemoryShare share_of_memory(parallel::World& world);

/// The same for a plan of `settings`: on a GPU, `held` is what the plan counts of the collectives' buffers, as far as
/// this process has taken that much since the first call, in this or an earlier row or job.
MemoryShare share_of_plan(parallel::World& world, const config::Settings& settings);

/// Bytes of the GPU's memory that were free at the first call in this process, those of the collectives' buffers
/// included; a host's where it computes.
std::int64_t free_at_start(parallel::World& world);

/// Bytes of its GPU that this rank has taken since then, those of the collectives' buffers included; NaN where it
/// computes on a host, or shares its GPU.
double taken_bytes(parallel::World& world);

/// Bytes that a plan may use: the free memory divided by the ranks, plus what this rank holds.
std::int64_t available_bytes(const MemoryShare& share = {});

/// Whether one layout per rank fits there.
bool fits(const memory::Layout& layout, const MemoryShare& share);

/// Throws Failure(Exit::out_of_memory) with the layout's table if it does not; `advice` says what would.
void require_memory(const memory::Layout& layout, const MemoryShare& share, const std::string& advice);

/// Advice for require_memory: what to add to `settings`, whose `plan` does not fit, so that it does. Smaller
/// micro-batches come first, then recomputed activations; where these do not suffice, the same with more and more
/// sharded over several ranks, and then, on GPUs, offloaded.
std::string what_would_fit(const train::Plan& plan, const config::Settings& settings, parallel::World& world);

/// The same where `fits` tells whether the ranks of `machine` have the memory for a deck and its layout.
std::string what_would_fit(const train::Plan& plan, const config::Settings& settings,
                           const std::function<bool(const config::Settings&, const memory::Layout&)>& fits,
                           const train::Machine& machine = {});

/// Throws Failure(Exit::out_of_memory), with the reason, if the ranks of a host pin more of its memory than it has
/// left, where they compute on GPUs.
void require_pinned_memory(const memory::Layout& layout, const parallel::World& world);

/// The same of ranks on GPUs of a `host` that has `available_bytes` left.
void require_pinned_memory(const memory::Layout& layout, int ranks_on_host, double available_bytes,
                           const std::string& host);

}  // namespace tessera::jobs
