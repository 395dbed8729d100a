#include "train/update.hpp"  // the contract is there; here is how

#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/round_up.hpp"
#include "kernels/norm2.hpp"
#include "kernels/weight_update.hpp"
#include "parallel/collectives/squares.hpp"
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

/// A chunk's part of a tensor's span, as blocks of one tensor. `stages_weights`: the chunk holds the weights, too.
std::vector<kernels::UpdateBlock> blocks_of(const OwnedSpan& span, const Chunk& chunk, bool stages_weights) {
  const std::int64_t first = std::max(span.state, chunk.first);
  const std::int64_t last = std::min(span.state + span.count, chunk.first + chunk.count);
  if (first >= last) return {};
  const std::int64_t skipped = first - span.state;
  return kernels::make_update_blocks({{.param = stages_weights ? first - chunk.first : span.weights + skipped,
                                       .grad = span.grad + skipped,
                                       .state = first - chunk.first,
                                       .count = last - first,
                                       .decay = span.param->has_decay,
                                       .index = span.param->first + span.from + skipped}});
}

// Upper bounds, equal on every rank.

std::int64_t norm_blocks(const Sharing& sharing) {
  std::size_t blocks = 0;
  for (const Range& range : owned_gradients(sharing, 0)) blocks += norm_blocks_of(range);
  return static_cast<std::int64_t>(blocks);
}

/// The most partial sums that transfers of gradients, sent as `sent`, can leave.
std::int64_t max_squares(const model::ParamTable& table, const Sharing& sharing, int ranks, Dtype sent) {
  const parallel::Ownership& o = sharing.ownership;
  const auto blocks = [&](std::int64_t count) { return parallel::Squares::count_of(count * bytes_of(sent)); };
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

std::int64_t max_update_blocks(const model::ParamTable& table, const Sharing& sharing, bool is_offloaded) {
  std::int64_t blocks = 0;
  for (const model::Param& param : table.params()) {  // a rank owns at most one piece of a tensor
    const std::int64_t most = std::min(param.count, sharing.ownership.part(param.unit));
    blocks += kernels::update_blocks(most);
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
  const std::int64_t most = max_update_blocks(basis.table, sharing, !arrays.staged.is_empty());
  const bool has_wire = arrays.wire != memory::kAbsent || !arrays.unit_wires.empty();
  const Dtype sent = has_wire ? Dtype::bf16 : layout[arrays.grads].dtype;
  const std::int64_t squares = has_squares ? max_squares(basis.table, sharing, basis.batch.ranks, sent) : 0;
  UpdateTensors t;
  t.has_squares = has_squares;
  t.blocks = layout.add(fmt::format("{}.blocks", basis.optimizer.name), {most, sizeof(kernels::UpdateBlock) / 4},
                        Dtype::int32, memory::Category::workspace, whole);
  t.norm_partial =
      layout.add("norm2.partial", {std::max(norm_blocks(sharing), squares)}, Dtype::fp64, memory::Category::workspace,
                 has_squares ? transit_of(basis.batch, basis.table) : memory::Lifetime{end, end});
  return t;
}

Update::Update(const Basis& basis, const UpdateTensors& tensors, const config::Settings& settings, int shard,
               const memory::Arena& arena)
    : basis_(basis),
      settings_(settings),
      arena_(arena),
      owned_gradients_(owned_gradients(basis.sharing, shard)),
      norm_partial_(arena.array<double>(tensors.norm_partial)),
      state_(optim::state_at(arena.data<double>(basis.numbers.state))) {
  const StagedTensors& staged = basis.arrays.staged;
  const std::int64_t owned = basis.sharing.ownership.owned_count();
  const std::vector<Chunk> chunks = staged.is_empty() ? std::vector<Chunk>{{0, owned}} : chunks_of(owned);
  const bool stages_weights = staged.holds(basis.arrays.params);
  const bool is_one_launch = settings.train.fused || !staged.is_empty();
  std::vector<kernels::UpdateBlock> blocks;
  for (const Chunk& chunk : chunks) {
    const std::size_t first = blocks.size();
    std::vector<BlockRange>& launches = launches_.emplace_back();
    for (const OwnedSpan& span : owned_spans(basis.table, basis.sharing, shard)) {
      const std::vector<kernels::UpdateBlock> more = blocks_of(span, chunk, stages_weights);
      if (more.empty()) continue;
      launches.emplace_back(blocks.size(), blocks.size() + more.size());
      blocks.insert(blocks.end(), more.begin(), more.end());
    }
    if (is_one_launch) launches = {{first, blocks.size()}};
  }
  blocks_ = upload_list(blocks, arena, tensors.blocks);
}

void Update::norm(const Exec& exec, std::optional<std::int64_t> squares) const {
  std::size_t done = static_cast<std::size_t>(squares.value_or(0));
  for (std::size_t i = 0; !squares && i < owned_gradients_.size(); ++i) {
    const auto [first, count] = owned_gradients_[i];
    const std::pair blocks(done, done + norm_blocks_of(owned_gradients_[i]));
    with_types(basis_.options.dtype, basis_.options.has_narrow_gradients, [&]<class Scalar, class Grad>() {
      const auto grads = arena_.array<const Grad>(basis_.arrays.grads);
      kernels::SquareNorm<Exec, Grad>{.x = Kokkos::subview(grads, std::make_pair(first, first + count)),
                                      .partial = Kokkos::subview(norm_partial_, blocks),
                                      .total = {}}
          .launch_blocks(exec);
    });
    done = blocks.second;
  }
  const int shards = basis_.sharing.ownership.shards();  // ranks that hold the same part: all their shares are added up
  kernels::SquareNormTotal<Exec>{.partial = Kokkos::subview(norm_partial_, std::make_pair(std::size_t{0}, done)),
                                 .total = kernels::Value<double, Exec>(&state_.data()->norm_squared),
                                 .scale = shards == 1 ? 1.0 : static_cast<double>(shards) / basis_.batch.ranks}
      .launch(exec);
}

void Update::launch(const Exec& exec, std::size_t chunk, int slot) const {
  const config::Optimizer& o = settings_.optimizer;
  const ArrayTensors& t = basis_.arrays;
  with_update_types(basis_, arena_.layout(), [&]<class Scalar, class Grad, class Moment, bool kHasMaster>() {
    optim::with_rule(o.kind, [&]<class Rule>() {
      constexpr bool is_one_array = kernels::MasterWeights<Exec, Scalar>::kIsOneArray;
      using Real = Accum<Scalar>;
      using Master = kernels::MasterWord<Scalar>;
      kernels::WeightUpdate<Rule, Exec, Scalar, Grad, Moment, kHasMaster> update{
          .blocks = {},
          .master = array_in<Master>(is_one_array ? t.params : t.master, slot),
          .param = is_one_array ? kernels::Vector<Scalar, Exec>{} : array_in<Scalar>(t.params, slot),
          .grad = arena_.array<const Grad>(t.grads),
          .moments = {},
          .scalars = kernels::Value<const kernels::UpdateScalars, Exec>(&state_.data()->update),
          .keys = {o.beta1, o.beta2, static_cast<Real>(o.eps), static_cast<Real>(o.weight_decay)}};
      for (std::size_t i = 0; i < t.moments.size(); ++i) {
        update.moments[i] = array_in<Moment>(t.moments[i].tensor, slot);
      }
      for (const BlockRange& range : launches_[chunk]) {
        update.blocks = Kokkos::subview(blocks_, range);
        update.launch(exec);
      }
    });
  });
}

/// The chunk in a slot; an array that stays on the device, whole.
template <class Number>
kernels::Vector<Number, kernels::Device> Update::array_in(memory::TensorId home, int slot) const {
  const StagedTensors& staged = basis_.arrays.staged;
  if (home == memory::kAbsent || !staged.holds(home)) return arena_.array<Number>(home);
  const kernels::Vector<Number, Exec> slots = arena_.array<Number>(staged.slots_of(home));
  const std::size_t count = slots.size() / staged.slots;
  return kernels::Vector<Number, Exec>(slots.data() + slot * count, count);
}

}  // namespace tessera::train
