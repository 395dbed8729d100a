/// The model's announcements while it runs: the interface between a model that knows no ranks and a step that
/// communicates, measures and traces. Numbers are those of ParamTable::units() and ParamTable::params().
///
/// A unit is open from before(pass, unit) to after(pass, unit); its weights are read only in between, in every pass,
/// training or not. Passes may overlap: a unit is closed when none of them has it open.
///
///   forward, inference   every unit once, in order; the head stays open until its loss is done, or close_head()
///   recompute            the blocks of a segment in order, before their backward pass; the last one is still open when
///                        its backward pass opens it
///   backward             every unit once, in reverse; the head's begins before its forward pass ends: they are fused
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "model/params.hpp"

namespace tessera::model {

enum class Pass { forward, recompute, backward, inference };
inline constexpr int kPasses = 4;

constexpr std::string_view name_of(Pass pass) {
  return std::array<std::string_view, kPasses>{"forward", "recompute", "backward",
                                               "inference"}[static_cast<std::size_t>(pass)];
}

class Hooks {
 public:
  virtual ~Hooks() = default;
  virtual void before(Pass, int /*unit*/) {}        // the unit's weights are about to be read
  virtual void after(Pass, int /*unit*/) {}         // they are not read again in this pass
  virtual void gradient_enqueued(int /*param*/) {}  // the last launch of its gradient in this micro-step
  virtual void tick(int /*tick*/) {}                // the pass reached this tick of the layout's timeline
  virtual void progress() {}                        // called often: an opportunity to poll communication
};

/// The segments of `blocks` blocks that are recomputed together, `every` blocks long (0: nothing is recomputed).
struct Segments {
  std::int64_t blocks, every;

  bool ends(int block) const { return every > 0 && (block + 1 == blocks || (block + 1) % every == 0); }
  int first(int last_block) const { return static_cast<int>(last_block / every * every); }
};

// Announcements without arithmetic, for a rank without sequences in a micro-step.

/// Announces like a forward pass and a loss without gradients, except the ticks.
void walk_forward(const ParamTable& table, Pass pass, Hooks& hooks);

/// Announces like Transformer::forward(), head() with gradients and backward(), except the ticks.
void walk(const ParamTable& table, const Segments& segments, Hooks& hooks);

}  // namespace tessera::model
