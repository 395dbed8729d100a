#include "train/update.hpp"  // the contract is there; here is how

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/adamw.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/norm2.hpp"
#include "optim/step_state.hpp"
#include "train/arrays.hpp"
#include "train/dtypes.hpp"
#include "train/offload.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;
using parallel::Range;

/// Where the gradients that a rank owns lie in the array of gradients.
std::vector<Range> owned_gradients(const Sharing& sharing, int shard) {
  const parallel::Ownership& o = sharing.ownership;
  if (o.shards() == 1 || sharing.shards_gradients()) return {{0, sharing.gradients_count()}};
  std::vector<Range> ranges;
  for (int unit = 0; unit < o.units(); ++unit) {
    ranges.push_back({o.whole_first(unit) + shard * o.part(unit), o.part(unit)});
  }
  return ranges;
}

std::size_t norm_blocks_of(const Range& range) {
  return kernels::SquareNorm<Exec, float>::blocks(static_cast<std::size_t>(range.count));
}

template <class Scalar, class Grad, class Moment, bool kHasMaster>
class UpdateOf final : public Update {
 public:
  using Real = Accum<Scalar>;
  using Weights = kernels::MasterWeights<Exec, Scalar>;

  UpdateOf(const Plan& plan, const config::Settings& settings, int shard, const memory::Arena<Exec>& arena)
      : settings_(settings),
        working_(array_of<Scalar>(arena, plan.state.params)),
        master_(master_of<Scalar>(plan, arena)),
        grads_(array_of<const Grad>(arena, plan.state.grads)),
        owned_gradients_(owned_gradients(plan.sharing, shard)),
        norm_share_(plan.sharing.is_sharded() ? static_cast<double>(plan.sharing.ownership.shards()) / plan.batch.ranks
                                              : 1.0),
        m_(array_of<Moment>(arena, plan.state.m)),
        v_(array_of<Moment>(arena, plan.state.v)),
        norm_partial_(array_of<double>(arena, plan.state.norm_partial)),
        state_(optim::state_at(arena.template data<double>(plan.state.state))) {
    if (!plan.state.staged.empty()) {
      offload_.emplace(plan, arena);
      for (int slot = 0; slot < kChunkSlots; ++slot) slots_.push_back(staged_state(plan, arena, slot));
    }
    const std::vector<Chunk> chunks =
        offload_ ? offload_->chunks() : std::vector<Chunk>{{0, plan.sharing.ownership.owned_count()}};
    std::vector<kernels::AdamwBlock> blocks;
    for (const Chunk& chunk : chunks) {
      const std::size_t first = blocks.size();
      for (const OwnedSpan& span : owned_spans(plan.table, plan.sharing, shard)) append_blocks(span, chunk, blocks);
      blocks_of_chunks_.emplace_back(first, blocks.size());
    }
    blocks_ = upload_list(blocks, arena, plan.state.adamw_blocks);
  }

  void norm(const Exec& exec) override {
    std::size_t done = 0;
    for (const Range& range : owned_gradients_) {
      const std::size_t blocks = norm_blocks_of(range);
      kernels::SquareNorm<Exec, Grad>{
          .x = Kokkos::subview(grads_, std::make_pair(range.first, range.first + range.count)),
          .partial = Kokkos::subview(norm_partial_, std::make_pair(done, done + blocks)),
          .total = {}}
          .launch_blocks(exec);
      done += blocks;
    }
    kernels::SquareNormTotal<Exec>{.partial = Kokkos::subview(norm_partial_, std::make_pair(std::size_t{0}, done)),
                                   .total = kernels::Value<double, Exec>(&state_.data()->norm_squared),
                                   .scale = norm_share_}
        .launch(exec);
  }

  void apply(const Exec& exec) override {
    const config::Optimizer& o = settings_.optimizer;
    optim::PrepareUpdate<Exec>{.state = state_,
                               .schedule = {.peak = o.learning_rate,
                                            .minimum = o.min_learning_rate,
                                            .warmup_steps = o.warmup_steps,
                                            .steps = settings_.train.steps},
                               .beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .clip_norm = o.clip_norm,
                               .scales_dynamically = kDtype<Scalar> == Dtype::fp16,
                               .seed = settings_.job.seed}
        .launch(exec);
    if (!offload_) {
      if (settings_.train.fused) return adamw(exec, {0, blocks_.extent(0)}, {m_, v_, master_});
      for (const auto& range : blocks_of_tensors_) adamw(exec, range, {m_, v_, master_});
      return;
    }
    std::size_t chunk = 0;
    offload_->stream(exec, [&](const Chunk&, int slot) { adamw(exec, blocks_of_chunks_[chunk++], slots_[slot]); });
  }

  LinkRate measure_link(const Exec& exec) override { return offload_ ? offload_->measure(exec) : LinkRate{}; }

 private:
  using BlockRange = std::pair<std::size_t, std::size_t>;

  struct OptimizerState {
    kernels::Vector<Moment, Exec> m, v;
    kernels::Vector<kernels::MasterWord<Scalar>, Exec> master;
  };

  /// The chunk in a slot: its moments and its master, unless the latter is the working copy.
  OptimizerState staged_state(const Plan& plan, const memory::Arena<Exec>& arena, int slot) const {
    const auto& staged = plan.state.staged;
    OptimizerState state{array_of<Moment>(arena, staged[0][slot]), array_of<Moment>(arena, staged[1][slot]), master_};
    if (staged.size() > 2) state.master = array_of<kernels::MasterWord<Scalar>>(arena, staged[2][slot]);
    return state;
  }

  /// The part of a tensor's span that lies in a chunk, as blocks of one tensor.
  void append_blocks(const OwnedSpan& span, const Chunk& chunk, std::vector<kernels::AdamwBlock>& blocks) {
    const std::int64_t first = std::max(span.state, chunk.first);
    const std::int64_t last = std::min(span.state + span.count, chunk.first + chunk.count);
    if (first >= last) return;
    const std::int64_t skipped = first - span.state;
    const std::vector<kernels::AdamwBlock> more =
        kernels::make_adamw_blocks({{.param = span.weights + skipped,
                                     .grad = span.grad + skipped,
                                     .state = first - chunk.first,
                                     .count = last - first,
                                     .decay = span.param->has_decay,
                                     .index = span.param->first + span.from + skipped}});
    blocks_of_tensors_.emplace_back(blocks.size(), blocks.size() + more.size());
    blocks.insert(blocks.end(), more.begin(), more.end());
  }

  void adamw(const Exec& exec, const BlockRange& range, const OptimizerState& state) const {
    const config::Optimizer& o = settings_.optimizer;
    kernels::AdamwUpdate<Exec, Scalar, Grad, Moment, kHasMaster>{
        .blocks = Kokkos::subview(blocks_, range),
        .master = state.master,
        .param = Weights::kIsOneArray ? kernels::Vector<Scalar, Exec>{} : working_,
        .grad = grads_,
        .m = state.m,
        .v = state.v,
        .scalars = kernels::Value<const kernels::AdamwScalars, Exec>(&state_.data()->adamw),
        .beta1 = static_cast<Real>(o.beta1),
        .beta2 = static_cast<Real>(o.beta2),
        .eps = static_cast<Real>(o.eps),
        .weight_decay = static_cast<Real>(o.weight_decay)}
        .launch(exec);
  }

  const config::Settings& settings_;
  const kernels::Vector<Scalar, Exec> working_;
  const kernels::Vector<kernels::MasterWord<Scalar>, Exec> master_;
  const kernels::Vector<const Grad, Exec> grads_;
  const std::vector<Range> owned_gradients_;
  const double norm_share_;  // of each of the ranks that hold the same part: all of them are added
  const kernels::Vector<Moment, Exec> m_, v_;
  const kernels::Vector<double, Exec> norm_partial_;
  const optim::StateView<Exec> state_;
  kernels::Vector<const kernels::AdamwBlock, Exec> blocks_;
  std::vector<BlockRange> blocks_of_tensors_, blocks_of_chunks_;  // in blocks_
  std::optional<Offload> offload_;                                // empty: the state is on the device
  std::vector<OptimizerState> slots_;                             // of offload_
};

}  // namespace

std::int64_t norm_blocks(const Sharing& sharing) {
  std::size_t blocks = 0;
  for (const Range& range : owned_gradients(sharing, 0)) blocks += norm_blocks_of(range);
  return static_cast<std::int64_t>(blocks);
}

std::int64_t max_adamw_blocks(const model::ParamTable& table, const Sharing& sharing, bool is_offloaded) {
  std::int64_t blocks = 0;
  for (const model::Param& param : table.params()) {  // a rank owns at most one piece of a tensor
    const std::int64_t most = std::min(param.count, sharing.ownership.part(param.unit));
    blocks += kernels::ceil_div(most, std::int64_t{kernels::kAdamwBlock});
  }
  if (is_offloaded) blocks += std::ssize(chunks_of(sharing.ownership.owned_count()));  // each may cut a block in two
  return blocks;
}

std::unique_ptr<Update> make_update(const Plan& plan, const config::Settings& settings, int shard,
                                    const memory::Arena<Exec>& arena) {
  return with_types(plan, [&]<class Scalar, class Grad>() -> std::unique_ptr<Update> {
    return with_moments<Scalar>(plan, [&]<class Moment>() -> std::unique_ptr<Update> {
      if constexpr (std::is_same_v<Scalar, bfloat16>) {
        if (plan.state.master == memory::kAbsent) {
          return std::make_unique<UpdateOf<Scalar, Grad, Moment, false>>(plan, settings, shard, arena);
        }
      }
      return std::make_unique<UpdateOf<Scalar, Grad, Moment, true>>(plan, settings, shard, arena);
    });
  });
}

}  // namespace tessera::train
