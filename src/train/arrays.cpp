#include "train/arrays.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <string_view>

#include "kernels/core/round_up.hpp"

namespace tessera::train {

using memory::Category;
using memory::kAbsent;
using memory::Lifetime;

namespace {

/// The whole spans to clear in each unit. [units]
std::vector<std::vector<kernels::ClearSpan>> cleared_spans(const model::ParamTable& table, const Sharing& sharing) {
  const parallel::Ownership& o = sharing.ownership;
  std::vector<std::vector<kernels::ClearSpan>> of_unit;
  auto param = table.params().begin();  // in the order of the units
  for (int unit = 0; unit < o.units(); ++unit) {
    const std::int64_t begin = sharing.shards_gradients() ? 0 : o.whole_first(unit);
    std::vector<kernels::ClearSpan>& spans = of_unit.emplace_back();
    std::int64_t end = 0;  // of the tensors so far, from the start of the unit
    for (; param != table.params().end() && param->unit == unit; ++param) {
      const std::int64_t first = param->first - o[unit].first;
      if (sharing.shards_gradients() && first > end) spans.push_back({begin + end, first - end});
      if (model::is_added_to(*param)) spans.push_back({begin + first, param->count});
      end = first + param->count;
    }
    if (sharing.shards_gradients() && o.padded(unit) > end) spans.push_back({begin + end, o.padded(unit) - end});
  }
  return of_unit;
}

}  // namespace

memory::Lifetime transit_of(const BatchPlan& batch, const model::ParamTable& table) {
  if (batch.micro_steps > 1) return Lifetime::whole_run();
  const model::Timeline time{static_cast<int>(table.units().size())};
  return {time.backward(time.units - 1, 0), time.update()};
}

ArrayTensors declare_arrays(const Basis& basis, const config::Settings& settings, Dtype gradients, bool has_wire,
                            memory::Layout& layout) {
  const model::ParamTable& table = basis.table;
  const Sharing& sharing = basis.sharing;
  const Dtype dtype = basis.options.dtype, real = dtype == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32;
  const Dtype moments = settings.precision.moments == config::MomentPrecision::bf16 ? Dtype::bf16 : real;
  const auto whole = Lifetime::whole_run();
  const parallel::Ownership& o = sharing.ownership;
  const bool offloads_optimizer = settings.parallel.offload != config::Offload::none;
  const bool offloads_weights = settings.parallel.offload == config::Offload::parameters;
  const auto array = [&](const std::string& label, std::int64_t count, Dtype kept, Category category) {
    const bool is_on_host = (offloads_optimizer && category == Category::optimizer) ||
                            (offloads_weights && category == Category::parameters);
    const memory::Space space = is_on_host ? memory::Space::host : memory::Space::device;
    if (o.shards() == 1)
      return layout.add_flat(label, model::parts_of(table, label + "."), kept, category, whole, space);
    std::vector<memory::Part> parts;  // units: a rank's part of one may begin and end inside a tensor
    for (int unit = 0; unit < o.units(); ++unit) {
      parts.push_back({label + "." + o[unit].label, count == o.owned_count() ? o.part(unit) : o.padded(unit)});
    }
    return layout.add_flat(label, std::move(parts), kept, category, whole, space);
  };
  const auto in_places = [&](const std::string& label, const std::vector<int>& places, Dtype kept, Category category,
                             Lifetime life) {
    std::vector<memory::TensorId> ids;
    for (const std::int64_t count : sharing.sizes_of(places)) {
      ids.push_back(layout.add(fmt::format("{}.{}", label, ids.size()), {count}, kept, category, life));
    }
    return ids;
  };
  ArrayTensors t;
  t.params = array("params", sharing.weights_count(), dtype, Category::parameters);
  if (sharing.shards_weights()) {
    t.gathered = in_places("params.gathered", sharing.weights_places, dtype, Category::parameters, whole);
  }
  if (dtype == Dtype::bf16 && settings.precision.master == config::MasterPrecision::fp32)
    t.master = array("optimizer.master_low", o.owned_count(), dtype, Category::optimizer);
  if (dtype == Dtype::fp16) t.master = array("optimizer.master", o.owned_count(), Dtype::fp32, Category::optimizer);
  t.grads = array("grads", sharing.gradients_count(), gradients, Category::gradients);
  if (sharing.shards_gradients()) {
    const Lifetime transit = transit_of(basis.batch, table);
    t.unit_grads = in_places("grads.unit", sharing.gradient_places, gradients, Category::gradients, transit);
    if (has_wire) {
      t.unit_wires = in_places("grads.wire", sharing.gradient_places, Dtype::bf16, Category::gradients, transit);
    }
  } else if (has_wire) {
    t.wire = layout.add("grads.wire", {o.whole_count()}, Dtype::bf16, Category::gradients, whole);
  }
  std::vector<memory::TensorId> updated;
  for (const std::string_view name : basis.optimizer.moments) {
    updated.push_back(array(fmt::format("optimizer.{}", name), o.owned_count(), moments, Category::optimizer));
    t.moments.push_back({fmt::format("moments/{}", name), updated.back()});
  }
  updated.insert(updated.end(), {t.master, t.params});
  if (offloads_optimizer) t.staged = declare_staged(updated, settings.parallel.offload_slots, o.owned_count(), layout);
  return t;
}

void declare_copy(const Basis& basis, ArrayTensors& arrays, memory::Layout& layout) {
  const int ranks = basis.batch.ranks, shards = basis.sharing.ownership.shards();
  const auto bytes_in = [&](std::initializer_list<memory::TensorId> parts, std::int64_t count) {
    std::int64_t bytes = 0;
    for (const memory::TensorId id : parts) {
      if (id != kAbsent) bytes += kernels::round_up(count * bytes_of(layout[id].dtype), kPartBytes);
    }
    return bytes;
  };
  std::int64_t most = 0;
  for (int shard = 0; shard < shards; ++shard) {
    const std::vector<OwnedSpan> spans = owned_spans(basis.table, basis.sharing, shard);
    std::vector<std::int64_t> saved;  // bytes of each part, in the order of State::saved
    for (const OwnedSpan& span : spans) saved.push_back(bytes_in({arrays.params, arrays.master}, span.count));
    for (const MomentTensor& moment : arrays.moments) {
      for (const OwnedSpan& span : spans) saved.push_back(bytes_in({moment.tensor}, span.count));
    }
    for (int rank = shard; rank < ranks; rank += shards) {
      std::int64_t bytes = 0;
      for (std::size_t i = 0; i < saved.size(); ++i) bytes += saves(basis.sharing, ranks, rank, i) ? saved[i] : 0;
      most = std::max(most, bytes);
    }
  }
  arrays.copy = layout.add("checkpoint.copy", {most / 4}, Dtype::int32, Category::data, Lifetime::whole_run(),
                           memory::Space::host);
}

NumberTensors declare_numbers(Dtype weights, const config::Train& train, memory::Layout& layout) {
  const Dtype real = weights == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32;
  const auto add = [&](const char* label, std::int64_t count, Dtype dtype) {
    return layout.add(label, {count}, dtype, Category::workspace, Lifetime::whole_run());
  };
  NumberTensors t;
  t.state = add("step.state", sizeof(optim::StepState) / 8, Dtype::fp64);
  t.grad_scale = add("step.grad_scale", 1, real);
  t.validation_loss = add("step.validation_loss", 1, Dtype::fp64);
  if (train.spike_deviations > 0) t.norms = add("step.norms", train.spike_window, Dtype::fp64);
  return t;
}

memory::TensorId declare_cleared(const model::ParamTable& table, const Sharing& sharing, memory::Layout& layout) {
  std::int64_t pieces = 0;  // counted, not made: a large model's would take gigabytes
  for (const std::vector<kernels::ClearSpan>& spans : cleared_spans(table, sharing)) {
    for (const kernels::ClearSpan& span : spans) pieces += kernels::cleared_pieces(span.count);
  }
  return layout.add("grads.cleared", {pieces, sizeof(kernels::ClearSpan) / 4}, Dtype::int32,
                    memory::Category::workspace, memory::Lifetime::whole_run());
}

ClearLists clear_lists(const model::ParamTable& table, const Sharing& sharing) {
  ClearLists lists;
  for (const std::vector<kernels::ClearSpan>& spans : cleared_spans(table, sharing)) {
    const std::vector<kernels::ClearSpan> pieces = kernels::cut_spans(spans);
    lists.of_unit.emplace_back(lists.spans.size(), lists.spans.size() + pieces.size());
    lists.spans.insert(lists.spans.end(), pieces.begin(), pieces.end());
  }
  return lists;
}

HostTensors declare_host_tensors(const std::string& label, std::int64_t sequences, std::int64_t T, bool has_scalars,
                                 memory::Layout& layout) {
  const auto add = [&](const char* name, std::vector<std::int64_t> shape, Dtype dtype) {
    return layout.add(label + name, std::move(shape), dtype, memory::Category::data, memory::Lifetime::whole_run(),
                      memory::Space::host);
  };
  HostTensors t;
  t.inputs = add(".inputs", {sequences, T}, Dtype::int32);
  t.targets = add(".targets", {sequences, T}, Dtype::int32);
  if (has_scalars) t.scalars = add(".scalars", {sizeof(optim::StepState) / 8}, Dtype::fp64);
  return t;
}

}  // namespace tessera::train
