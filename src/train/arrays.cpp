#include "train/arrays.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "optim/step_state.hpp"

namespace tessera::train {

using memory::Category;
using memory::kAbsent;
using memory::Lifetime;

memory::Lifetime transit_of(const BatchPlan& batch, const model::ParamTable& table) {
  if (batch.micro_steps > 1) return Lifetime::whole_run();
  const model::Timeline time{static_cast<int>(table.units().size())};
  return {time.backward(time.units - 1, 0), time.update()};
}

ArrayTensors declare_arrays(const model::ParamTable& table, const Sharing& sharing, const BatchPlan& batch,
                            const Storage& storage, memory::Layout& layout) {
  const Dtype dtype = storage.weights;
  const auto whole = Lifetime::whole_run();
  const parallel::Ownership& o = sharing.ownership;
  const bool offloads_optimizer = storage.offload != config::Offload::none;
  const bool offloads_weights = storage.offload == config::Offload::parameters;
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
  t.master = kAbsent;
  if (dtype == Dtype::bf16 && storage.has_master)
    t.master = array("optimizer.master_low", o.owned_count(), dtype, Category::optimizer);
  if (dtype == Dtype::fp16) t.master = array("optimizer.master", o.owned_count(), Dtype::fp32, Category::optimizer);
  t.grads = array("grads", sharing.gradients_count(), storage.gradients, Category::gradients);
  t.wire = kAbsent;
  if (sharing.shards_gradients()) {
    const Lifetime transit = transit_of(batch, table);
    t.unit_grads = in_places("grads.unit", sharing.gradient_places, storage.gradients, Category::gradients, transit);
    if (storage.has_wire) {
      t.unit_wires = in_places("grads.wire", sharing.gradient_places, Dtype::bf16, Category::gradients, transit);
    }
  } else if (storage.has_wire) {
    t.wire = layout.add("grads.wire", {o.whole_count()}, Dtype::bf16, Category::gradients, whole);
  }
  std::vector<memory::TensorId> updated;
  for (const std::string_view name : storage.optimizer.moments) {
    updated.push_back(array(fmt::format("optimizer.{}", name), o.owned_count(), storage.moments, Category::optimizer));
    t.moments.push_back({fmt::format("moments/{}", name), updated.back()});
  }
  updated.insert(updated.end(), {t.master, t.params});
  if (offloads_optimizer) t.staged = declare_staged(updated, storage.offload_slots, o.owned_count(), layout);
  return t;
}

NumberTensors declare_numbers(Dtype weights, memory::Layout& layout) {
  const Dtype real = weights == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32;
  const auto add = [&](const char* label, std::int64_t count, Dtype dtype) {
    return layout.add(label, {count}, dtype, Category::workspace, Lifetime::whole_run());
  };
  NumberTensors t;
  t.state = add("step.state", sizeof(optim::StepState) / 8, Dtype::fp64);
  t.grad_scale = add("step.grad_scale", 1, real);
  t.validation_loss = add("step.validation_loss", 1, Dtype::fp64);
  return t;
}

}  // namespace tessera::train
