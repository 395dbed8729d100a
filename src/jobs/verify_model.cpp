/// The verify.model job: logits, loss and every gradient of one batch, for comparison with another implementation.
///
///   job.input    tokens [B,T+1] int32 and params/<label> float32 (labels and shapes: model/params.hpp);
///                or, instead of params, a root attribute `checkpoint` with the path of a checkpoint's folder
///   job.output   logits [B,T,V], loss (mean over all tokens, nats), grads/<label> float32
///
/// The model's sizes are the deck's. precision.compute chooses the storage type, [attention] the kernel, as for
/// training; with fp16 the backward pass is scaled by precision.initial_loss_scale. Runs on rank 0.
///
/// Refuses  precision.gradients = "bf16" (exit 2), and gradients of fp16 that overflow (exit 5).

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <type_traits>

#include "io/checkpoint.hpp"
#include "io/h5.hpp"
#include "jobs/checkpoints.hpp"
#include "jobs/directory.hpp"
#include "jobs/jobs.hpp"
#include "jobs/scalars.hpp"
#include "jobs/memory.hpp"
#include "kernels/core/cast_copy.hpp"
#include "memory/arena.hpp"
#include "model/transformer.hpp"
#include "train/plan.hpp"

namespace tessera::jobs {
namespace {

using Exec = kernels::Device;

std::vector<float> read_params(const io::h5::File& input, const model::ParamTable& table,
                               const config::Settings& settings) {
  const std::string& path = settings.job.input;
  std::vector<float> flat(table.flat_count(), 0.0f);
  std::optional<io::CheckpointReader> checkpoint;
  if (input.has_attribute("checkpoint")) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path() / input.text("checkpoint");
    checkpoint.emplace(io::open_checkpoint(folder, {}, "attribute checkpoint = "));
    require_model_of(checkpoint->state(), settings);
  }
  for (const model::Param& param : table.params()) {
    const std::span<float> target(flat.data() + param.first, param.count);
    const io::h5::Shape shape =
        checkpoint ? checkpoint->shape("params", param.label) : input.dataset("params/" + param.label).shape();
    if (shape != param.shape) {
      throw Failure(Exit::files, "{}: params/{} is [{}], the deck's model needs [{}]; give the deck the file's sizes",
                    path, param.label, fmt::join(shape, ","), fmt::join(param.shape, ","));
    }
    if (checkpoint) {
      checkpoint->read("params", param.label, target);
    } else {
      const io::h5::Dataset weights = input.dataset("params/" + param.label);
      weights.require_contents();
      weights.read(target);
    }
  }
  if (checkpoint) checkpoint->require_unchanged();
  return flat;
}

template <class Scalar>
void verify(const Context& context) {
  using Real = Accum<Scalar>;
  const config::Settings& settings = context.settings();
  const std::string path = result_path(context, "model.h5");
  const io::h5::File input = io::h5::File::open(settings.job.input);
  input.dataset("tokens").require_contents();
  const io::h5::Shape token_shape = input.dataset("tokens").shape();
  const model::Shape shape = train::shape_of(settings.model);
  if (token_shape.size() != 2 || token_shape[0] < 1 || token_shape[1] < 2 || token_shape[1] - 1 > shape.T) {
    throw Failure(Exit::files, "{}: tokens must be [B,T+1] with 1 <= T <= model.context_length = {}, is [{}]",
                  settings.job.input, shape.T, fmt::join(token_shape, ","));
  }
  const std::vector<std::int32_t> tokens = input.dataset("tokens").values<std::int32_t>();
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= shape.V) {
      throw Failure(Exit::files, "{}: token {} is not in the vocabulary of {}", settings.job.input, token, shape.V);
    }
  }
  const int B = static_cast<int>(token_shape[0]), T = static_cast<int>(token_shape[1]) - 1, N = B * T;

  // 1. one arena: parameters, gradients, activations, two scalars
  const model::ParamTable table(shape);
  memory::Layout layout;
  const auto whole = memory::Lifetime::whole_run();
  const memory::TensorId params_id =
      layout.add("params", {table.flat_count()}, kDtype<Scalar>, memory::Category::parameters, whole);
  const memory::TensorId grads_id =
      layout.add("grads", {table.flat_count()}, kDtype<Real>, memory::Category::gradients, whole);
  const memory::TensorId scale_id = layout.add("grad_scale", {1}, kDtype<Real>, memory::Category::workspace, whole);
  const memory::TensorId loss_id = layout.add("loss", {1}, Dtype::fp64, memory::Category::workspace, whole);
  model::ActivationOptions options{.sequences = B,
                                   .dtype = kDtype<Scalar>,
                                   .for_training = true,
                                   .checkpoint_blocks = settings.train.checkpoint_activations,
                                   .attention = train::choose_attention(settings.attention, kDtype<Scalar>, shape.D()),
                                   .is_fused = settings.train.fused,
                                   .recomputes_attention = settings.train.recompute == config::Recompute::all};
  options.math = train::math_of(settings.precision.compute);
  const model::ActivationTensors tensors = model::declare_activations(shape, options, layout);
  if (kernels::kIsHost<Exec>) {
    layout.add_outside("weights and logits in fp32", 4 * (table.flat_count() + std::int64_t{N} * shape.V));
  }
  layout.place();
  require_memory(layout, {}, "\nfewer sequences in `tokens` need less");
  const memory::Arena arena(layout);

  // 2. weights and tokens
  const Exec exec;
  const std::vector<float> params_h = read_params(input, table, settings);
  const auto params_f = Kokkos::create_mirror_view_and_copy(
      exec, Kokkos::View<const float*, Kokkos::HostSpace, kernels::Unmanaged>(params_h.data(), params_h.size()));
  const kernels::Vector<Scalar, Exec> params(arena.data<Scalar>(params_id), params_h.size());
  kernels::CastCopy<Exec, float, Scalar>{params_f, params}.launch(exec);
  kernels::Vector<Real, Exec> grads(arena.data<Real>(grads_id), table.flat_count());
  Kokkos::deep_copy(exec, grads, Real(0));
  const kernels::Value<Real, Exec> scale(arena.data<Real>(scale_id));
  const kernels::Value<double, Exec> loss(arena.data<double>(loss_id));
  const double loss_scale = std::is_same_v<Scalar, float16> ? settings.precision.initial_loss_scale : 1.0;
  Kokkos::deep_copy(exec, scale, static_cast<Real>(loss_scale / N));
  Kokkos::deep_copy(exec, loss, 0.0);
  model::Transformer<Scalar> transformer(shape, table, tensors, options, arena,
                                         model::places_in<Scalar, Real>(table, params.data(), grads.data()));
  transformer.set_batch(B, T);
  std::vector<int> inputs(N), targets(N);
  for (int b = 0; b < B; ++b) {
    for (int t = 0; t < T; ++t) {
      inputs[b * T + t] = tokens[b * (T + 1) + t];
      targets[b * T + t] = tokens[b * (T + 1) + t + 1];
    }
  }
  using HostInts = Kokkos::View<const int*, Kokkos::HostSpace, kernels::Unmanaged>;
  Kokkos::deep_copy(exec, transformer.inputs(), HostInts(inputs.data(), inputs.size()));
  Kokkos::deep_copy(exec, transformer.targets(), HostInts(targets.data(), targets.size()));

  // 3. forward, logits chunk by chunk, backward
  model::Hooks no_hooks;  // one rank holds every weight
  transformer.forward(exec, model::Pass::forward, no_hooks);
  std::vector<float> logits(std::int64_t{N} * shape.V);
  for (int first = 0; first < N; first += transformer.chunk_rows()) {
    const int count = std::min(transformer.chunk_rows(), N - first);
    const auto chunk_h =
        Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), transformer.logits(exec, first, count));
    for (int row = 0; row < count; ++row) {
      for (int v = 0; v < shape.V; ++v)
        logits[(std::int64_t{first} + row) * shape.V + v] = static_cast<float>(chunk_h(row, v));
    }
  }
  transformer.head(exec, loss, scale, true, no_hooks);
  transformer.backward(exec, no_hooks);
  exec.fence();

  // 4. the answer
  const auto grads_h = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), grads);
  double loss_sum = 0;
  Kokkos::deep_copy(Kokkos::View<double, Kokkos::HostSpace, kernels::Unmanaged>(&loss_sum), loss);
  if constexpr (std::is_same_v<Scalar, float16>) {
    if (!std::isfinite(loss_sum)) {
      throw Failure(Exit::numbers, "activations overflow in fp16, the loss is {}: use precision.compute = \"bf16\"",
                    without_sign_of_nan(loss_sum / N));
    }
    for (std::size_t i = 0; i < grads_h.size(); ++i) {
      grads_h(i) /= static_cast<Real>(loss_scale);
      if (std::isfinite(grads_h(i))) continue;
      throw Failure(Exit::numbers, "gradients overflow in fp16: lower precision.initial_loss_scale, which is {}",
                    loss_scale);
    }
  }
  write_result(context, path, [&](io::h5::File& output) {
    output.write("logits", {B, T, shape.V}, std::span<const float>(logits), {"1", "logits [B,T,V]"});
    const double mean = loss_sum / N;
    output.write("loss", {}, std::span<const double>(&mean, 1),
                 {"nats per token", "mean cross-entropy over all tokens"});
    for (const model::Param& param : table.params()) {
      const std::span<const float> grad(grads_h.data() + param.first, param.count);
      output.write("grads/" + param.label, param.shape, grad, {"1", "gradient of the mean loss"});
    }
  });
}

}  // namespace

Exit verify_model(const Context& context) {
  context.world.agree_on_root([&] {
    if (context.settings().precision.gradients == config::GradientPrecision::bf16) {
      throw Failure(Exit::usage, "verify.model has gradients in fp32: set precision.gradients = \"fp32\"");
    }
    with_scalar(train::dtype_of(context.settings().precision.compute),
                [&]<class Scalar>() { verify<Scalar>(context); });
  });
  return Exit::finished;
}

}  // namespace tessera::jobs
