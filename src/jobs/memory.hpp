/// How much of the host's or GPU's memory the ranks of a job may use.
#pragma once

#include <cstdint>
#include <string>

#include "memory/layout.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

/// A rank's share of the memory in which it computes: its host's, or its GPU's.
struct MemoryShare {
  int ranks = 1;          // that share this memory, this one included
  std::int64_t held = 0;  // bytes that a plan counts and this rank already holds: its collectives' buffers
};
MemoryShare share_of_memory(parallel::World& world);

/// Bytes that a plan may use: the free memory divided by the ranks, plus what this rank holds.
std::int64_t available_bytes(const MemoryShare& share = {});

/// Whether one layout per rank fits there.
bool fits(const memory::Layout& layout, const MemoryShare& share);

/// Throws Failure(Exit::out_of_memory) with the layout's table if it does not; `advice` says what would.
void require_memory(const memory::Layout& layout, const MemoryShare& share, const std::string& advice);

/// Throws Failure(Exit::out_of_memory), with the reason, if the ranks of a host pin more of its memory than it has left,
/// where they compute on GPUs.
void require_pinned_memory(const memory::Layout& layout, const parallel::World& world);

}  // namespace tessera::jobs
