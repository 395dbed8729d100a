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
#include "parallel/collectives/squares.hpp"
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

  UpdateOf(const Basis& basis, const UpdateTensors& tensors, const config::Settings& settings, int shard,
           const memory::Arena<Exec>& arena)
      : settings_(settings),
        working_(array_of<Scalar>(arena, basis.arrays.params)),
        master_(master_of<Scalar>(basis.arrays, arena)),
        grads_(array_of<const Grad>(arena, basis.arrays.grads)),
        owned_gradients_(owned_gradients(basis.sharing, shard)),
        norm_share_(basis.sharing.ownership.shards() == 1
                        ? 1.0
                        : static_cast<double>(basis.sharing.ownership.shards()) / basis.batch.ranks),
        m_(array_of<Moment>(arena, basis.arrays.m)),
        v_(array_of<Moment>(arena, basis.arrays.v)),
        norm_partial_(array_of<double>(arena, tensors.norm_partial)),
        state_(optim::state_at(arena.template data<double>(basis.numbers.state))) {
    if (!basis.arrays.staged.is_empty()) {
      is_early_ = updates_early(basis, settings.optimizer);
      const StagedTensors& staged = basis.arrays.staged;
      stages_weights_ = staged.holds(basis.arrays.params);
      offload_.emplace(staged, basis.sharing.ownership, arena, stages_weights_, is_early_);
      for (int slot = 0; slot < staged.slots; ++slot) slots_.push_back(staged_arrays(basis.arrays, arena, slot));
    }
    const std::vector<Chunk> chunks =
        offload_ ? offload_->chunks() : std::vector<Chunk>{{0, basis.sharing.ownership.owned_count()}};
    std::vector<kernels::AdamwBlock> blocks;
    for (const Chunk& chunk : chunks) {
      const std::size_t first = blocks.size();
      for (const OwnedSpan& span : owned_spans(basis.table, basis.sharing, shard)) append_blocks(span, chunk, blocks);
      blocks_of_chunks_.emplace_back(first, blocks.size());
    }
    blocks_ = upload_list(blocks, arena, tensors.blocks);
  }

  void norm(const Exec& exec, std::optional<std::int64_t> squares) override {
    if (squares) return total(exec, static_cast<std::size_t>(*squares));
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
    total(exec, done);
  }

  void apply(const Exec& exec) override {
    if (is_early_) {
      offload_->join(exec);
      return optim::FinishUpdate<Exec>{state_}.launch(exec);
    }
    prepare(exec);
    if (is_deferred()) return;
    const Arrays all{m_, v_, master_, working_};
    if (settings_.train.fused) return adamw(exec, {0, blocks_.extent(0)}, all);
    for (const auto& range : blocks_of_tensors_) adamw(exec, range, all);
  }

  bool is_deferred() const override { return offload_.has_value(); }

  void begin_early(const Exec& exec) override {
    if (!is_early_) return;
    prepare(exec);
    stream(exec, Offload::Part::backward, copies_of_steps());
  }
  void early(const Exec& exec, int unit) override {
    if (offload_) offload_->release(exec, unit);
  }

  void begin(const Exec& exec) override {
    if (offload_) stream(exec, Offload::Part::forward, copies_of_steps());
  }
  void await(const Exec& exec, int unit) override {
    if (offload_) offload_->await(exec, unit);
  }
  void join(const Exec& exec) override {
    if (offload_) offload_->join(exec);
  }
  void settle(const Exec& exec) override {
    if (!offload_) return;
    stream(exec, Offload::Part::forward, Offload::Copies::joined);
    offload_->join(exec);
  }
  void drop(const Exec& exec) override {
    Kokkos::deep_copy(exec, kernels::Value<int, Exec>(&state_.data()->adamw.skip), 1);
  }

  LinkRate measure_link(const Exec& exec) override { return offload_ ? offload_->measure(exec) : LinkRate{}; }

 private:
  using BlockRange = std::pair<std::size_t, std::size_t>;

  void total(const Exec& exec, std::size_t blocks) const {
    kernels::SquareNormTotal<Exec>{.partial = Kokkos::subview(norm_partial_, std::make_pair(std::size_t{0}, blocks)),
                                   .total = kernels::Value<double, Exec>(&state_.data()->norm_squared),
                                   .scale = norm_share_}
        .launch(exec);
  }

  void prepare(const Exec& exec) const {
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
                               .seed = settings_.job.seed,
                               .precedes_norm = is_early_}
        .launch(exec);
  }

  /// A graph contains all of the copies that its updates need.
  Offload::Copies copies_of_steps() const {
    return settings_.train.graph ? Offload::Copies::joined : Offload::Copies::run_on;
  }

  void stream(const Exec& exec, Offload::Part part, Offload::Copies copies) {
    offload_->start(exec, part, copies, [this](const Exec& instance, std::size_t chunk, int slot) {
      adamw(instance, blocks_of_chunks_[chunk], slots_[slot]);
    });
  }

  struct Arrays {
    kernels::Vector<Moment, Exec> m, v;
    kernels::Vector<kernels::MasterWord<Scalar>, Exec> master;
    kernels::Vector<Scalar, Exec> working;
  };

  /// The chunk in a slot; of arrays that stay on the device, all.
  Arrays staged_arrays(const ArrayTensors& t, const memory::Arena<Exec>& arena, int slot) const {
    const auto place_of = [&]<class Number>(memory::TensorId home) {
      if (home == memory::kAbsent || !t.staged.holds(home)) return array_of<Number>(arena, home);
      const kernels::Vector<Number, Exec> slots = array_of<Number>(arena, t.staged.slots_of(home));
      const std::size_t count = slots.size() / t.staged.slots;
      return kernels::Vector<Number, Exec>(slots.data() + slot * count, count);
    };
    const memory::TensorId master = Weights::kIsOneArray ? t.params : t.master;
    return {place_of.template operator()<Moment>(t.m), place_of.template operator()<Moment>(t.v),
            place_of.template operator()<kernels::MasterWord<Scalar>>(master),
            place_of.template operator()<Scalar>(t.params)};
  }

  /// The part of a tensor's span that lies in a chunk, as blocks of one tensor.
  void append_blocks(const OwnedSpan& span, const Chunk& chunk, std::vector<kernels::AdamwBlock>& blocks) {
    const std::int64_t first = std::max(span.state, chunk.first);
    const std::int64_t last = std::min(span.state + span.count, chunk.first + chunk.count);
    if (first >= last) return;
    const std::int64_t skipped = first - span.state;
    const std::vector<kernels::AdamwBlock> more =
        kernels::make_adamw_blocks({{.param = stages_weights_ ? first - chunk.first : span.weights + skipped,
                                     .grad = span.grad + skipped,
                                     .state = first - chunk.first,
                                     .count = last - first,
                                     .decay = span.param->has_decay,
                                     .index = span.param->first + span.from + skipped}});
    blocks_of_tensors_.emplace_back(blocks.size(), blocks.size() + more.size());
    blocks.insert(blocks.end(), more.begin(), more.end());
  }

  void adamw(const Exec& exec, const BlockRange& range, const Arrays& arrays) const {
    const config::Optimizer& o = settings_.optimizer;
    kernels::AdamwUpdate<Exec, Scalar, Grad, Moment, kHasMaster>{
        .blocks = Kokkos::subview(blocks_, range),
        .master = arrays.master,
        .param = Weights::kIsOneArray ? kernels::Vector<Scalar, Exec>{} : arrays.working,
        .grad = grads_,
        .m = arrays.m,
        .v = arrays.v,
        .scalars = kernels::Value<const kernels::AdamwScalars, Exec>(&state_.data()->adamw),
        .beta1 = o.beta1,
        .beta2 = o.beta2,
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
  std::vector<Arrays> slots_;                                     // of offload_
  bool is_early_ = false;                                         // for its second half
  bool stages_weights_ = false;                                   // the working copy is offloaded, too
};

}  // namespace

namespace {

// Upper bounds, equal on every rank.

std::int64_t norm_blocks(const Sharing& sharing) {
  std::size_t blocks = 0;
  for (const Range& range : owned_gradients(sharing, 0)) blocks += norm_blocks_of(range);
  return static_cast<std::int64_t>(blocks);
}

/// Of the partial sums that transfers of gradients, sent as numbers of type `sent`, can leave.
std::int64_t max_squares(const model::ParamTable& table, const Sharing& sharing, int ranks, Dtype sent) {
  const parallel::Ownership& o = sharing.ownership;
  const auto blocks = [&](std::int64_t count) {
    return parallel::Squares::count_of(count * bytes_of(sent));
  };
  std::int64_t sum = 0;
  if (sharing.is_sharded()) {
    for (int unit = 0; unit < o.units(); ++unit) sum += blocks(o.part(unit));
    return sum;
  }
  // A bucket has at least one tensor, and a rank's part of a bucket ends inside a block.
  for (const model::Param& param : table.params()) {
    sum += blocks(kernels::ceil_div(param.count, std::int64_t{ranks})) + 1;
  }
  return sum;
}

std::int64_t max_adamw_blocks(const model::ParamTable& table, const Sharing& sharing, bool is_offloaded) {
  std::int64_t blocks = 0;
  for (const model::Param& param : table.params()) {  // a rank owns at most one piece of a tensor
    const std::int64_t most = std::min(param.count, sharing.ownership.part(param.unit));
    blocks += kernels::adamw_blocks(most);
  }
  if (is_offloaded) blocks += chunk_count(sharing.ownership.owned_count());  // each may cut a block in two
  return blocks;
}

}  // namespace

UpdateTensors declare_update(const Basis& basis, bool has_squares, memory::Layout& layout) {
  const Sharing& sharing = basis.sharing;
  const ArrayTensors& arrays = basis.arrays;
  const memory::Lifetime whole = memory::Lifetime::whole_run();
  const int end = model::Timeline{static_cast<int>(basis.table.units().size())}.update();
  const std::int64_t most = max_adamw_blocks(basis.table, sharing, !arrays.staged.is_empty());
  const bool has_wire = arrays.wire != memory::kAbsent || !arrays.unit_wires.empty();
  const Dtype sent = has_wire ? Dtype::bf16 : layout[arrays.grads].dtype;
  const std::int64_t squares = has_squares ? max_squares(basis.table, sharing, basis.batch.ranks, sent) : 0;
  UpdateTensors t;
  t.has_squares = has_squares;
  t.blocks = layout.add("adamw.blocks", {most, sizeof(kernels::AdamwBlock) / 4}, Dtype::int32,
                        memory::Category::workspace, whole);
  t.norm_partial =
      layout.add("norm2.partial", {std::max(norm_blocks(sharing), squares)}, Dtype::fp64, memory::Category::workspace,
                 has_squares ? transit_of(basis.batch, basis.table) : memory::Lifetime{end, end});
  return t;
}

bool updates_early(const Basis& basis, const config::Optimizer& optimizer) {
  return basis.batch.ranks == 1 && optimizer.clip_norm == 0 && basis.options.dtype != Dtype::fp16;
}

std::unique_ptr<Update> make_update(const Basis& basis, const UpdateTensors& tensors, const config::Settings& settings,
                                    int shard, const memory::Arena<Exec>& arena) {
  return with_types(basis.options, [&]<class Scalar, class Grad>() -> std::unique_ptr<Update> {
    return with_moments<Scalar>(arena.layout()[basis.arrays.m].dtype, [&]<class Moment>() -> std::unique_ptr<Update> {
      if constexpr (std::is_same_v<Scalar, bfloat16>) {
        if (basis.arrays.master == memory::kAbsent) {
          return std::make_unique<UpdateOf<Scalar, Grad, Moment, false>>(basis, tensors, settings, shard, arena);
        }
      }
      return std::make_unique<UpdateOf<Scalar, Grad, Moment, true>>(basis, tensors, settings, shard, arena);
    });
  });
}

}  // namespace tessera::train
