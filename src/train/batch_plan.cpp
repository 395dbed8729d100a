#include "train/batch_plan.hpp"

#include <algorithm>

#include "errors.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/words.hpp"

namespace tessera::train {

Share share_of(std::int64_t count, int rank, int ranks) {
  const std::int64_t least = count / ranks, with_more = count % ranks;
  const std::int64_t first = least * rank + std::min<std::int64_t>(rank, with_more);
  return {first, first + least + (rank < with_more ? 1 : 0), kernels::ceil_div(count, ranks)};
}

std::int64_t BatchPlan::sequences_of(int rank) const {
  const Share share = share_of(global_sequences, rank, ranks);
  return share.last - share.first;
}

std::int64_t BatchPlan::first_sample(int rank) const { return share_of(global_sequences, rank, ranks).first; }

int BatchPlan::sequences_of(int rank, int micro) const {
  const std::int64_t left = sequences_of(rank) - std::int64_t{micro} * micro_sequences;
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, micro_sequences));
}

BatchPlan plan_batch(const config::Train& train, const config::Parallel& parallel, int ranks) {
  const std::int64_t batch = train.batch_size, micro = train.micro_batch_size;
  const std::int64_t largest_share = kernels::ceil_div(batch, ranks);
  const std::int64_t micro_sequences = micro == 0 ? largest_share : std::min(micro, largest_share);
  if (!parallel.allow_uneven) {
    if (batch % ranks != 0) {
      throw Failure(Exit::usage,
                    "train.batch_size={} is not a multiple of {} ranks: use a multiple, another number of ranks, or "
                    "parallel.allow_uneven=true",
                    batch, ranks);
    }
    if (micro != 0 && (batch / ranks) % micro != 0) {
      throw Failure(Exit::usage,
                    "train.micro_batch_size={} does not divide the {} of each of {} (train.batch_size={}): use a "
                    "divisor, 0 for the largest, or parallel.allow_uneven=true",
                    micro, counted(batch / ranks, "sequence"), counted(ranks, "rank"), batch);
    }
  }
  return {batch, ranks, static_cast<int>(micro_sequences),
          static_cast<int>(kernels::ceil_div(largest_share, micro_sequences))};
}

}  // namespace tessera::train
