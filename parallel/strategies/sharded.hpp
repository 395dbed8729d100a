/// Ranks that keep parts of the optimizer's state (ZeRO-1), also of the gradients (ZeRO-2), also of the weights
/// (ZeRO-3, fully sharded data parallel).
///
///               weights                              gradients                        cross the network
///   ZeRO-1      all; the updated parts are           all                              last micro-step
///               gathered under the next forward
///   ZeRO-2      the same                             parts, and whole units in        every micro-step, added to
///                                                    transit                          the part
///   ZeRO-3      parts, and units that are gathered   the same                         the same
///               before they are read
///
/// Units share places in memory: a unit gathered or in transit takes the place of a closed one. Places depend only on
/// the order of the openings, so addresses are fixed and a step can be captured. A unit that is still in its place is
/// not gathered again before the next update.
///
/// Weights on the host (ZeRO-3): a rank's part is copied to its place before the others are gathered there; with S = 1
/// there is only that copy, and gradients are kept whole. Copies and gathers run on their own stream and wait only for
/// the unit's own update and its place.
///
/// Hybrid  the S ranks of a group divide the units among themselves; ranks of different groups with the same part sum
///         its gradients after the last micro-step has added to it.
/// Limits  copies from the host are not transfers: neither events nor collect() include their times. ZeRO-2 and 3 have
///         a transfer per unit and micro-step, each with events and, with copy engines, a mapping of the others'
///         memory: a few KB, and time to connect that grows with the number of micro-steps.
/// Source  Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054; Zhao et al. 2023, "PyTorch FSDP", arXiv:2304.11277.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/core/side_stream.hpp"
#include "parallel/strategies/ownership.hpp"
#include "parallel/strategies/strategy.hpp"

namespace tessera::parallel {

/// Where a unit lies. Spans of the whole unit have Ownership::padded elements, this rank's parts Ownership::part.
struct UnitMemory {
  Span weights;       // gathered, as the model reads them
  Span own_weights;   // this rank's part, kept from step to step: inside `weights`, or outside all places
  Span host_weights;  // empty, or the same in pinned host memory: own_weights, inside `weights`, is then a copy
  Span gradient;      // as backward writes it
  Span own_gradient;  // the sum of this rank's part: inside `gradient`, or outside all places
  Span wire;          // empty, or what crosses the network for `gradient`, in a narrower dtype
  int weights_place = 0, gradient_place = 0;  // units with the same place use it in turn
};

struct ShardedOptions {
  bool shards_gradients = false;
  bool shards_weights = false;          // requires shards_gradients, unless one shard is on the host
  int prefetch = 1;                     // units that are gathered ahead of the one that is open
  int micro_steps = 1;                  // of a step
  std::vector<int> openings = {};       // units, in the order in which a training micro-step opens them
  std::vector<int> unit_of_param = {};  // [parameters]
  NormSpans norm = {};                  // with an empty total, sum() does nothing
  bool poisons = false;                 // for tests: weights that are not gathered are NaN

  /// Makes work enqueued on the instance from now on see the latest update of the unit's own part. Empty: work on the
  /// gradients' instance sees it anyway.
  std::function<void(const kernels::Device&, int unit)> await_update = {};
};

class Sharded final : public Strategy {
 public:
  /// Each ownership.shards() consecutive ranks divide the units among themselves; that number must divide the ranks of
  /// `all`. Gradients are computed on `exec`. Not collective.
  Sharded(Collectives& all, const kernels::Device& exec, const Ownership& ownership, std::vector<UnitMemory> memory,
          ShardedOptions options);

  void connect() override;
  void begin_step(WaitTimes* waits) override;
  int most_waits() const override;
  void begin(bool completes) override;
  void open(int unit) override;
  void close(int unit) override;
  void begin_gradients(int unit) override;
  void gradient_enqueued(int param) override;
  void progress() override;
  void finish() override;
  void sum() override;
  void begin_inference() override;
  double collect() override;

 private:
  struct Visit {  // one opening of a unit
    int unit;
    Move gather = {};    // none: it still lies in its place
    bool stays = false;  // the next visit finds it in its place
  };
  struct Schedule {
    std::vector<Visit> visits;
    std::size_t next = 0, started = 0;
  };
  struct Pending {  // a unit's gradient in transit to its owners
    int unit;
    Move* move;
    bool completes;   // the last of the micro-steps whose gradients are summed
    bool is_in_part;  // the transfer leaves the sum in the part that is kept
  };

  Schedule make_schedule(const std::vector<int>& openings, int times);
  Move make_gather(int unit);
  Move make_scatter(int unit, int micro_step);
  void begin_passes(Schedule& schedule);
  bool has_place(const Schedule& schedule, std::size_t visit) const;
  void start_gather(Move& move, int unit);
  void join_gather(Move& move, int unit);
  void start(Move& move) { start(move, exec_); }
  void start(Move& move, const kernels::Device& after);
  void join(Move& move);
  void complete(const Pending& pending);
  void free_wire(int unit);
  void join_replica_sum(int unit);
  void add_to_part(int unit) const;
  bool keeps_part_in_place(int unit) const;
  void poison(const Span& weights) const;
  void poison_other_parts(int unit) const;
  Span own_slice(const Span& whole) const;

  Collectives& all_;
  kernels::Device exec_;
  Ownership ownership_;
  const int shard_;  // this rank's
  std::vector<UnitMemory> memory_;
  ShardedOptions options_;
  const bool is_alone_;  // one shard, all weights on the host: between ranks, gradients alone cross
  std::unique_ptr<Collectives> own_shards_, own_replicas_;  // if the ranks form several groups
  Collectives* shards_ = nullptr;                           // the ranks that divide the units
  Collectives* replicas_ = nullptr;                         // those with the same part; null: no others

  kernels::SideStream gather_stream_;      // of gathers that exec_ does not start
  kernels::StreamOrder gather_order_;      // [units] copied from the host; last: a point of exec_
  std::vector<Move> gathers_;              // [units] if each rank keeps all weights
  std::vector<char> is_gathered_;          // [units] whether their gather has been joined
  Schedule step_, inference_;              // if the weights are sharded
  Schedule* schedule_ = nullptr;           // the one in progress
  std::vector<Move> scatters_;             // [units], or [micro-steps][units]: see connect()
  std::vector<Move> replica_sums_;         // [units]
  std::vector<char> is_summing_replicas_;  // [units] whether that sum is under way
  Move norm_sum_;

  std::vector<int> open_;              // [units] passes that have it open
  std::vector<char> stays_;            // [units] Visit::stays of its last visit
  std::vector<int> missing_, params_;  // [units] gradients not ready yet; all of the unit's
  std::vector<Pending> pending_;
  std::vector<Move*> under_way_;  // for progress()
  std::vector<Move*> moved_;      // in the step, in the order of their start, if the host does not wait
  int micro_ = -1;
  bool completes_ = false, is_in_step_ = false, has_started_gathers_ = false;
};

}  // namespace tessera::parallel
