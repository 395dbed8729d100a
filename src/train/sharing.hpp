/// How the ranks share weights, gradients and optimizer state: which elements each keeps, and where units lie while
/// gathered or in transit. Arithmetic only.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "config/settings.hpp"
#include "model/params.hpp"
#include "model/hooks.hpp"
#include "optim/optimizer.hpp"
#include "parallel/strategies/ownership.hpp"

namespace tessera::train {

struct Sharing {
  config::Shard shard;  // none if a single rank would hold all shards, unless its weights are on the host
  parallel::Ownership ownership;
  int prefetch;  // units that are gathered ahead

  // Units take turns in shared places: embedding and head in one, the blocks in the others, round-robin.
  std::vector<int> weights_places;   // [units] of gathered weights
  std::vector<int> gradient_places;  // [units] of gradients in transit

  bool is_sharded() const { return shard != config::Shard::none; }
  bool shards_gradients() const {
    return ownership.shards() > 1 && (shard == config::Shard::gradients || shard == config::Shard::parameters);
  }
  /// Whether units are gathered before they are read: from other ranks, or from the host.
  bool shards_weights() const { return shard == config::Shard::parameters; }

  /// Which shard of each unit a rank holds.
  int shard_of(int rank) const { return rank % ownership.shards(); }

  /// Elements of each place: those of its largest unit.
  std::vector<std::int64_t> sizes_of(const std::vector<int>& places) const;

  // Elements of all weights and gradients that persist from step to step.
  std::int64_t weights_count() const { return shards_weights() ? ownership.owned_count() : ownership.whole_count(); }
  std::int64_t gradients_count() const {
    return shards_gradients() ? ownership.owned_count() : ownership.whole_count();
  }
};

/// As decks write it.
constexpr std::string_view name_of(config::Shard shard) {
  constexpr std::string_view names[] = {"none", "optimizer", "gradients", "parameters"};
  return names[static_cast<int>(shard)];
}

/// Whether `ranks` form groups: several ranks divide the units among themselves, and several hold the same part.
inline bool forms_groups(const config::Parallel& parallel, int ranks) {
  return parallel.shard != config::Shard::none && parallel.shard_ranks > 1 && parallel.shard_ranks < ranks;
}

/// Ranks that share one copy of what is sharded; 1: nothing is.
int shards_of(const config::Parallel& parallel, int ranks);

/// Throws  Failure(Exit::usage) if parallel.shard_ranks does not divide `ranks`.
Sharing share_units(const config::Parallel& parallel, const model::ParamTable& table, int ranks);

/// Throws  Failure(Exit::usage) if the optimizer needs whole matrices, but sharding or offloaded chunks cut them.
void require_whole_matrices(const optim::Traits& optimizer, const Sharing& sharing, config::Offload offload);

/// Elements of a tensor that a rank owns, and where they lie in its arrays.
struct OwnedSpan {
  const model::Param* param;
  std::int64_t from, count;           // elements of the tensor
  std::int64_t weights, grad, state;  // first element: of the weights; of the gradients; of moments and master
};

/// Everything that shard `shard` owns, in the order of the tensors.
std::vector<OwnedSpan> owned_spans(const model::ParamTable& table, const Sharing& sharing, int shard);

/// Whether `rank` saves number `number` of what its shard owns: of ranks that own the same, each saves some.
inline bool saves(const Sharing& sharing, int ranks, int rank, std::size_t number) {
  const int shards = sharing.ownership.shards();
  return static_cast<int>(number % static_cast<std::size_t>(ranks / shards)) == rank / shards;
}

/// The units in the order in which a training micro-step opens them to read their weights.
std::vector<int> openings_of(const model::ParamTable& table, const model::Segments& segments);

/// With sharded parameters, the units to gather, in order: those whose place another unit has used since.
struct Gathers {
  std::vector<int> first, later;  // in a step's first micro-step; in each of the others, which are all alike
};
Gathers gathers_of(const model::ParamTable& table, const Sharing& sharing, const model::Segments& segments);

/// Whether a pass reads a unit's weights: the embedding's backward pass does not.
inline bool reads_weights(model::Pass pass, int unit) { return pass != model::Pass::backward || unit > 0; }

}  // namespace tessera::train
