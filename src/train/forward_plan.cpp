#include "train/forward_plan.hpp"

#include <fmt/format.h>

#include "kernels/core/words.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera::train {

using memory::Category;
using memory::Lifetime;

ForwardPlan plan_forward(const config::Settings& settings, Dtype dtype, int ranks, const Machine& machine) {
  const model::Shape shape = shape_of(settings.model);
  const BatchPlan batch = plan_batch(settings.train, settings.parallel, ranks);
  ForwardPlan plan{.shape = shape,
                   .table = model::ParamTable(shape),
                   .batch = batch,
                   .options = {.sequences = batch.micro_sequences,
                               .dtype = dtype,
                               .for_training = false,
                               .checkpoint_blocks = 0,
                               .attention = choose_attention(settings.attention, dtype, shape.D(), machine),
                               .math = math_of(settings.precision.compute),
                               .is_fused = settings.train.fused,
                               .target = machine.target},
                   .layout = {},
                   .activations = {},
                   .params = {},
                   .loss = {},
                   .tokens = {}};
  memory::Layout& layout = plan.layout;
  const Lifetime whole = Lifetime::whole_run();
  plan.params = layout.add_flat("params", model::parts_of(plan.table, "params."), dtype, Category::parameters, whole,
                                memory::Space::device);
  plan.loss = layout.add("loss", {1}, Dtype::fp64, Category::workspace, whole);
  plan.tokens = declare_host_tensors("tokens", batch.micro_sequences, shape.T, false, layout);
  plan.activations = model::declare_activations(shape, plan.options, layout);
  // Ranks have their collectives' receive buffer from the beginning; NCCL's own come with a first sum, and there is
  // none.
  const std::int64_t receive = collectives_bytes(settings.parallel, ranks, machine).receive;
  if (receive > 0) layout.add_outside("the copy engines' receive buffer", receive);
  if (settings.train.tune_gemm) {
    const std::int64_t largest = largest_product(shape, batch, plan.activations);
    const std::int64_t bytes = kernels::gemm_timing_bytes(machine.target, largest * bytes_of(dtype));
    if (bytes > 0) layout.add_outside("timing of products, at first", bytes);
  }
  layout.place();
  return plan;
}

std::string describe(const ForwardPlan& plan) {
  const model::Shape& s = plan.shape;
  const BatchPlan& b = plan.batch;
  return fmt::format(
      "forward    passes alone: no gradients, no optimizer, nothing kept for backward\n"
      "model      {} parameters: vocabulary {}, context {}, d_model {}, layers {}, heads {} x {}, d_ff {}\n"
      "batch      {} x {} tokens on {}, at most {} at a time\nattention  {}\n{}",
      plan.table.parameter_count(), s.V, s.T, s.C, s.L, s.H, s.D(), s.F, counted(b.global_sequences, "sequence"), s.T,
      counted(b.ranks, "rank"), counted(b.micro_sequences, "sequence"), describe(plan.options.attention),
      plan.layout.table());
}

}  // namespace tessera::train
