/// The order in which a training pass visits the units, without the arithmetic: what a rank without sequences in a
/// micro-step announces, and which blocks checkpointing recomputes together. Pure C++.
#pragma once

#include <cstdint>

#include "model/hooks.hpp"
#include "model/params.hpp"

namespace tessera::model {

/// The segments of `blocks` blocks that are recomputed together, `every` blocks long (0: nothing is recomputed).
struct Segments {
  std::int64_t blocks, every;

  bool ends(int block) const { return every > 0 && (block + 1 == blocks || (block + 1) % every == 0); }
  int first(int last_block) const { return static_cast<int>(last_block / every * every); }
};

/// Announces what a forward pass and a loss without gradients announce, except the ticks.
void walk_forward(const ParamTable& table, Pass pass, Hooks& hooks);

/// Announces what Transformer::forward(), head() with gradients and backward() announce, except the ticks.
void walk(const ParamTable& table, const Segments& segments, Hooks& hooks);

}  // namespace tessera::model
