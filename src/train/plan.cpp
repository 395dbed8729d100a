#include "train/plan.hpp"

#include <fmt/format.h>

#include "errors.hpp"
#include "kernels/core/words.hpp"
#include "model/generate.hpp"
#include "parallel/collectives/mpi.hpp"
#include "train/optimizer_step.hpp"
#include "train/pipeline.hpp"

namespace tessera::train {

using memory::Category;
using memory::kAbsent;
using memory::Lifetime;

namespace {

/// Bytes of host memory that a rank's collectives over MPI take (parallel/collectives/mpi.hpp).
struct MpiBytes {
  std::int64_t staging = 0, sums = 0;  // ours; the library's
};

/// `sent`: the dtype of gradients on the network.
MpiBytes mpi_bytes(const Plan& plan, Dtype sent) {
  const Sharing& sharing = plan.sharing;
  const parallel::Ownership& o = sharing.ownership;
  const bool is_staged = !plan.options.target.is_host;  // besides reduce-scatters, which always are
  const std::int64_t all = o.whole_count() * bytes_of(sent);
  if (!sharing.is_sharded() || o.shards() == 1) {
    return {.staging = is_staged ? parallel::staging_bytes(all) : 0, .sums = parallel::mpi_sum_bytes(all, false)};
  }
  std::int64_t largest = 0, part = 0;
  for (int unit = 0; unit < o.units(); ++unit) {
    part = std::max(part, o.part(unit) * bytes_of(sent));
    largest = std::max(largest, (o.padded(unit) + (is_staged ? o.part(unit) : 0)) * bytes_of(sent));
    if (is_staged) largest = std::max(largest, o.padded(unit) * bytes_of(plan.options.dtype));
  }
  MpiBytes bytes{.staging = parallel::staging_bytes(largest), .sums = parallel::mpi_sum_bytes(all, true)};
  if (o.shards() < plan.batch.ranks) {  // a communicator of its own for sums over the replicas
    if (is_staged) bytes.staging += parallel::staging_bytes(part);
    bytes.sums += parallel::mpi_sum_bytes(o.owned_count() * bytes_of(sent), false);
  }
  return bytes;
}

/// Bytes of the largest result of a matrix product: an activation, or a weight's gradient in fp32.
std::int64_t largest_product_bytes(const Plan& plan) {
  const model::Shape& s = plan.shape;
  const std::int64_t activation = largest_product(s, plan.batch, plan.activations);
  const std::int64_t weight = std::max({3 * s.C, 2 * s.F, s.V}) * s.C;
  return std::max(activation * bytes_of(plan.options.dtype), weight * bytes_of(Dtype::fp32));
}

}  // namespace

std::int64_t largest_product(const model::Shape& s, const BatchPlan& batch, const model::ActivationTensors& tensors) {
  return std::max(batch.micro_sequences * s.T * std::max(3 * s.C, 2 * s.F), tensors.chunk_rows * s.V);
}

CollectivesBytes collectives_bytes(const config::Parallel& choice, int ranks, const Machine& machine) {
  if (!machine.has_nccl || ranks == 1 || choice.collectives == config::Collectives::mpi) return {};
  // What NCCL 2.28 allocates with its first collectives on 2 and 4 GPUs, beyond what connecting took; each communicator
  // is taken to need as much: that of all ranks and, in groups, those of a rank's shards and of its replicas.
  constexpr std::int64_t kNcclBytes = std::int64_t{490} << 20;
  const bool has_groups = forms_groups(choice, ranks);
  const bool has_ring = choice.transfers == config::Transfers::ring || has_groups || !machine.reaches_peers;
  if (has_ring) return {.receive = 0, .nccl = (has_groups ? 3 : 1) * kNcclBytes};
  // With copy engines NCCL only broadcasts the initial weights, if every rank keeps all (Trainer::initialize).
  const bool broadcasts = shards_of(choice, ranks) == 1 && choice.offload == config::Offload::none;
  return {.receive = parallel::receive_bytes(ranks), .nccl = broadcasts ? kNcclBytes : 0};
}

Plan plan_training(const config::Settings& settings, Dtype dtype, int ranks, const Machine& machine) {
  const model::Shape shape = shape_of(settings.model);
  const BatchPlan batch = plan_batch(settings.train, settings.parallel, ranks);
  const bool is_narrow = settings.precision.gradients == config::GradientPrecision::bf16;
  if (is_narrow && batch.micro_steps > 1) {
    throw Failure(Exit::usage,
                  "precision.gradients = \"bf16\" would round the sum after each of {} micro-steps; use one "
                  "(train.micro_batch_size = {}), or set precision.gradients = \"fp32\"",
                  batch.micro_steps, batch.sequences_of(0));
  }
  const Dtype gradients = is_narrow ? Dtype::bf16 : dtype == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32;
  const bool has_wire = ranks > 1 && settings.precision.reduce == config::ReducePrecision::bf16 && !is_narrow;
  const model::ParamTable table(shape);
  Plan plan{{.shape = shape,
             .table = table,
             .batch = batch,
             .optimizer = optim::traits_of(settings.optimizer.kind),
             .options = {.sequences = batch.micro_sequences,
                         .dtype = dtype,
                         .for_training = true,
                         .checkpoint_blocks = settings.train.checkpoint_activations,
                         .attention = choose_attention(settings.attention, dtype, shape.D(), machine),
                         .math = math_of(settings.precision.compute),
                         .has_narrow_gradients = is_narrow,
                         .is_fused = settings.train.fused,
                         .target = machine.target,
                         .recomputes_attention = settings.train.recompute == config::Recompute::all},
             .sharing = share_units(settings.parallel, table, ranks)}};
  require_whole_matrices(plan.optimizer, plan.sharing, settings.parallel.offload);
  const CollectivesBytes collectives = collectives_bytes(settings.parallel, ranks, machine);
  memory::Layout& layout = plan.layout;
  plan.arrays = declare_arrays(plan, settings, gradients, has_wire, layout);
  const config::Background background = settings.checkpoint.background;
  const bool copies_by_itself = settings.checkpoint.every > 0 && !machine.target.is_host;
  if (settings.job.kind == config::JobKind::train &&
      (background == config::Background::automatic ? copies_by_itself : background == config::Background::on)) {
    declare_copy(plan, plan.arrays, layout);
  }
  plan.cleared = declare_cleared(plan.table, plan.sharing, layout);
  plan.update = declare_update(plan, collectives.receive > 0, layout);
  plan.numbers = declare_numbers(dtype, settings.train, layout);
  for (int i = 0; i < Pipeline::kMaxStarted; ++i) {
    const std::int64_t sequences = std::int64_t{batch.micro_steps} * batch.micro_sequences;
    plan.slots.push_back(declare_host_tensors("step." + std::to_string(i), sequences, shape.T, true, layout));
  }
  plan.validation = declare_host_tensors("validation", batch.micro_sequences, shape.T, false, layout);
  plan.activations = model::declare_activations(shape, plan.options, layout);
  if (collectives.nccl > 0) layout.add_outside("an estimate for NCCL", collectives.nccl);
  if (ranks > 1 && collectives.receive + collectives.nccl == 0) {
    const memory::Space space = machine.target.is_host ? memory::Space::device : memory::Space::host;
    const MpiBytes mpi = mpi_bytes(plan, has_wire ? Dtype::bf16 : gradients);
    if (mpi.staging > 0) layout.add_outside("staging for MPI", mpi.staging, space);
    layout.add_outside("an estimate for MPI's sums", mpi.sums, space);
  }
  if (collectives.receive > 0) layout.add_outside("the copy engines' receive buffer", collectives.receive);
  // The sampled text's GEMMs are not timed, so the two never coexist and the larger counts.
  const std::int64_t timing =
      settings.train.tune_gemm ? kernels::gemm_timing_bytes(machine.target, largest_product_bytes(plan)) : 0;
  const model::GenerateKernels kernels = generate_kernels(settings, dtype, shape.D(), machine);
  const std::int64_t sampling = settings.train.sample_tokens > 0 ? model::generation_bytes(shape, dtype, kernels) : 0;
  if (timing > sampling) {
    layout.add_outside("GEMMs timed in the first step", timing);
  } else if (sampling > 0) {
    layout.add_outside("the sampled text at the end", sampling);
  }
  layout.place();
  return plan;
}

double step_flop(const Plan& plan) {
  const model::Shape& s = plan.shape;
  const double tokens = static_cast<double>(plan.batch.global_sequences * s.T);
  const double multiplied = static_cast<double>(plan.table.parameter_count() - s.V * s.C);
  return tokens * (6 * multiplied + 6.0 * static_cast<double>(s.L * s.C * s.T));
}

bool leaves_squares(const Plan& plan) {
  const Sharing& sharing = plan.sharing;
  if (!plan.update.has_squares) return false;
  if (sharing.ownership.shards() == 1) return !sharing.is_sharded();
  return plan.batch.micro_steps == 1 || !sharing.shards_gradients();
}

std::int64_t checkpoint_bytes(const Plan& plan) {
  return plan.table.parameter_count() * 4 * (1 + std::ssize(plan.arrays.moments));
}

std::int64_t offloaded_bytes(const Plan& plan) {
  std::int64_t bytes = 0;
  for (const StagedArray& array : plan.arrays.staged.arrays) bytes += plan.layout[array.home].bytes;
  return bytes;
}

std::int64_t slots_bytes(const Plan& plan) {
  std::int64_t bytes = 0;
  for (const StagedArray& array : plan.arrays.staged.arrays) bytes += plan.layout[array.slots].bytes;
  return bytes;
}

UploadedBytes uploaded_bytes(const Plan& plan) {
  UploadedBytes bytes;
  if (!plan.arrays.staged.holds(plan.arrays.params)) return bytes;
  const model::Segments segments{plan.shape.L, plan.options.checkpoint_blocks};
  const Gathers gathers = gathers_of(plan.table, plan.sharing, segments);
  const auto part = [&](int unit) {
    return static_cast<double>(plan.sharing.ownership.part(unit) * bytes_of(plan.options.dtype));
  };
  for (const int unit : gathers.first) {
    const bool is_first = bytes.first < static_cast<double>(plan.layout[plan.arrays.params].bytes);
    (is_first ? bytes.first : bytes.later) += part(unit);  // a step begins with each unit once
  }
  for (const int unit : gathers.later) bytes.later += (plan.batch.micro_steps - 1) * part(unit);
  return bytes;
}

NetworkBytes network_bytes(const Plan& plan) {
  NetworkBytes bytes;
  const int ranks = plan.batch.ranks;
  if (ranks == 1) return bytes;
  const Sharing& sharing = plan.sharing;
  const parallel::Ownership& o = sharing.ownership;
  const ArrayTensors& t = plan.arrays;
  const bool is_narrow = t.wire != kAbsent || !t.unit_wires.empty();
  const std::int64_t gradient = is_narrow ? bytes_of(Dtype::bf16) : bytes_of(plan.layout[t.grads].dtype);
  const auto share = [](int of) { return static_cast<double>(of - 1) / of; };  // of a span that a rank sends
  if (!sharing.is_sharded()) {
    bytes.gradients = static_cast<double>(o.whole_count() * gradient);
    bytes.all_reduce = 2 * share(ranks) * bytes.gradients;
    return bytes;
  }
  const int shards = o.shards(), times = sharing.shards_gradients() ? plan.batch.micro_steps : 1;
  bytes.gradients = times * static_cast<double>(o.whole_count() * gradient);
  const std::int64_t weight = bytes_of(plan.options.dtype);
  if (sharing.shards_weights()) {
    const model::Segments segments{plan.shape.L, plan.options.checkpoint_blocks};
    const Gathers gathers = gathers_of(plan.table, sharing, segments);
    for (const int unit : gathers.first) bytes.weights += static_cast<double>(o.padded(unit) * weight);
    for (const int unit : gathers.later) {
      bytes.weights += (plan.batch.micro_steps - 1) * static_cast<double>(o.padded(unit) * weight);
    }
  } else {
    bytes.weights = static_cast<double>(o.whole_count() * weight);
  }
  if (shards == 1) bytes.weights = 0;  // they come from the rank's own host
  bytes.reduce_scatter = share(shards) * bytes.gradients;
  bytes.all_gather = share(shards) * bytes.weights;
  bytes.all_reduce = 2 * share(ranks / shards) * static_cast<double>(o.owned_count() * gradient);
  return bytes;
}

/// Notes on what the deck schedules after the last step. Not an error: runs are often shortened to try something.
std::string unreached(const config::Settings& settings) {
  const std::int64_t steps = settings.train.steps, warmup = settings.optimizer.warmup_steps;
  std::string text;
  if (steps < warmup) {
    text += fmt::format("note       the run ends within its warm-up: train.steps = {}, optimizer.warmup_steps = {}\n",
                        steps, warmup);
  }
  for (const std::int64_t step : settings.trace.profile_steps) {
    if (step <= steps) continue;
    text +=
        fmt::format("note       the run ends before step {} of trace.profile_steps: train.steps = {}\n", step, steps);
  }
  return text;
}

/// What crosses the network in a step, and how the ranks share their state; "" on one rank.
std::string describe_network(const Plan& plan) {
  if (plan.batch.ranks == 1) return "";
  const Sharing& sharing = plan.sharing;
  const NetworkBytes bytes = network_bytes(plan);
  const int shards = sharing.ownership.shards();
  std::string text;
  if (sharing.is_sharded()) {
    const int copies = plan.batch.ranks / shards;
    text += shards == 1 ? "sharing    nothing is sharded: each rank has its weights on its host\n"
                        : fmt::format("sharing    {} in {}{}\n", name_of(sharing.shard), counted(shards, "part"),
                                      copies > 1 ? fmt::format(", {} times over", copies) : "");
  }
  text += fmt::format("network    {} of gradients per step", memory::readable_bytes(bytes.gradients));
  if (bytes.weights > 0) text += fmt::format(", {} of weights gathered", memory::readable_bytes(bytes.weights));
  text += fmt::format("; each rank sends and receives {}\n", memory::readable_bytes(bytes.sent()));
  std::string parts;
  for (const auto& [name, count] : {std::pair{"all-reduce", bytes.all_reduce},
                                    {"reduce-scatter", bytes.reduce_scatter},
                                    {"all-gather", bytes.all_gather}}) {
    if (count > 0) parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, memory::readable_bytes(count));
  }
  return text + fmt::format("           by {}\n", parts);
}

std::string model_text(const model::Shape& s, const model::ParamTable& table) {
  return fmt::format(
      "model      {} parameters: vocabulary {}, context {}, d_model {}, layers {}, heads {} x {}, d_ff {}\n",
      table.parameter_count(), s.V, s.T, s.C, s.L, s.H, s.D(), s.F);
}

std::string describe(const Plan& plan, const config::Settings& settings) {
  const model::Shape& s = plan.shape;
  const BatchPlan& b = plan.batch;
  std::string text = model_text(s, plan.table);
  text += fmt::format("batch      {} x {} tokens = {} x {} x {}{}\n", counted(b.global_sequences, "sequence"), s.T,
                      counted(b.ranks, "rank"), counted(b.micro_steps, "micro-step"),
                      counted(b.micro_sequences, "sequence"), b.is_even() ? "" : " at most (uneven)");
  text += fmt::format("attention  {}{}, {}\n", describe(plan.options.attention),
                      products_text(plan.options.attention, plan.options.dtype, plan.options.math, plan.options.target),
                      plan.options.attention.deterministic ? "sums in a fixed order" : "sums of backward in any order");
  text += plan.layout.table();
  const double step = step_flop(plan);
  const bool is_run = settings.job.kind == config::JobKind::train;
  text += fmt::format(
      "work       {:.3g} flop per step{}\n", step,
      is_run ? fmt::format(", {:.3g} in all ({})", step * settings.train.steps, counted(settings.train.steps, "step"))
             : "");
  text += describe_network(plan);
  if (settings.parallel.shard != config::Shard::none && !plan.sharing.is_sharded()) {
    text += plan.batch.ranks > 1
                ? "note       parallel.shard_ranks = 1: each rank keeps everything, as with parallel.shard = \"none\"\n"
                : "note       parallel.shard shards nothing: this is one rank alone (scripts/run -n 2 starts two)\n";
  }
  if (plan.batch.ranks == 1 && settings.precision.reduce == config::ReducePrecision::bf16 &&
      settings.precision.gradients != config::GradientPrecision::bf16) {
    text += "note       precision.reduce rounds nothing: this is one rank alone (scripts/run -n 2 starts two)\n";
  }
  if (const std::int64_t bytes = offloaded_bytes(plan); bytes > 0) {
    const UploadedBytes uploaded = uploaded_bytes(plan);
    const double weights = uploaded.first + uploaded.later;
    text += fmt::format(
        "offload    {} of optimizer state{} on the host; each step streams it through the device and back, "
        "{}\n",
        memory::readable_bytes(bytes), weights > 0 ? " and weights" : "",
        updates_early(plan, settings) ? "half under backward, half under the next forward" : "under the next forward");
    text += fmt::format("           in {} of {} at most, of which {} are on the device at a time ({})\n",
                        counted(chunk_count(plan.sharing.ownership.owned_count()), "chunk"),
                        memory::readable_bytes(slots_bytes(plan) / plan.arrays.staged.slots), plan.arrays.staged.slots,
                        memory::readable_bytes(slots_bytes(plan)));
    if (weights > 0)
      text += fmt::format("           and copies {} of weights to the device\n", memory::readable_bytes(weights));
  }
  if (is_run)
    text += fmt::format("checkpoint {} on disk{}\n{}", memory::readable_bytes(checkpoint_bytes(plan)),
                        plan.arrays.copy != kAbsent ? ", written in the background" : "", unreached(settings));
  return text;
}

}  // namespace tessera::train
