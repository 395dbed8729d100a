#include "train/plan_time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include "train/optimizer_step.hpp"

namespace tessera::train {
namespace {

double real(std::int64_t count) { return static_cast<double>(count); }

/// TFLOP/s from the row with the widest heads no wider than the plan's and, among those, the longest sequences no
/// longer than its, or else the shortest. A table of one row says nothing about other widths.
double attention_rate(std::span<const kernels::AttentionRate> rows, const Plan& plan) {
  const kernels::AttentionChoice& choice = plan.options.attention;
  if (plan.options.dtype != Dtype::bf16 || choice.kind != kernels::AttentionKind::flash2 ||
      choice.forward != choice.backward || choice.backward == kernels::Engine::portable ||
      (rows.size() == 1 && rows[0].head_width != plan.shape.D()))
    return 0;
  const kernels::AttentionRate* best = nullptr;
  for (const kernels::AttentionRate& row : rows) {
    if (row.is_wgmma != (choice.backward == kernels::Engine::wgmma) || row.head_width > plan.shape.D()) continue;
    const bool is_longer = row.length > plan.shape.T;
    if (best == nullptr || row.head_width > best->head_width || !is_longer) best = &row;  // rows rise
  }
  return best == nullptr ? 0 : 1e12 * 3.5 / (1 / best->forward + 2.5 / best->backward);
}

Rates shipped(const config::Settings& settings, const Plan& plan, const Machine& machine) {
  Rates rates;
  const kernels::Gpu* gpu = gpu_of(settings.plan.device);
  if (gpu == nullptr) return rates;
  const kernels::MeasuredRates& measured = gpu->rates;
  if (plan.options.dtype == Dtype::bf16) rates.gemm.value = measured.gemm_bf16;
  rates.attention.value = attention_rate(measured.attention, plan);
  rates.copy.value = measured.copy;
  const int shards = plan.sharing.ownership.shards();  // groups of ranks go by the ring
  const bool is_copied = machine.reaches_peers && settings.parallel.transfers != config::Transfers::ring &&
                         (shards == 1 || shards == plan.batch.ranks);
  rates.link.value = is_copied ? measured.copy_engines : measured.ring;
  return rates;
}

Rate given_or(double given, Rate otherwise) { return given > 0 ? Rate{given, Rate::Source::given} : otherwise; }

/// Of one adapter, each way.
double gbit_per_s(config::Network network) {
  constexpr double rates[] = {0, 100, 200, 400, 800, 200, 400, 800};  // none; Ethernet; hdr, ndr, xdr
  return rates[static_cast<int>(network)];
}

/// The most that a rank can send to other hosts: its share of an adapter.
Rate network_rate(const config::PlanSettings& keys, int ranks) {
  const std::int64_t on_host = keys.ranks_per_node > 0 ? std::min<std::int64_t>(ranks, keys.ranks_per_node) : ranks;
  const std::int64_t sharers = keys.network_per == config::NetworkPer::rank ? 1 : on_host;
  return {1e9 / 8 * gbit_per_s(keys.network) / real(sharers), Rate::Source::nominal};
}

const char* name_of(Rate::Source source) {
  constexpr const char* names[] = {"measured", "given", "nominal"};
  return names[static_cast<int>(source)];
}

/// Bytes per element of a tensor; 0 of one that is not there.
double width_of(const Plan& plan, memory::TensorId id) {
  return id == memory::kAbsent ? 0.0 : real(bytes_of(plan.layout[id].dtype));
}

/// The rate at which a rank sends in a group with `on_host` ranks on each host; 0: all on one. A ring leaves each host
/// once, so its sending rank gets the bandwidth shares of all; within a host it goes no faster than the link.
Rate rate_of_group(const Rates& rates, std::int64_t on_host) {
  if (on_host == 0) return rates.link;
  Rate rate = rates.node_link;
  rate.value *= real(on_host);
  return on_host > 1 && rates.link.value > 0 && rates.link.value < rate.value ? rates.link : rate;
}

double over(double work, const Rate& rate) { return work > 0 ? work / rate.value : 0; }

Rates rates_of(const config::Settings& settings, const Plan& plan, const Machine& machine) {
  const config::PlanSettings& keys = settings.plan;
  const Rates measured = shipped(settings, plan, machine);
  return {.gemm = given_or(1e12 * keys.gemm_tflops, measured.gemm),
          .attention = given_or(1e12 * keys.attention_tflops, measured.attention),
          .copy = given_or(1e9 * keys.copy_gbyte_per_s, measured.copy),
          .link = given_or(1e9 * keys.link_gbyte_per_s, measured.link),
          .node_link = given_or(1e9 * keys.node_link_gbyte_per_s, network_rate(keys, plan.batch.ranks)),
          .host_link = given_or(1e9 * keys.host_link_gbyte_per_s, measured.host_link)};
}

Spread spread_of(const Plan& plan, const config::PlanSettings& keys) {
  const std::int64_t here = keys.ranks_per_node;
  if (here == 0 || plan.batch.ranks <= here) return {};
  // Ranks of one copy are neighbours (Sharing::shard_of).
  const std::int64_t shards = plan.sharing.ownership.shards();
  return {.shards = here % shards != 0 ? std::min(here, shards) : 0,
          .replicas = std::max<std::int64_t>(here / shards, 1)};
}

/// The keys of unknown rates that the passes need.
std::vector<std::string> missing_rates(const Plan& plan, const Rates& rates, const Spread& spread) {
  std::vector<std::string> keys;
  const auto want = [&](const Rate& rate, const char* key) {
    if (rate.value == 0) keys.emplace_back(key);
  };
  want(rates.gemm, "plan.gemm_tflops");
  want(rates.attention, "plan.attention_tflops");
  want(rates.copy, "plan.copy_gbyte_per_s");
  const NetworkBytes bytes = network_bytes(plan);
  const double shards = bytes.reduce_scatter + bytes.all_gather;
  if ((shards > 0 && spread.shards == 0) || (bytes.all_reduce > 0 && spread.replicas == 0))
    want(rates.link, "plan.link_gbyte_per_s");
  if ((shards > 0 && spread.shards > 0) || (bytes.all_reduce > 0 && spread.replicas > 0)) {
    want(rates.node_link, "plan.node_link_gbyte_per_s");
  }
  return keys;
}

/// Without offloaded state.
void predict_passes(const Plan& plan, const config::Parallel& parallel, StepTime& time) {
  const Rates& rates = time.rates;
  const StepWork work = step_work(plan);
  time.forward_s = over(work.forward_gemm_flop, rates.gemm) + over(work.forward_attention_flop, rates.attention) +
                   over(work.forward_bytes, rates.copy);
  time.backward_s = over(work.backward_gemm_flop, rates.gemm) + over(work.backward_attention_flop, rates.attention) +
                    over(work.backward_bytes, rates.copy);
  time.optimizer_s = over(work.optimizer_bytes, rates.copy);

  const Sharing& sharing = plan.sharing;
  const parallel::Ownership& o = sharing.ownership;
  const NetworkBytes bytes = network_bytes(plan);
  const Rate to_shards = rate_of_group(rates, time.spread.shards);
  const Rate to_replicas = rate_of_group(rates, time.spread.replicas);
  const double scatters_s = over(bytes.reduce_scatter, to_shards);
  const double sums_s = over(bytes.all_reduce, to_replicas), gradients_s = scatters_s + sums_s;
  const double weights_s = over(bytes.all_gather, to_shards);
  time.communication_s = gradients_s + weights_s;
  time.exposed_s = 0;
  if (time.communication_s == 0) return;

  // The embedding's gradient is ready last, and its weights are read first: no computation overlaps their transfers.
  const double embedding = real(o.padded(0)) / real(o.whole_count()), micro_steps = plan.batch.micro_steps;
  const double last_s = embedding * (scatters_s / (sharing.shards_gradients() ? micro_steps : 1) + sums_s);
  const double first_s =
      bytes.weights == 0 ? 0 : weights_s * real(o.padded(0)) * real(bytes_of(plan.options.dtype)) / bytes.weights;
  const double last_backward_s = time.backward_s / micro_steps, first_forward_s = time.forward_s / micro_steps;
  switch (sharing.shard) {
    case config::Shard::none: {
      const bool waits = parallel.gradient_sync == config::GradientSync::flat ||
                         parallel.gradient_sync == config::GradientSync::per_parameter;
      time.exposed_s = waits ? gradients_s : std::max(last_s, gradients_s - last_backward_s);
      break;
    }
    case config::Shard::optimizer:
      time.exposed_s = std::max(last_s, gradients_s - last_backward_s) + std::max(first_s, weights_s - first_forward_s);
      break;
    case config::Shard::gradients:
      time.exposed_s = std::max(last_s, gradients_s - time.backward_s) + std::max(first_s, weights_s - first_forward_s);
      break;
    case config::Shard::parameters:
      time.exposed_s = std::max(first_s + last_s, time.communication_s - time.forward_s - time.backward_s);
      break;
  }
}

/// What the link to the host adds to the passes.
void predict_streams(const Plan& plan, const config::Settings& settings, StepTime& time) {
  const double bytes_per_s = time.rates.host_link.value;
  const double update_s = real(offloaded_bytes(plan)) / bytes_per_s;
  const UploadedBytes uploaded = uploaded_bytes(plan);
  const double early_s = updates_early(plan, settings) ? update_s / 2 : 0;
  // The update streams beside the first forward and the last backward pass; weights stream beside every pass.
  const auto micro_steps = static_cast<double>(plan.batch.micro_steps), between = 2 * micro_steps - 2;
  const double weights_s = uploaded.later / bytes_per_s / (between + 1);  // of each pass but the first
  double first_s = update_s - early_s + uploaded.first / bytes_per_s;
  const double last_s = early_s + weights_s;
  time.streams_s = first_s + between * weights_s + last_s;
  const double forward_s = time.forward_s / micro_steps, backward_s = time.backward_s / micro_steps;
  if (!settings.train.graph && !plan.arrays.staged.holds(plan.arrays.params)) {  // under the first backward pass
    const double free_s = std::max(0.0, backward_s - (between > 0 ? weights_s : last_s));
    first_s -= std::min({real(slots_bytes(plan)) / bytes_per_s, free_s, first_s});
  }
  time.step_s = std::max(forward_s, first_s) +
                std::max((micro_steps - 1) * (forward_s + backward_s), between * weights_s) +
                std::max(backward_s, last_s) + time.exposed_s;
}

}  // namespace

const kernels::Gpu* gpu_of(config::PlanDevice device) {
  constexpr const char* names[] = {"", "", "A100", "H100", "H200"};  // here and cpu are none
  const std::string_view name = names[static_cast<int>(device)];
  return name.empty() ? nullptr : kernels::find_gpu(name);
}

StepWork step_work(const Plan& plan) {
  const model::Shape& s = plan.shape;
  const double V = real(s.V), T = real(s.T), C = real(s.C), L = real(s.L), F = real(s.F);
  const double tokens = real(plan.batch.sequences_of(0)) * T;
  const double multiplied = real(plan.table.parameter_count()) - V * C;  // the embedding multiplies nothing
  const double blocks = L * (4 * C * C + 3 * C * F);
  const double recomputed = plan.options.checkpoint_blocks > 0 ? 1 : 0;
  const double attention_recomputed = plan.options.recomputes_attention ? recomputed : 0;
  const double width = real(bytes_of(plan.options.dtype));
  const double block_elements = 12 * C + 3 * F;  // two norms with residual 4C each, rope 4C, swiglu 3F
  StepWork work;
  work.forward_gemm_flop = tokens * 2 * blocks;
  work.backward_gemm_flop = tokens * (6 * multiplied - 2 * blocks + recomputed * 2 * blocks);
  work.forward_attention_flop = tokens * L * 2 * C * T;
  work.backward_attention_flop = tokens * L * (5 + attention_recomputed * 2) * C * T;
  work.forward_bytes = tokens * width * (L * block_elements + 2 * C);
  work.backward_bytes = tokens * width * (L * (12 * C + 6 * F + recomputed * block_elements) + 10 * C + 2 * V);
  const ArrayTensors& t = plan.arrays;
  double updated = width_of(plan, t.params) + width_of(plan, t.master);
  for (const MomentTensor& moment : t.moments) updated += width_of(plan, moment.tensor);
  const double reads = leaves_squares(plan) ? 1 : 2;  // of each gradient
  work.optimizer_bytes = real(plan.sharing.ownership.owned_count()) * (2 * updated + reads * width_of(plan, t.grads));
  return work;
}

StepTime predict_step(const Plan& plan, const config::Settings& settings, const Machine& machine) {
  StepTime time{.rates = rates_of(settings, plan, machine), .spread = spread_of(plan, settings.plan), .missing = {}};
  time.missing = missing_rates(plan, time.rates, time.spread);
  if (time.missing.empty()) {
    predict_passes(plan, settings.parallel, time);
    time.step_s = time.forward_s + time.backward_s + time.exposed_s + time.optimizer_s;
  }
  if (offloaded_bytes(plan) == 0) return time;
  if (time.rates.host_link.value == 0) {
    time.missing.emplace_back("plan.host_link_gbyte_per_s");
    time.step_s = NAN;
  } else {
    predict_streams(plan, settings, time);
  }
  return time;
}

std::string describe_time(const Plan& plan, const config::Settings& settings, const Machine& machine) {
  const StepTime time = predict_step(plan, settings, machine);
  const Rates& rates = time.rates;
  const Spread& spread = time.spread;
  const bool is_offloaded = offloaded_bytes(plan) > 0;
  if (const std::vector<std::string>& missing = time.missing; !missing.empty()) {
    const bool wants_network = std::find(missing.begin(), missing.end(), "plan.node_link_gbyte_per_s") != missing.end();
    return fmt::format(
        "time       not predicted: no figure for {} ships with this device, dtype and attention; set {} "
        "to what was measured there{}{}\n",
        fmt::join(missing, ", "), missing.size() == 1 ? "it" : "them", wants_network ? ", or name plan.network" : "",
        is_offloaded && rates.host_link.value == 0 ? " (a run with parallel.offload prints its link's)" : "");
  }
  const double tokens = real(plan.batch.global_sequences * plan.shape.T);
  const auto ms = [](double seconds) {
    return seconds < 1 ? fmt::format("{:.4g}", 1e3 * seconds) : fmt::format("{:.0f}", 1e3 * seconds);
  };
  std::string text = fmt::format("time       {} ms per step: forward {}, backward {}, ", ms(time.step_s),
                                 ms(time.forward_s), ms(time.backward_s));
  if (plan.batch.ranks > 1) {
    text += fmt::format("exposed communication {} of {}, ", ms(time.exposed_s), ms(time.communication_s));
  }
  text += is_offloaded ? fmt::format("beside them {} on the link to the host", ms(time.streams_s))
                       : fmt::format("optimizer {}", ms(time.optimizer_s));
  text += fmt::format("; {:.0f} tokens/s\n", tokens / time.step_s);
  text += "rates     ";
  const auto add = [&](const char* name, const Rate& rate, double unit, const char* unit_name) {
    if (rate.value == 0) return;
    text += fmt::format(" {} {:.4g} {} ({}),", name, rate.value / unit, unit_name, name_of(rate.source));
  };
  add("products", rates.gemm, 1e12, "TFLOP/s");
  add("attention", rates.attention, 1e12, "TFLOP/s");
  add("copy", rates.copy, 1e9, "GB/s");
  if (plan.batch.ranks > 1) {
    if (spread.shards == 0 || spread.replicas == 0) add("link", rates.link, 1e9, "GB/s");
    if (spread.shards > 0 || spread.replicas > 0) add("link between hosts", rates.node_link, 1e9, "GB/s");
  }
  if (is_offloaded) text += fmt::format(" link to the host {:.4g} GB/s,", 1e-9 * rates.host_link.value);
  text.back() = '\n';
  return text;
}

}  // namespace tessera::train
