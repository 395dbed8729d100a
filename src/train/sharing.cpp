#include "train/sharing.hpp"

#include <algorithm>

#include "errors.hpp"
#include "kernels/core/words.hpp"

namespace tessera::train {
namespace {

/// Places of gradients in transit, besides that of embedding and head: one is written while another is sent.
constexpr int kGradientRing = 2;

/// Embedding and head share place 0; blocks use `ring` others in turn.
std::vector<int> places_in_ring(int units, int ring) {
  std::vector<int> places(static_cast<std::size_t>(units), 0);
  for (int unit = 1; unit + 1 < units; ++unit) places[unit] = 1 + (unit - 1) % ring;
  return places;
}

}  // namespace

std::vector<std::int64_t> Sharing::sizes_of(const std::vector<int>& places) const {
  std::vector<std::int64_t> sizes;
  for (int unit = 0; unit < ownership.units(); ++unit) {
    const auto place = static_cast<std::size_t>(places[unit]);
    sizes.resize(std::max(sizes.size(), place + 1));
    sizes[place] = std::max(sizes[place], ownership.padded(unit));
  }
  return sizes;
}

int shards_of(const config::Parallel& parallel, int ranks) {
  if (parallel.shard == config::Shard::none) return 1;
  return parallel.shard_ranks == 0 ? ranks : static_cast<int>(parallel.shard_ranks);
}

Sharing share_units(const config::Parallel& parallel, const model::ParamTable& table, int ranks) {
  const int shards = shards_of(parallel, ranks);
  if (ranks % shards != 0) {
    throw Failure(Exit::usage, "parallel.shard_ranks = {} does not divide {}: use a divisor, or 0 for all ranks",
                  shards, counted(ranks, "rank"));
  }
  if (forms_groups(parallel, ranks) && parallel.transfers == config::Transfers::copy_engine) {
    throw Failure(Exit::usage,
                  "parallel.transfers = \"copy_engine\" serves all ranks together, and parallel.shard_ranks cuts them "
                  "into groups: use \"ring\" or \"auto\", or parallel.shard_ranks = 0");
  }
  std::vector<parallel::Unit> spans;
  for (const model::UnitSpan& unit : table.units()) spans.push_back({unit.label, unit.first, unit.count});
  const int units = static_cast<int>(spans.size());
  const bool keeps_all = shards == 1 && parallel.offload != config::Offload::parameters;
  Sharing sharing{.shard = keeps_all ? config::Shard::none : parallel.shard,
                  .ownership = parallel::Ownership(std::move(spans), shards),
                  .prefetch = static_cast<int>(std::min<std::int64_t>(parallel.prefetch_blocks, units)),
                  .weights_places = places_in_ring(units, 1),
                  .gradient_places = places_in_ring(units, kGradientRing)};
  if (parallel.reshard_after_forward) {
    sharing.weights_places = places_in_ring(units, sharing.prefetch + 1);
  } else {
    for (int unit = 0; unit < units; ++unit) sharing.weights_places[unit] = unit;
  }
  return sharing;
}

void require_whole_matrices(const optim::Traits& optimizer, const Sharing& sharing, config::Offload offload) {
  if (!optimizer.needs_whole_matrices) return;
  const auto refuse = [&](std::string_view what, std::string_view fix) {
    throw Failure(Exit::usage, "optimizer.kind = \"{}\" updates whole matrices, and {} cuts them: use {}",
                  optimizer.name, what, fix);
  };
  if (sharing.ownership.shards() > 1) refuse("parallel.shard", "parallel.shard = \"none\"");
  if (offload != config::Offload::none) refuse("parallel.offload", "parallel.offload = \"none\"");
}

std::vector<OwnedSpan> owned_spans(const model::ParamTable& table, const Sharing& sharing, int shard) {
  std::vector<OwnedSpan> spans;
  const parallel::Ownership& ownership = sharing.ownership;
  for (const model::Param& param : table.params()) {
    const int unit = param.unit;
    const parallel::Range owned = ownership.owned(unit, shard);
    const std::int64_t first = std::max(owned.first, param.first);
    const std::int64_t last = std::min(owned.first + owned.count, param.first + param.count);
    if (first >= last) continue;
    const std::int64_t in_whole = ownership.whole_first(unit) + first - ownership[unit].first;
    const std::int64_t in_owned = ownership.owned_first(unit) + first - owned.first;
    spans.push_back({.param = &param,
                     .from = first - param.first,
                     .count = last - first,
                     .weights = sharing.shards_weights() ? in_owned : in_whole,
                     .grad = sharing.shards_gradients() ? in_owned : in_whole,
                     .state = in_owned});
  }
  return spans;
}

std::vector<int> openings_of(const model::ParamTable& table, const model::Segments& segments) {
  class Openings final : public model::Hooks {
   public:
    explicit Openings(std::size_t units) : open_(units) {}
    void before(model::Pass pass, int unit) override {
      if (reads_weights(pass, unit) && open_[unit]++ == 0) units.push_back(unit);
    }
    void after(model::Pass pass, int unit) override {
      if (reads_weights(pass, unit)) --open_[unit];
    }
    std::vector<int> units;

   private:
    std::vector<int> open_;
  };
  Openings openings(table.units().size());
  model::walk(table, segments, openings);
  return openings.units;
}

Gathers gathers_of(const model::ParamTable& table, const Sharing& sharing, const model::Segments& segments) {
  const std::vector<int> openings = openings_of(table, segments);
  // Every micro-step leaves the places as the first one does, so the second stands for all that follow.
  const std::vector<bool> stays = parallel::stays_in_place(openings, 2, sharing.weights_places);
  Gathers gathers;
  for (std::size_t i = 0; i < stays.size(); ++i) {
    if (stays[i]) continue;
    (i < openings.size() ? gathers.first : gathers.later).push_back(openings[i % openings.size()]);
  }
  return gathers;
}

}  // namespace tessera::train
