#include "train/plan_time.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "config/rules.hpp"
#include "train/offload.hpp"
#include "unit/train/decks.hpp"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// V 101, T 32, C 64, L 3, F 160: weights of products 3 (4 64^2 + 3 64 160) = 141,312 in blocks, 148,224 with gains and
/// head; 384 tokens in a step.
config::Settings settings() {
  config::Settings s = test::small_deck();
  s.plan.gemm_tflops = 2;
  s.plan.attention_tflops = 0.5;
  s.plan.copy_gbyte_per_s = 100;
  s.plan.link_gbyte_per_s = 10;
  s.plan.node_link_gbyte_per_s = 2;
  return s;
}

const Machine kCpus{.target = kernels::kHostTarget, .has_nccl = false};

Plan plan_of(const config::Settings& s, int ranks) { return plan_training(s, Dtype::fp32, ranks, kCpus); }

StepTime time_of(const config::Settings& s, int ranks) { return predict_step(plan_of(s, ranks), s, kCpus); }

TEST(StepWork, counts_products_attention_and_what_memory_bound_kernels_move) {
  const StepWork work = step_work(plan_of(settings(), 1));
  EXPECT_DOUBLE_EQ(work.forward_gemm_flop, 384.0 * 2 * 141'312);
  EXPECT_DOUBLE_EQ(work.backward_gemm_flop, 384.0 * (6 * 148'224 - 2 * 141'312));
  EXPECT_DOUBLE_EQ(work.forward_attention_flop, 384.0 * 3 * 2 * 64 * 32);
  EXPECT_DOUBLE_EQ(work.backward_attention_flop, 384.0 * 3 * 5 * 64 * 32);
  EXPECT_DOUBLE_EQ(work.forward_bytes, 384.0 * 4 * (3 * (12 * 64 + 3 * 160) + 2 * 64));
  EXPECT_DOUBLE_EQ(work.backward_bytes, 384.0 * 4 * (3 * (12 * 64 + 6 * 160) + 10 * 64 + 2 * 101));
}

TEST(StepWork, together_is_the_flop_of_the_step_and_the_half_of_attention_that_backward_repeats) {
  const Plan plan = plan_of(settings(), 3);
  const StepWork work = step_work(plan);
  const double flop = work.forward_gemm_flop + work.backward_gemm_flop + work.forward_attention_flop * 3;
  EXPECT_DOUBLE_EQ(3 * flop, step_flop(plan));
  EXPECT_DOUBLE_EQ(work.backward_attention_flop, 2.5 * work.forward_attention_flop);
}

TEST(StepWork, of_the_update_is_weights_and_moments_twice_and_the_gradient_for_norm_and_adamw) {
  const Plan one = plan_of(settings(), 1);
  EXPECT_DOUBLE_EQ(step_work(one).optimizer_bytes, static_cast<double>(one.table.flat_count()) * (2 * 12 + 2 * 4));
  config::Settings s = settings();
  s.precision.gradients = config::GradientPrecision::bf16;
  const Plan narrow = plan_training(s, Dtype::bf16, 1, kCpus);
  EXPECT_DOUBLE_EQ(step_work(narrow).optimizer_bytes,
                   static_cast<double>(narrow.table.flat_count()) * (2 * (2 + 2 + 8) + 2 * 2));
  s = settings();
  s.parallel.shard = config::Shard::optimizer;
  const Plan shared = plan_of(s, 3);
  EXPECT_DOUBLE_EQ(step_work(shared).optimizer_bytes, static_cast<double>(shared.sharing.ownership.owned_count()) * 32);
  EXPECT_LT(shared.sharing.ownership.owned_count(), one.table.flat_count() / 2);
  s = settings();
  s.optimizer.kind = config::OptimizerKind::lion;
  EXPECT_DOUBLE_EQ(step_work(plan_of(s, 1)).optimizer_bytes,
                   static_cast<double>(one.table.flat_count()) * (2 * 8 + 2 * 4));
}

TEST(StepWork, recomputation_adds_one_forward_pass_of_the_blocks_to_backward) {
  config::Settings s = settings();
  const StepWork kept = step_work(plan_of(s, 1));
  for (const int every : {1, 2}) {
    s.train.checkpoint_activations = every;
    const StepWork again = step_work(plan_of(s, 1));
    EXPECT_DOUBLE_EQ(again.backward_gemm_flop - kept.backward_gemm_flop, kept.forward_gemm_flop);
    EXPECT_DOUBLE_EQ(again.backward_attention_flop - kept.backward_attention_flop, kept.forward_attention_flop);
    EXPECT_DOUBLE_EQ(again.backward_bytes - kept.backward_bytes, kept.forward_bytes - 384.0 * 4 * 2 * 64);
    EXPECT_DOUBLE_EQ(again.forward_gemm_flop, kept.forward_gemm_flop);
  }
}

TEST(StepWork, attention_that_is_kept_is_not_repeated) {
  config::Settings s = settings();
  const StepWork kept = step_work(plan_of(s, 1));
  s.train.checkpoint_activations = 1;
  s.train.recompute = config::Recompute::all_but_attention;
  const StepWork again = step_work(plan_of(s, 1));
  EXPECT_DOUBLE_EQ(again.backward_gemm_flop - kept.backward_gemm_flop, kept.forward_gemm_flop);
  EXPECT_DOUBLE_EQ(again.backward_attention_flop, kept.backward_attention_flop);
}

TEST(DescribeTime, needs_the_rate_of_the_link_where_the_optimizer_is_offloaded) {
  config::Settings s = settings();
  EXPECT_THAT(describe_time(plan_of(s, 1), s, kCpus), Not(HasSubstr("host")));
  s.parallel.offload = config::Offload::optimizer;
  EXPECT_THAT(describe_time(plan_of(s, 1), s, kCpus), HasSubstr("no figure for plan.host_link_gbyte_per_s ships"));
  s.plan.host_link_gbyte_per_s = 0.5;
  const StepTime time = time_of(s, 1);
  EXPECT_THAT(describe_time(plan_of(s, 1), s, kCpus),
              AllOf(HasSubstr(fmt::format("time       {:.4g} ms per step", 1e3 * time.step_s)),
                    HasSubstr(fmt::format("beside them {:.4g} on the link to the host", 1e3 * time.streams_s)),
                    HasSubstr("link to the host 0.5 GB/s\n")));
}

TEST(KeysOfRun, are_those_of_its_devices_and_hosts_unless_given) {
  using config::PlanDevice;
  using Models = std::vector<std::string>;
  const auto device_of = [](const Models& models) { return keys_of_run({}, models, 0).device; };
  EXPECT_EQ(device_of({}), PlanDevice::cpu);
  EXPECT_EQ(device_of({"NVIDIA H200"}), PlanDevice::h200);
  EXPECT_EQ(device_of({"NVIDIA A100-SXM4-80GB"}), PlanDevice::a100);
  for (const char* other :
       {"a GPU of another make", "NVIDIA GH200 480GB", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-40GB"}) {
    EXPECT_EQ(device_of({other}), PlanDevice::here) << other;
  }
  EXPECT_EQ(keys_of_run({.device = PlanDevice::h100}, Models{"NVIDIA H200"}, 0).device, PlanDevice::h100);
  EXPECT_EQ(keys_of_run({}, {}, 4).ranks_per_node, 4);
  EXPECT_EQ(keys_of_run({.ranks_per_node = 2}, {}, 4).ranks_per_node, 2);
}

TEST(PredictOffloaded, runs_what_the_link_moves_beside_forward_and_backward) {
  const double link = 1e9;  // slow enough for the link, or fast enough for the computation to count
  for (const double bytes_per_s : {link, 1e6 * link}) {
    config::Settings s = settings();
    s.parallel.offload = config::Offload::optimizer;
    s.plan.host_link_gbyte_per_s = 1e-9 * bytes_per_s;
    const Plan clipped = plan_of(s, 1);
    EXPECT_EQ(offloaded_bytes(clipped),
              2 * 4 * clipped.sharing.ownership.owned_count());  // moments; the rest is master
    const StepTime computed = time_of(s, 1);
    const double update_s = static_cast<double>(offloaded_bytes(clipped)) / bytes_per_s;
    StepTime time = predict_step(clipped, s, kCpus);
    EXPECT_DOUBLE_EQ(time.streams_s, update_s);
    const double slots_s = static_cast<double>(slots_bytes(clipped)) / bytes_per_s;
    EXPECT_DOUBLE_EQ(slots_s,
                     3 * 2 * 4 * static_cast<double>(chunk_elements(offloaded_bytes(clipped) / 8)) / bytes_per_s);
    const double moved_s = std::min(slots_s, computed.backward_s);
    EXPECT_DOUBLE_EQ(time.step_s, std::max(computed.forward_s, update_s - moved_s) + computed.backward_s);
    s.train.graph = true;
    time = predict_step(clipped, s, kCpus);
    EXPECT_DOUBLE_EQ(time.step_s, std::max(computed.forward_s, update_s) + computed.backward_s);
    s.train.graph = false;

    config::Settings wide = s;  // every chunk has its slot: what backward leaves time for
    wide.parallel.offload_slots = std::ssize(chunks_of(clipped.sharing.ownership.owned_count()));
    time = predict_step(plan_of(wide, 1), wide, kCpus);
    EXPECT_DOUBLE_EQ(time.step_s, std::max(computed.forward_s, update_s - std::min(update_s, computed.backward_s)) +
                                      computed.backward_s);

    s.optimizer.clip_norm = 0;
    time = time_of(s, 1);
    const double half_s = update_s / 2, beside_s = std::max(computed.backward_s, half_s);
    const double more_s = std::min({slots_s, half_s, beside_s - half_s});
    EXPECT_DOUBLE_EQ(time.step_s, std::max(computed.forward_s, half_s - more_s) + beside_s);

    s.parallel.offload = config::Offload::parameters;
    s.parallel.shard = config::Shard::parameters;
    const Plan streamed = plan_of(s, 1);
    const std::int64_t weights = 4 * streamed.sharing.ownership.owned_count();
    EXPECT_EQ(offloaded_bytes(streamed), 3 * weights);
    const UploadedBytes uploaded = uploaded_bytes(streamed);
    EXPECT_EQ(uploaded.first, static_cast<double>(weights));
    EXPECT_GT(uploaded.later, 0);
    EXPECT_LE(uploaded.later, uploaded.first);
    time = predict_step(streamed, s, kCpus);
    EXPECT_DOUBLE_EQ(time.streams_s,
                     (3.0 * static_cast<double>(weights) + uploaded.first + uploaded.later) / bytes_per_s);
    EXPECT_GE(time.step_s, time.streams_s);
  }
  {  // of several micro-steps only the first forward pass runs beside the update, or the last backward one, too
    config::Settings s = settings();
    s.parallel.offload = config::Offload::optimizer;
    s.train.graph = true;
    s.train.micro_batch_size = s.train.batch_size / 4;
    const StepTime computed = time_of(s, 1);
    const double update_s =
        2 * (computed.forward_s + computed.backward_s + computed.optimizer_s);  // longer than every pass
    s.plan.host_link_gbyte_per_s = 1e-9 * static_cast<double>(offloaded_bytes(plan_of(s, 1))) / update_s;
    const double others_s = 3.0 / 4 * computed.forward_s, backward_s = computed.backward_s;
    EXPECT_NEAR(time_of(s, 1).step_s, update_s + others_s + backward_s, 1e-12 * update_s);
    s.optimizer.clip_norm = 0;
    EXPECT_NEAR(time_of(s, 1).step_s, update_s / 2 + others_s + 3.0 / 4 * backward_s + update_s / 2, 1e-12 * update_s);
  }
  config::Settings unknown = settings();
  unknown.parallel.offload = config::Offload::optimizer;
  unknown.plan.gemm_tflops = 0;
  EXPECT_TRUE(std::isnan(predict_step(plan_of(unknown, 1), unknown, kCpus).step_s));
}

TEST(StepWork, is_that_of_the_rank_with_the_most_sequences) {
  config::Settings s = settings();
  s.train.batch_size = 5;
  s.parallel.allow_uneven = true;
  EXPECT_DOUBLE_EQ(step_work(plan_of(s, 2)).forward_gemm_flop, 3 * 32.0 * 2 * 141'312);
}

TEST(NetworkBytes, belong_to_collectives) {
  config::Settings s = settings();
  const auto bytes_of_ranks = [&](int ranks) { return network_bytes(plan_of(s, ranks)); };
  const auto W = static_cast<double>(plan_of(s, 1).table.flat_count());
  EXPECT_DOUBLE_EQ(bytes_of_ranks(3).all_reduce, 2 * 2.0 / 3 * 4 * W);
  EXPECT_EQ(bytes_of_ranks(3).reduce_scatter + bytes_of_ranks(3).all_gather, 0);
  EXPECT_EQ(bytes_of_ranks(1).sent(), 0);

  s.parallel.shard = config::Shard::gradients;
  s.train.micro_batch_size = 2;  // 2 micro-steps
  const auto padded = static_cast<double>(plan_of(s, 3).sharing.ownership.whole_count());
  EXPECT_DOUBLE_EQ(bytes_of_ranks(3).reduce_scatter, 2.0 / 3 * 2 * 4 * padded);
  EXPECT_DOUBLE_EQ(bytes_of_ranks(3).all_gather, 2.0 / 3 * 4 * padded);
  EXPECT_EQ(bytes_of_ranks(3).all_reduce, 0);

  s.parallel.shard_ranks = 2;  // twice over: halves of the gradients are summed between 3 groups
  s.train.micro_batch_size = 0;
  const auto halves = static_cast<double>(plan_of(s, 6).sharing.ownership.owned_count());
  EXPECT_DOUBLE_EQ(bytes_of_ranks(6).all_reduce, 2 * 2.0 / 3 * 4 * halves);
  EXPECT_DOUBLE_EQ(bytes_of_ranks(6).reduce_scatter, 0.5 * 4 * 2 * halves);
}

TEST(PredictStep, adds_work_over_rates) {
  const StepWork work = step_work(plan_of(settings(), 1));
  const StepTime time = time_of(settings(), 1);
  EXPECT_DOUBLE_EQ(time.forward_s,
                   work.forward_gemm_flop / 2e12 + work.forward_attention_flop / 5e11 + work.forward_bytes / 1e11);
  EXPECT_DOUBLE_EQ(time.backward_s,
                   work.backward_gemm_flop / 2e12 + work.backward_attention_flop / 5e11 + work.backward_bytes / 1e11);
  EXPECT_DOUBLE_EQ(time.optimizer_s, work.optimizer_bytes / 1e11);
  EXPECT_EQ(time.exposed_s, 0);
  EXPECT_DOUBLE_EQ(time.step_s, time.forward_s + time.backward_s + time.optimizer_s);
}

TEST(PredictStep, exposes_all_of_what_waits_for_backward_and_the_rest_of_what_does_not) {
  config::Settings s = settings();
  const double sent = network_bytes(plan_of(s, 2)).all_reduce;
  for (const auto sync : {config::GradientSync::flat, config::GradientSync::per_parameter}) {
    s.parallel.gradient_sync = sync;
    EXPECT_DOUBLE_EQ(time_of(s, 2).exposed_s, sent / 1e10);
  }
  for (const auto sync : {config::GradientSync::overlap, config::GradientSync::bucket}) {
    s.parallel.gradient_sync = sync;
    s.plan.link_gbyte_per_s = 1;  // 0.6 ms, more than backward takes
    const StepTime slow = time_of(s, 2);
    EXPECT_DOUBLE_EQ(slow.exposed_s, sent / 1e9 - slow.backward_s);
    s.plan.link_gbyte_per_s = 1e5;  // the embedding's gradient goes under nothing
    const parallel::Ownership& o = plan_of(s, 2).sharing.ownership;
    const double embedding = static_cast<double>(o.padded(0)) / static_cast<double>(o.whole_count());
    EXPECT_DOUBLE_EQ(time_of(s, 2).exposed_s, embedding * sent / 1e14);
    EXPECT_DOUBLE_EQ(time_of(s, 2).communication_s, sent / 1e14);
  }
}

TEST(PredictStep, sharded_traffic_goes_under_the_passes_that_its_stage_allows) {
  config::Settings s = settings();
  s.train.micro_batch_size = 3;  // 2 micro-steps on 2 ranks
  s.plan.link_gbyte_per_s = 0.5;
  const auto seconds = [](double bytes) { return bytes / 0.5e9; };

  s.parallel.shard = config::Shard::optimizer;
  NetworkBytes bytes = network_bytes(plan_of(s, 2));
  StepTime time = time_of(s, 2);
  EXPECT_DOUBLE_EQ(time.exposed_s, seconds(bytes.reduce_scatter) - time.backward_s / 2 + seconds(bytes.all_gather) -
                                       time.forward_s / 2);

  s.parallel.shard = config::Shard::gradients;
  bytes = network_bytes(plan_of(s, 2));
  time = time_of(s, 2);
  EXPECT_DOUBLE_EQ(time.exposed_s,
                   seconds(bytes.reduce_scatter) - time.backward_s + seconds(bytes.all_gather) - time.forward_s / 2);

  s.parallel.shard = config::Shard::parameters;
  bytes = network_bytes(plan_of(s, 2));
  time = time_of(s, 2);
  EXPECT_DOUBLE_EQ(time.exposed_s, seconds(bytes.sent()) - time.forward_s - time.backward_s);

  s.plan.link_gbyte_per_s = 1e5;  // what is left: the embedding's first gather, and its last gradient
  const double part = static_cast<double>(plan_of(s, 2).sharing.ownership.padded(0)) * 4 / 2;
  EXPECT_DOUBLE_EQ(time_of(s, 2).exposed_s, 2 * part / 1e14);
}

TEST(PredictStep, takes_the_link_between_hosts_for_groups_that_are_on_several) {
  config::Settings s = settings();
  s.plan.ranks_per_node = 2;
  s.parallel.gradient_sync = config::GradientSync::flat;
  EXPECT_DOUBLE_EQ(time_of(s, 2).exposed_s, network_bytes(plan_of(s, 2)).all_reduce / 1e10);
  const double sums = network_bytes(plan_of(s, 4)).all_reduce;
  EXPECT_DOUBLE_EQ(time_of(s, 4).exposed_s, sums / 4e9);  // a ring leaves a host once: the shares of two ranks
  s.plan.node_link_gbyte_per_s = 8;
  EXPECT_DOUBLE_EQ(time_of(s, 4).exposed_s, sums / 1e10);  // no faster than inside a host
  s.plan.ranks_per_node = 1;
  EXPECT_DOUBLE_EQ(time_of(s, 4).exposed_s, sums / 8e9);
  s = settings();
  s.plan.ranks_per_node = 2;
  s.parallel.shard = config::Shard::parameters;
  s.parallel.shard_ranks = 2;  // inside hosts
  const NetworkBytes bytes = network_bytes(plan_of(s, 4));
  EXPECT_DOUBLE_EQ(time_of(s, 4).communication_s,
                   (bytes.reduce_scatter + bytes.all_gather) / 1e10 + bytes.all_reduce / 2e9);
  s.parallel.shard_ranks = 4;
  EXPECT_DOUBLE_EQ(time_of(s, 4).communication_s, network_bytes(plan_of(s, 4)).sent() / 4e9);
}

TEST(RatesOf, takes_a_ranks_share_of_the_network_that_the_plan_names) {
  config::Settings s = settings();
  s.plan.node_link_gbyte_per_s = 0;
  s.plan.ranks_per_node = 2;
  const auto sent_by = [&](config::Network network, config::NetworkPer per) {
    s.plan.network = network;
    s.plan.network_per = per;
    return time_of(s, 4).rates.node_link;
  };
  using config::Network, config::NetworkPer;
  EXPECT_EQ(sent_by(Network::ethernet_100, NetworkPer::node).value, 6.25e9);  // 100 Gbit/s, two ranks
  EXPECT_EQ(sent_by(Network::ethernet_100, NetworkPer::rank).value, 12.5e9);
  EXPECT_EQ(sent_by(Network::ethernet_200, NetworkPer::rank).value, 25e9);
  EXPECT_EQ(sent_by(Network::hdr, NetworkPer::rank).value, 25e9);
  EXPECT_EQ(sent_by(Network::ethernet_400, NetworkPer::rank).value, 50e9);
  EXPECT_EQ(sent_by(Network::ndr, NetworkPer::rank).value, 50e9);
  EXPECT_EQ(sent_by(Network::ethernet_800, NetworkPer::rank).value, 100e9);
  EXPECT_EQ(sent_by(Network::xdr, NetworkPer::rank).value, 100e9);
  EXPECT_EQ(sent_by(Network::ndr, NetworkPer::rank).source, Rate::Source::nominal);
  EXPECT_THAT(describe_time(plan_of(s, 4), s, kCpus), HasSubstr("link between hosts 50 GB/s (nominal)"));
  s.plan.ranks_per_node = 8;  // more than there are ranks
  EXPECT_EQ(sent_by(Network::ethernet_400, NetworkPer::node).value, 12.5e9);
}

TEST(MissingRates, are_named_by_their_keys_and_only_where_they_are_wanted) {
  config::Settings s = settings();
  s.plan = {};
  const auto missing = [&](int ranks) { return time_of(s, ranks).missing; };
  EXPECT_THAT(missing(1), ElementsAre("plan.gemm_tflops", "plan.attention_tflops", "plan.copy_gbyte_per_s"));
  s = settings();
  s.plan.link_gbyte_per_s = s.plan.node_link_gbyte_per_s = 0;
  EXPECT_THAT(missing(1), IsEmpty());
  EXPECT_THAT(missing(4), ElementsAre("plan.link_gbyte_per_s"));
  s.plan.ranks_per_node = 2;
  EXPECT_THAT(missing(4), ElementsAre("plan.node_link_gbyte_per_s"));
  EXPECT_THAT(describe_time(plan_of(s, 4), s, kCpus), HasSubstr("or name plan.network"));
  s.plan.network = config::Network::ndr;
  EXPECT_THAT(missing(4), IsEmpty());
  s.plan.network = config::Network::none;
  s.parallel.shard = config::Shard::parameters;
  s.parallel.shard_ranks = 2;
  EXPECT_THAT(missing(4), ElementsAre("plan.link_gbyte_per_s", "plan.node_link_gbyte_per_s"));
  const Plan plan = plan_of(s, 4);
  const std::string text = describe_time(plan, s, kCpus);
  EXPECT_THAT(text, HasSubstr("not predicted: no figure for plan.link_gbyte_per_s, plan.node_link_gbyte_per_s ships"));
  EXPECT_THAT(text, Not(HasSubstr(" ms")));
}

/// The medium model of input/bench/step_gpu/deck.toml, as measured there.
Rates rates_on(const config::Settings& s, int ranks) {
  const Machine machine = machine_of(s.plan, ranks);
  return predict_step(plan_training(s, dtype_of(s.precision.compute), ranks, machine), s, machine).rates;
}

TEST(ShippedRates, are_those_of_its_gpu_dtype_and_engine_and_keys_win) {
  config::Settings s = test::gpu_deck("medium");
  EXPECT_EQ(rates_on(s, 1).gemm.value, 600e12);
  EXPECT_EQ(rates_on(s, 1).copy.value, 4.16e12);
  EXPECT_DOUBLE_EQ(rates_on(s, 1).attention.value, 3.5e12 / (1.0 / 409 + 2.5 / 306));  // D 64, T 1024 stands for 512
  EXPECT_EQ(rates_on(s, 4).link.value, 250e9);
  EXPECT_EQ(rates_on(s, 4).node_link.value, 0);
  s.parallel.transfers = config::Transfers::ring;
  EXPECT_EQ(rates_on(s, 4).link.value, 351e9);
  s.model.context_length = 8192;
  EXPECT_DOUBLE_EQ(rates_on(s, 1).attention.value, 3.5e12 / (1.0 / 559 + 2.5 / 447));
  s.attention.kernel = config::AttentionKernel::mma;
  EXPECT_DOUBLE_EQ(rates_on(s, 1).attention.value, 3.5e12 / (1.0 / 299 + 2.5 / 252));
  s.plan.gemm_tflops = 700;
  EXPECT_EQ(rates_on(s, 1).gemm.value, 700e12);
  EXPECT_EQ(rates_on(s, 1).gemm.source, Rate::Source::given);
  s.attention.kernel = config::AttentionKernel::flash2;
  EXPECT_EQ(rates_on(s, 1).attention.value, 0);  // nobody has measured the portable kernel there
}

TEST(ShippedRates, of_other_devices_are_what_was_measured_on_them) {
  config::Settings s = test::gpu_deck("medium");
  s.plan.device = config::PlanDevice::h100;
  EXPECT_EQ(rates_on(s, 1).gemm.value, 0);
  EXPECT_NEAR(rates_on(s, 1).attention.value, 514e12, 1e12);
  s.plan.device = config::PlanDevice::a100;
  EXPECT_EQ(rates_on(s, 4).attention.value + rates_on(s, 4).copy.value + rates_on(s, 4).link.value, 0);
  EXPECT_THAT(plan_text(s, 1), HasSubstr("time       not predicted: no figure for plan.gemm_tflops, "));
}

TEST(ShippedRates, predict_the_measured_steps_of_h200s_within_15_percent) {
  struct Case {
    const char* size;
    int ranks;
    std::int64_t sequences;  // per rank
    config::Shard shard;
    double measured_ms;  // input/bench/strategies_gpu
  };
  using config::Shard;
  for (const Case& c : {Case{"medium", 1, 4, Shard::none, 14.05}, Case{"large", 1, 4, Shard::none, 30.1},
                        Case{"2.7b", 1, 4, Shard::none, 93.2}, Case{"large", 2, 4, Shard::none, 32.3},
                        Case{"xl", 4, 4, Shard::none, 66.8}, Case{"xl", 2, 4, Shard::optimizer, 61.0},
                        Case{"xl", 4, 4, Shard::optimizer, 58.2}, Case{"2.7b", 2, 8, Shard::none, 174.5},
                        Case{"2.7b", 2, 8, Shard::parameters, 174.9}}) {
    config::Settings s = test::gpu_deck(c.size);
    s.train.batch_size = c.sequences * c.ranks;
    s.parallel.shard = c.shard;
    const Machine machine = machine_of(s.plan, c.ranks);
    const Plan plan = plan_training(s, Dtype::bf16, c.ranks, machine);
    const double ms = 1e3 * predict_step(plan, s, machine).step_s;
    EXPECT_NEAR(ms / c.measured_ms, 1, 0.15) << c.size << " on " << c.ranks;
  }
}

TEST(PlanText, prints_the_time_of_a_step_and_the_rates_that_it_comes_from) {
  config::Settings s = settings();
  s.plan.device = config::PlanDevice::cpu;
  const std::string text = plan_text(s, 1);
  EXPECT_NEAR(time_of(s, 1).step_s, 0.4053e-3, 1e-7);
  EXPECT_THAT(text, HasSubstr("time       0.4053 ms per step: forward 0.1232, backward 0.2326, optimizer "));
  EXPECT_THAT(text, HasSubstr("rates      products 2 TFLOP/s (given), attention 0.5 TFLOP/s (given), copy 100 GB/s "
                              "(given)\n"));
  EXPECT_THAT(plan_text(s, 2), HasSubstr("copy 100 GB/s (given), link 10 GB/s (given)\n"));
  EXPECT_THAT(plan_text(s, 2), HasSubstr("           by all-reduce "));
}

TEST(PlanText, for_4096_ranks_takes_milliseconds) {
  config::Settings s = test::gpu_deck("8b");
  s.train.batch_size = 4096;
  s.parallel.ranks = 4096;
  s.plan.ranks_per_node = 8;
  s.plan.node_link_gbyte_per_s = 50;
  for (const auto shard :
       {config::Shard::none, config::Shard::optimizer, config::Shard::gradients, config::Shard::parameters}) {
    s.parallel.shard = shard;
    const std::clock_t start = std::clock();  // of this process: the machine may be busy
    EXPECT_THAT(plan_text(s, 1), HasSubstr("for 4096 ranks"));
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 0.1);
  }
}

}  // namespace
}  // namespace tessera::train
