#include "train/exchange.hpp"

#include <string>
#include <utility>
#include <vector>

#include "optim/step_state.hpp"
#include "parallel/collectives/collective.hpp"
#include "parallel/strategies/sharded.hpp"

namespace tessera::train {
namespace {

using memory::Arena;

parallel::NormSpans norm_spans(const Plan& plan, const Arena& arena) {
  optim::StepState* const state = optim::state_at(arena.data<double>(plan.numbers.state)).data();
  return {.total = {kNormLabel, &state->norm_squared, 1, Dtype::fp64},
          .squares =
              plan.update.has_squares ? span_of(arena, plan.update.norm_partial, "norm2.partial") : parallel::Span{}};
}

std::unique_ptr<parallel::Strategy> make_replicated(const Plan& plan, const config::Settings& settings,
                                                    parallel::World& world, const kernels::Device& exec,
                                                    const Arena& arena) {
  std::vector<parallel::Span> gradients;
  if (world.size() > 1) {
    const std::vector<memory::Part> parts = model::parts_of(plan.table, "grad.");
    std::int64_t first = 0;
    for (const memory::Part& part : parts) {
      gradients.push_back(span_of(arena, plan.arrays.grads, part.label).part(first, part.count));
      first += part.count;
    }
  }
  return std::make_unique<parallel::Replicated>(world.collectives(), exec, gradients, order_of(settings.parallel),
                                                span_of(arena, plan.arrays.wire, "grads.wire"),
                                                norm_spans(plan, arena));
}

std::vector<parallel::UnitMemory> unit_memory(const Plan& plan, const parallel::World& world, const Arena& arena) {
  const Sharing& sharing = plan.sharing;
  const parallel::Ownership& o = sharing.ownership;
  const ArrayTensors& t = plan.arrays;
  const int shard = sharing.shard_of(world.rank());
  std::vector<parallel::UnitMemory> memory(static_cast<std::size_t>(o.units()));
  for (int unit = 0; unit < o.units(); ++unit) {
    parallel::UnitMemory& m = memory[unit];
    const std::string weights = "params." + o[unit].label, grads = "grad." + o[unit].label;
    const std::int64_t whole = o.whole_first(unit), owned = o.owned_first(unit);
    const std::int64_t padded = o.padded(unit), part = o.part(unit);
    m.weights_place = sharing.weights_places[unit];
    m.gradient_place = sharing.gradient_places[unit];
    if (sharing.shards_weights()) {
      m.weights = span_of(arena, t.gathered[m.weights_place], weights).part(0, padded);
      m.own_weights = span_of(arena, t.params, weights).part(owned, part);
      if (t.staged.holds(t.params)) {
        m.host_weights = m.own_weights;
        m.own_weights = m.weights.part(shard * part, part);
      }
    } else {
      m.weights = span_of(arena, t.params, weights).part(whole, padded);
      m.own_weights = span_of(arena, t.params, weights).part(whole + shard * part, part);
    }
    if (sharing.shards_gradients()) {
      m.gradient = span_of(arena, t.unit_grads[m.gradient_place], grads).part(0, padded);
      m.own_gradient = span_of(arena, t.grads, grads).part(owned, part);
      if (!t.unit_wires.empty()) m.wire = span_of(arena, t.unit_wires[m.gradient_place], grads).part(0, padded);
    } else {
      m.gradient = span_of(arena, t.grads, grads).part(whole, padded);
      m.own_gradient = span_of(arena, t.grads, grads).part(whole + shard * part, part);
      if (t.wire != memory::kAbsent) m.wire = span_of(arena, t.wire, grads).part(whole, padded);
    }
  }
  return memory;
}

}  // namespace

parallel::GradientOrder order_of(const config::Parallel& keys) {
  using enum parallel::GradientOrder::Grouping;
  using enum parallel::GradientOrder::Start;
  const auto bucket_bytes = static_cast<std::int64_t>(keys.bucket_mbyte * 1e6);
  switch (keys.gradient_sync) {
    case config::GradientSync::per_parameter: return {parameter, after_backward, 0};
    case config::GradientSync::flat: return {all, after_backward, 0};
    case config::GradientSync::overlap: return {parameter, when_ready, 0};
    case config::GradientSync::bucket: break;
  }
  return {bucket, when_ready, bucket_bytes};
}

kernels::StreamPriority priority_of(const config::Parallel& keys, const parallel::Collectives& collectives) {
  const bool keeps_whole_weights = keys.shard == config::Shard::optimizer || keys.shard == config::Shard::gradients;
  const bool yields = keys.shard == config::Shard::none && collectives.can_yield();
  const bool is_raised = yields || keeps_whole_weights || keys.offload != config::Offload::none;
  return is_raised ? kernels::StreamPriority::raised : kernels::StreamPriority::lowest;
}

std::unique_ptr<parallel::Strategy> make_exchange(const Plan& plan, const config::Settings& settings,
                                                  parallel::World& world, const kernels::Device& exec,
                                                  const Arena& arena, OptimizerStep& optimizer) {
  const Sharing& sharing = plan.sharing;
  if (!sharing.is_sharded()) return make_replicated(plan, settings, world, exec, arena);
  parallel::ShardedOptions options{.shards_gradients = sharing.shards_gradients(),
                                   .shards_weights = sharing.shards_weights(),
                                   .prefetch = sharing.prefetch,
                                   .micro_steps = plan.batch.micro_steps,
                                   .openings = openings_of(plan.table, {plan.shape.L, plan.options.checkpoint_blocks}),
                                   .poisons = plan.poisons_closed_units};
  if (sharing.ownership.shards() > 1) options.norm = norm_spans(plan, arena);  // else each rank has all gradients
  if (optimizer.is_deferred()) {
    options.await_update = [&optimizer](const kernels::Device& instance, int unit) { optimizer.await(instance, unit); };
  }
  for (const model::Param& param : plan.table.params()) options.unit_of_param.push_back(param.unit);
  return std::make_unique<parallel::Sharded>(world.collectives(), exec, sharing.ownership,
                                             unit_memory(plan, world, arena), std::move(options));
}

}  // namespace tessera::train
