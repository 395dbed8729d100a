/// How much of the host's or GPU's memory the ranks of a job may use.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "config/settings.hpp"
#include "jobs/jobs.hpp"
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

/// The same for a plan of `settings`: on a GPU, `held` is the plan's count of the collectives' buffers, or as much of
/// it as this process has taken since the first call, in this or an earlier row or job.
MemoryShare share_of_plan(parallel::World& world, const config::Settings& settings);

/// Bytes free at the first call in this process, the collectives' buffers included: of the GPU, or of the host if it
/// computes.
std::int64_t free_at_start(parallel::World& world);

/// Bytes of its GPU that this rank has taken since then, the collectives' buffers included; NaN if it computes on a
/// host or shares its GPU.
double taken_bytes(parallel::World& world);

/// Bytes that a plan may use: the free memory divided by the ranks, plus what this rank holds.
std::int64_t available_bytes(const MemoryShare& share = {});

/// Whether one layout per rank fits there.
bool fits(const memory::Layout& layout, const MemoryShare& share);

/// Throws Failure(Exit::out_of_memory) with the layout's table if it does not; `advice` says what would.
void require_memory(const memory::Layout& layout, const MemoryShare& share, const std::string& advice);

/// Advice for require_memory: overrides that make `plan` of `settings` fit. Tries smaller micro-batches, then
/// recomputed activations; if these do not suffice, the same with ever more sharding, then, on GPUs, offload.
std::string what_would_fit(const train::Plan& plan, const config::Settings& settings, parallel::World& world);

/// The same if `fits` tells whether the ranks of `machine` have memory for a deck and its layout.
std::string what_would_fit(const train::Plan& plan, const config::Settings& settings,
                           const std::function<bool(const config::Settings&, const memory::Layout&)>& fits,
                           const train::Machine& machine = {});

/// A training run's plan. checkpoint.background = "auto" gives way: if any rank may not pin what the plan has on its
/// host, all ranks plan without the copy, and `note` hears of it. Collective.
train::Plan plan_run(const config::Settings& settings, parallel::World& world, const Note& note);

/// The same for a `machine`, if `can_pin` tells whether this rank may.
train::Plan plan_run(const config::Settings& settings, const train::Machine& machine, parallel::World& world,
                     const std::function<bool(const memory::Layout&)>& can_pin, const Note& note);

/// For ranks on GPUs. Throws Failure(Exit::out_of_memory) if the ranks of a host pin more memory than it has left.
void require_pinned_memory(const memory::Layout& layout, const parallel::World& world);

/// The same for ranks on GPUs of a `host` with `available_bytes` left.
void require_pinned_memory(const memory::Layout& layout, int ranks_on_host, double available_bytes,
                           const std::string& host);

}  // namespace tessera::jobs
