// What --plan prints (plan.hpp): the devices it may plan for, and the memory of a rank and of a host.
#include <fmt/format.h>

#include <algorithm>

#include "config/job_traits.hpp"
#include "config/text.hpp"
#include "errors.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/attention/ladder_kernels.hpp"
#include "kernels/core/words.hpp"
#include "model/generate.hpp"
#include "parallel/device.hpp"
#include "parallel/choice.hpp"
#include "train/forward.hpp"
#include "train/plan_time.hpp"

namespace tessera::train {

config::BuildFeatures this_build() {
  config::BuildFeatures build{
      .cuda = kernels::kHere.has_vendor_parts(), .nccl = parallel::kHasNccl, .ladder = kernels::has_ladder_kernels()};
  if (kernels::kHere.is_portable) build.name = "this build (TESSERA_VENDOR=OFF: Kokkos alone)";
  return build;
}

namespace {

std::string device_text(config::PlanDevice device) {
  if (const kernels::Gpu* gpu = gpu_of(device))
    return fmt::format("{}s (plan.device; sm_{})", gpu->name, gpu->capability);
  if (device == config::PlanDevice::cpu) return "CPUs (plan.device)";
  if (parallel::has_gpu_backend()) {
    return fmt::format("GPUs ({}; plan.device=h200 plans with rates that ship)", parallel::compiled_architecture());
  }
  return "CPUs (no CUDA in this build; plan.device=h200 plans for GPUs)";
}

/// A rank's share of its host's or GPU's memory, and whether it fits.
std::string rank_text(std::int64_t bytes, const config::PlanSettings& keys, bool is_on_gpu) {
  if (!is_on_gpu) return fmt::format("per rank   {} ({} bytes)", memory::readable_bytes(bytes), bytes);
  std::string text = fmt::format("per rank   {} of its GPU ({} bytes)", memory::readable_bytes(bytes), bytes);
  if (const kernels::Gpu* gpu = gpu_of(keys.device)) {
    text += fmt::format(": {}, an {} has {} free", bytes <= gpu->free_bytes ? "fits" : "TOO MUCH", gpu->name,
                        memory::readable_bytes(gpu->free_bytes));
  }
  return text;
}

/// The memory of a generation, weights included: it runs on rank 0, without gradients or optimizer.
std::string generation_text(const config::SetUp& set_up, const Machine& machine) {
  const config::Settings& row = set_up.settings;
  const model::Shape shape = shape_of(row.model);
  const model::ParamTable table(shape);
  const Dtype dtype = dtype_of(row.precision.compute);
  const model::GenerationMemory memory(shape, dtype, generate_kernels(row, dtype, shape.D(), machine), set_up.sequences,
                                       table.flat_count() * bytes_of(dtype));
  const std::int64_t bytes = memory.layout.total_bytes();
  return fmt::format("size       {}, {} parameters\nprompts    {} of {} and {} more each\n{}{}\n", row.model.size,
                     table.parameter_count(), set_up.sequences, counted(set_up.prompt_tokens, "token"),
                     shape.T - set_up.prompt_tokens, memory.layout.table(),
                     rank_text(bytes, row.plan, !machine.target.is_host));
}

/// The memory of a rank that runs forward passes alone.
std::string forward_text(const config::Settings& row, int ranks, const Machine& machine) {
  const ForwardPlan plan = plan_forward(row, dtype_of(row.precision.compute), ranks, machine);
  const std::int64_t bytes =
      plan.layout.total_bytes() + (machine.target.is_host ? plan.layout.total_bytes(memory::Space::host) : 0);
  return describe(plan) + rank_text(bytes, row.plan, !machine.target.is_host) + "\n";
}

/// Bytes of weights, gradients and optimizer, and of activations and workspaces.
struct Parts {
  std::int64_t state, activations;
};
Parts parts_of(const Plan& plan) {
  const std::vector<std::int64_t> peaks = plan.layout.peak_by_category();
  const auto peak = [&](memory::Category category) { return peaks[static_cast<std::size_t>(category)]; };
  using memory::Category;
  return {peak(Category::parameters) + peak(Category::gradients) + peak(Category::optimizer),
          peak(Category::activations) + peak(Category::workspace)};
}

/// A rank's memory, whether it fits its GPU, and the sum over the ranks of a host.
std::string sums_text(const Plan& plan, const config::PlanSettings& keys, bool is_on_gpu) {
  const std::int64_t on_device = plan.layout.total_bytes(), on_host = plan.layout.total_bytes(memory::Space::host);
  const std::int64_t ranks = plan.batch.ranks;
  const std::int64_t together = keys.ranks_per_node > 0 ? std::min(ranks, keys.ranks_per_node) : ranks;
  // The bytes may exceed 64 bits.
  const auto of_host = [&](std::int64_t bytes) {
    return memory::readable_bytes(static_cast<double>(together) * static_cast<double>(bytes));
  };
  std::string text = rank_text(is_on_gpu ? on_device : on_device + on_host, keys, is_on_gpu) + "\nper host   ";
  text += is_on_gpu ? fmt::format("{} on {}, {} of host memory", of_host(on_device), counted(together, "GPU"),
                                  of_host(on_host))
                    : of_host(on_device + on_host);
  text += fmt::format(" ({}{})\n", counted(together, "rank"),
                      together < ranks ? fmt::format(" on each of {} hosts{}", kernels::ceil_div(ranks, together),
                                                     ranks % together > 0 ? ", the last with fewer" : "")
                                       : "");
  const Parts parts = parts_of(plan);
  return text +
         fmt::format("of which   {} bytes of weights, gradients and optimizer, {} of activations and workspaces\n",
                     parts.state, parts.activations);
}

/// "train", "bench.step" and "bench.generate"
std::string jobs_with_plans() {
  std::vector<std::string> names;
  for (const config::JobTraits* job : config::all_jobs()) {
    if (job->has_plan()) names.push_back(fmt::format("\"{}\"", job->name));
  }
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : fmt::format("{} and {}", fmt::join(names, ", "), last);
}

int ranks_of(const config::Settings& settings, int started) {
  return settings.parallel.ranks > 0 ? static_cast<int>(settings.parallel.ranks) : started;
}

/// The machine to plan for. Throws as plan_text says.
Machine require_machine(const config::Settings& settings, int started) {
  const config::JobTraits& job = config::traits_of(settings.job.kind);
  if (!job.has_plan()) {
    throw Failure(Exit::usage, "job.kind = \"{}\" has no plan: --plan is for job.kind = {}; run this one without it",
                  job.name, jobs_with_plans());
  }
  const int ranks = ranks_of(settings, started);
  const Machine machine = machine_of(settings.plan, ranks);
  config::check_build(settings,
                      {.cuda = machine.target.has_vendor_parts(), .nccl = machine.has_nccl, .name = machine.build});
  if (!machine.reaches_peers && settings.parallel.transfers == config::Transfers::copy_engine) {
    const std::string why = ranks > parallel::kMaxCopyEngineRanks
                                ? fmt::format("serves {} ranks at most, not {}", parallel::kMaxCopyEngineRanks, ranks)
                                : fmt::format(
                                      "needs all ranks on one host, and plan.ranks_per_node = {} puts {} ranks "
                                      "on several",
                                      settings.plan.ranks_per_node, ranks);
    throw Failure(Exit::usage, "parallel.transfers = \"copy_engine\" {}: set parallel.transfers = \"auto\"", why);
  }
  return machine;
}

}  // namespace

Machine machine_of(const config::PlanSettings& keys, int ranks) {
  Machine machine{.build = std::string(this_build().name)};
  if (const kernels::Gpu* gpu = gpu_of(keys.device)) {
    machine = {.build = fmt::format("a build for {}s", gpu->name),
               .target = kernels::gpu_target(gpu->capability),
               .has_nccl = true};
  } else if (keys.device == config::PlanDevice::cpu) {
    machine = {.build = "a build for CPUs", .target = kernels::kHostTarget, .has_nccl = false};
  }
  machine.reaches_peers =
      ranks <= parallel::kMaxCopyEngineRanks && (keys.ranks_per_node == 0 || ranks <= keys.ranks_per_node);
  return machine;
}

Machine machine_of(parallel::World& world) {
  const parallel::Collectives& collectives = world.collectives();
  return {.has_nccl = parallel::kHasNccl && collectives.is_asynchronous(),
          .reaches_peers = collectives.device_bytes() > 0};
}

config::PlanSettings keys_of_run(config::PlanSettings keys, std::span<const std::string> gpu_models,
                                 std::int64_t ranks_per_host) {
  using config::PlanDevice;
  if (keys.ranks_per_node == 0) keys.ranks_per_node = ranks_per_host;
  if (keys.device != PlanDevice::here) return keys;
  if (gpu_models.empty()) keys.device = PlanDevice::cpu;
  for (const PlanDevice device : {PlanDevice::a100, PlanDevice::h100, PlanDevice::h200}) {
    const auto is_it = [&](const std::string& model) { return kernels::find_gpu(model) == gpu_of(device); };
    if (std::any_of(gpu_models.begin(), gpu_models.end(), is_it)) keys.device = device;
  }
  return keys;
}

std::string plan_text(const config::Settings& settings, int started) {
  const config::JobTraits& job = config::traits_of(settings.job.kind);
  const Machine machine = require_machine(settings, started);
  const int ranks = ranks_of(settings, started);
  const std::string text =
      fmt::format("plan       for {} ({}) on {}\n", counted(ranks, "rank"),
                  settings.parallel.ranks > 0 ? "parallel.ranks" : "as started; parallel.ranks=N plans for N",
                  device_text(settings.plan.device));
  const config::SetUp set_up = job.set_up != nullptr ? job.set_up(settings) : config::SetUp{.settings = settings};
  switch (set_up.memory) {
    case config::SetUp::Memory::steps: {
      const Plan plan = plan_training(settings, dtype_of(settings.precision.compute), ranks, machine);
      return text + describe(plan, settings) + sums_text(plan, settings.plan, !machine.target.is_host) +
             describe_time(plan, settings, machine);
    }
    case config::SetUp::Memory::forward: return text + forward_text(settings, ranks, machine);
    case config::SetUp::Memory::generation: break;
  }
  return text + generation_text(set_up, machine);
}

std::string plan_figures(const config::Settings& settings, int started, std::string_view name) {
  const config::JobTraits& job = config::traits_of(settings.job.kind);
  const Machine machine = require_machine(settings, started);
  const int ranks = ranks_of(settings, started);
  if (job.set_up != nullptr && job.set_up(settings).memory != config::SetUp::Memory::steps) return "";
  const Plan plan = plan_training(settings, dtype_of(settings.precision.compute), ranks, machine);
  const Parts parts = parts_of(plan);
  const std::int64_t on_host = machine.target.is_host ? plan.layout.total_bytes(memory::Space::host) : 0;
  std::string text = fmt::format(
      "[[plan]]\nrow = {}\nranks = {}\nrank_bytes = {}\nstate_bytes = {}\nactivation_bytes = {}\ncheckpoint_bytes = "
      "{}\n",
      config::toml_string(name), ranks, plan.layout.total_bytes() + on_host, parts.state, parts.activations,
      checkpoint_bytes(plan));
  const StepTime time = predict_step(plan, settings, machine);
  if (time.missing.empty()) return text + fmt::format("step_s = {}\n", config::toml_number(time.step_s));
  return text + fmt::format("missing_rates = [\"{}\"]\n", fmt::join(time.missing, "\", \""));
}

std::string build_figures() {
  std::string text = fmt::format("gpu_code = {}\n", config::toml_string(parallel::compiled_architecture()));
  for (const kernels::Gpu& gpu : kernels::kGpus) {
    text +=
        fmt::format("[[gpus]]\nname = {}\ncapability = {}\nprocessors = {}\nfree_bytes = {}\n",
                    config::toml_string(gpu.name), config::toml_string(gpu.capability), gpu.processors, gpu.free_bytes);
    const auto add = [&](const char* name, double value) {
      text += fmt::format("{} = {}\n", name, config::toml_number(value));
    };
    add("fp32_tflops", gpu.fp32);
    add("tf32_tflops", gpu.tf32);
    add("bf16_tflops", gpu.bf16);
    add("fp16_tflops", gpu.fp16);
    add("memory_tbyte_per_s", gpu.memory_tbyte_per_s);
  }
  return text;
}

}  // namespace tessera::train
