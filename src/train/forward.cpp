#include "train/forward.hpp"  // the contract is there; here is how

#include <fmt/format.h>

#include <algorithm>
#include <vector>
#include "kernels/core/ranges.hpp"
#include "kernels/core/words.hpp"
#include "kernels/gemm/gemm.hpp"
#include "model/initial_values.hpp"
#include "model/transformer.hpp"
#include "train/choices.hpp"
#include "train/graph.hpp"

namespace tessera::train {

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
                               .target = machine.target}};
  memory::Layout& layout = plan.layout;
  const memory::Lifetime whole = memory::Lifetime::whole_run();
  plan.params = layout.add_flat("params", model::parts_of(plan.table, "params."), dtype, memory::Category::parameters,
                                whole, memory::Space::device);
  plan.loss = layout.add("loss", {1}, Dtype::fp64, memory::Category::workspace, whole);
  plan.tokens = declare_host_tensors("tokens", batch.micro_sequences, shape.T, false, layout);
  plan.activations = model::declare_activations(shape, plan.options, layout);
  // The copy engines' receive buffer exists from the start; NCCL allocates its own in the first sum, which never comes.
  const std::int64_t receive = collectives_bytes(settings.parallel, ranks, machine).receive;
  if (receive > 0) layout.add_outside("the copy engines' receive buffer", receive);
  if (settings.train.tune_gemm) {
    const std::int64_t largest = largest_product(shape, batch, plan.activations);
    const std::int64_t bytes = kernels::gemm_timing_bytes(machine.target, largest * bytes_of(dtype));
    if (bytes > 0) layout.add_outside("GEMMs timed in the first pass", bytes);
  }
  layout.place();
  return plan;
}

std::string describe(const ForwardPlan& plan) {
  const BatchPlan& b = plan.batch;
  return fmt::format(
      "forward    passes alone: no gradients, no optimizer, nothing kept for backward\n"
      "{}batch      {} x {} tokens on {}, at most {} at a time\nattention  {}{}\n{}",
      model_text(plan.shape, plan.table), counted(b.global_sequences, "sequence"), plan.shape.T,
      counted(b.ranks, "rank"), counted(b.micro_sequences, "sequence"), describe(plan.options.attention),
      products_text(plan.options.attention, plan.options.dtype, plan.options.math, plan.options.target),
      plan.layout.table());
}

namespace {

using Exec = kernels::Device;

template <class Scalar>
class Forward final : public Validator {
 public:
  Forward(const ForwardPlan& plan, const config::Settings& settings, const parallel::World& world, std::uint64_t seed)
      : plan_(plan),
        world_(world),
        records_graph_(settings.train.graph),
        arena_(plan.layout),
        weights_(arena_.data<Scalar>(plan.params)),
        loss_(arena_.data<double>(plan.loss)),
        transformer_(plan.shape, plan.table, plan.activations, plan.options, arena_,
                     model::places_in<Scalar, Accum<Scalar>>(plan.table, weights_, nullptr)) {
    model::initialize_weights(exec_, plan.table, seed, weights_);
  }
  ~Forward() override { exec_.fence(); }

  ValidationSum validate(const data::Sampler& sampler, std::int64_t windows) override {
    const auto [first, last, most] = share_of(windows, world_.rank(), world_.size());
    const std::int64_t T = plan_.shape.T;
    const HostTokens tokens = tokens_in(arena_, plan_.tokens);
    std::vector<std::int32_t> row(T + 1);
    const ranges::Range range("validation");
    Kokkos::deep_copy(exec_, loss_, 0.0);
    for (std::int64_t window = first; window < last;) {
      const int sequences = static_cast<int>(std::min<std::int64_t>(plan_.batch.micro_sequences, last - window));
      exec_.fence();  // the previous tokens have been copied
      tokens.fill(sequences, [&](int i) { return sampler.fill_validation(window + i, row), std::span(row); });
      run(tokens, sequences);
      window += sequences;
    }
    double sum = 0;
    Kokkos::deep_copy(exec_, Kokkos::View<double, Kokkos::HostSpace, kernels::Unmanaged>(&sum), loss_);
    exec_.fence();
    return {sum, static_cast<double>((last - first) * T)};
  }

 private:
  void enqueue(const HostTokens& tokens, int sequences) {
    load_batch(exec_, transformer_, tokens, plan_.shape.T, 0, sequences);
    transformer_.forward(exec_, model::Pass::inference, hooks_);
    transformer_.head(exec_, loss_, {}, false, hooks_);
  }

  /// Only whole micro-batches are captured.
  void run(const HostTokens& tokens, int sequences) {
    if (!records_graph_ || sequences < plan_.batch.micro_sequences) return enqueue(tokens, sequences);
    graph_.run(exec_, [&] { enqueue(tokens, sequences); });
  }

  const ForwardPlan& plan_;
  const parallel::World& world_;
  const bool records_graph_;
  const Exec exec_{};
  const memory::Arena arena_;
  Scalar* const weights_;  // [parameters]
  const kernels::Value<double, Exec> loss_;
  model::Transformer<Scalar> transformer_;
  model::Hooks hooks_;
  StepGraph graph_;
};

}  // namespace

std::unique_ptr<Validator> make_forward(const ForwardPlan& plan, const config::Settings& settings,
                                        const parallel::World& world, std::uint64_t seed) {
  kernels::set_gemm_selection(selection_of(settings.train));
  switch (plan.options.dtype) {
    case Dtype::fp64: return std::make_unique<Forward<double>>(plan, settings, world, seed);
    case Dtype::fp16: return std::make_unique<Forward<float16>>(plan, settings, world, seed);
    case Dtype::bf16: return std::make_unique<Forward<bfloat16>>(plan, settings, world, seed);
    default: return std::make_unique<Forward<float>>(plan, settings, world, seed);
  }
}

}  // namespace tessera::train
