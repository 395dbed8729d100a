/// How the global batch is divided: global batch -> ranks -> micro-steps. Pure C++.
#pragma once

#include <cstdint>

#include "config/settings.hpp"

namespace tessera::train {

/// A rank's share of `count` things: first .. last - 1, one more on the first ranks if they do not divide. `most` is
/// the largest share of any rank.
struct Share {
  std::int64_t first, last, most;
};
Share share_of(std::int64_t count, int rank, int ranks);

struct BatchPlan {
  std::int64_t global_sequences;  // per optimizer step
  int ranks;
  int micro_sequences;  // largest micro-batch of any rank
  int micro_steps;      // gradient accumulation; the same number on every rank

  /// This rank's samples of step s are s * global_sequences + first_sample(rank) .. + sequences_of(rank) - 1.
  std::int64_t first_sample(int rank) const;
  std::int64_t sequences_of(int rank) const;
  /// Sequences of micro-step `micro`: micro_sequences, fewer (or none) at the end of an uneven share.
  int sequences_of(int rank, int micro) const;
  /// Whether all micro-steps of all ranks have the same number of sequences.
  bool is_even() const { return std::int64_t{ranks} * micro_steps * micro_sequences == global_sequences; }
};

/// Throws  Failure(Exit::usage) if ranks x micro-batch does not divide the batch and allow_uneven is off.
BatchPlan plan_batch(const config::Train& train, const config::Parallel& parallel, int ranks);

}  // namespace tessera::train
