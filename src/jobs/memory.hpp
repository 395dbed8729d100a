/// What the ranks of a job may take of the memory where they compute.
#pragma once

#include <cstdint>
#include <string>

#include "memory/layout.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

/// A rank's part in the memory where it computes: its host's, or its GPU's.
struct MemoryShare {
  int ranks = 1;          // that take theirs there, this one included
  std::int64_t held = 0;  // bytes that a plan counts and this rank has taken already: its collectives' buffers
};
MemoryShare share_of_memory(parallel::World& world);

/// Bytes that a plan may have there: what nobody has taken, split among the ranks, and what this rank holds.
std::int64_t available_bytes(const MemoryShare& share = {});

/// Throws Failure(Exit::out_of_memory) with the layout's table where a layout for each of the ranks does not fit there.
/// `advice` says what would fit.
void require_memory(const memory::Layout& layout, const MemoryShare& share, const std::string& advice);

}  // namespace tessera::jobs
