/// What a resolved deck says, as plain typed structs: one struct per deck section, one member per key.
///
/// All other code takes its section (or the whole `Settings`) by const reference and never sees TOML.
/// Names contain the units; legal ranges, the words of enums (in the order of the enumerators) and the text of
/// `--explain` are in `key_table.cpp`.
#pragma once

#include <any>
#include <cstdint>
#include <map>
#include <string>
#include <typeindex>
#include <vector>

namespace tessera::config {

/// The product's kinds of jobs. Rooms above it register kinds with values of their own (job_traits.hpp).
enum class JobKind : int { train, generate, verify_attention, verify_model };
enum class DataSource { text, tokens, synthetic };
enum class Precision { fp32, tf32, bf16, fp16 };  // dtype of activations and of the working copy of the weights
enum class OptimizerKind { adamw, lion };
enum class MasterPrecision { fp32, none };        // dtype of the weights that the optimizer updates
enum class MomentPrecision { fp32, bf16 };        // dtype of the optimizer's moments
enum class Recompute { all, all_but_attention };  // what checkpointing does again
enum class OnBadStep { stop, skip, rewind };
enum class GradientPrecision { fp32, bf16 };  // dtype in which gradients are stored
enum class ReducePrecision { fp32, bf16 };    // dtype in which gradients cross the network
/// flash1 is the plain kernel, flash2 the usual portable one; numbers are steps of the ladder. standard multiplies
/// by the library, standard/0 by plain team kernels.
enum class AttentionKernel {
  automatic,
  standard,
  standard_0,
  tiled,
  flash1,
  flash1_1,
  flash1_2,
  flash1_3,
  flash1_4,
  flash1_5,
  flash2,
  flash2_0,
  flash2_1,
  flash2_2,
  flash2_3,
  flash2_4,
  flash2_5,
  mma,
  wgmma
};
constexpr bool is_standard(AttentionKernel k) {
  return k == AttentionKernel::standard || k == AttentionKernel::standard_0;
}
constexpr bool is_flash1(AttentionKernel k) { return k >= AttentionKernel::flash1 && k <= AttentionKernel::flash1_5; }
constexpr bool is_flash2(AttentionKernel k) { return k >= AttentionKernel::flash2 && k <= AttentionKernel::flash2_5; }
/// Whether its kernel is one of kernels/attention/ladder_kernels.hpp.
constexpr bool is_of_ladder(AttentionKernel k) {
  return k == AttentionKernel::tiled || is_flash1(k) ||
         (k >= AttentionKernel::flash2_0 && k <= AttentionKernel::flash2_3);
}
constexpr bool is_by_engine(AttentionKernel k) { return k == AttentionKernel::mma || k == AttentionKernel::wgmma; }
enum class Collectives { automatic, mpi, nccl };
enum class Transfers { automatic, ring, copy_engine };
enum class GradientSync { per_parameter, flat, overlap, bucket };
enum class Shard { none, optimizer, gradients, parameters };
enum class Offload { none, optimizer, parameters };
enum class Network { none, ethernet_100, ethernet_200, ethernet_400, ethernet_800, hdr, ndr, xdr };
enum class NetworkPer { node, rank };
enum class Background { automatic, on, off };
enum class PlanDevice { here, cpu, a100, h100, h200 };  // here: as this build has them
enum class Progress { automatic, bar, line, none };

struct Job {
  JobKind kind = JobKind::train;
  std::uint64_t seed = 1;
  std::string input;   // file a verify or generate job reads (a checkpoint folder for generate)
  std::string output;  // file a verify or bench job writes; empty: attention.h5, model.h5 or bench.h5 in the directory
  std::string directory;  // empty in the deck: runs/<deck name> under the current directory; resolved to a path
  bool overwrite = false;
  Progress progress = Progress::automatic;
};

struct Model {
  std::string size = "custom";        // custom, small ... 8b: fills the numbers that the deck leaves out
  std::int64_t vocab_size = 257;      // V
  std::int64_t context_length = 128;  // T
  std::int64_t d_model = 128;         // C
  std::int64_t num_layers = 4;        // L
  std::int64_t num_heads = 4;         // H; D = C / H, even
  std::int64_t d_ff = 352;            // F
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;  // added to the mean square in RMSNorm
};

struct Data {
  DataSource source = DataSource::synthetic;
  std::string path;                  // text, .bin or HDF5 ("file.h5:/dataset"; default /tokens); * ? [...]: several
  double validation_fraction = 0.1;  // the last part of the corpus, never trained on
};

struct Train {
  std::int64_t steps = 100;
  std::int64_t batch_size = 8;             // sequences per optimizer step, over all ranks and micro-steps
  std::int64_t micro_batch_size = 0;       // sequences per forward on one rank; 0: a rank's whole share
  std::int64_t validate_every = 0;         // steps; 0: only after the last step (never where validation_fraction is 0)
  std::int64_t validation_sequences = 64;  // windows of the validation part read at each validation; 0: all
  double time_limit_s = 0;                 // wall seconds after which the run checkpoints and exits with 75; 0: none
  bool graph = false;
  bool tune_gemm = false;
  bool fused = true;
  std::int64_t checkpoint_activations = 0;  // 0 none; n: keep one residual per n blocks and recompute the rest
  Recompute recompute = Recompute::all;
  OnBadStep on_bad_step = OnBadStep::stop;
  std::int64_t bad_steps_limit = 10;  // of a run, from step 0 on
  double spike_deviations = 0;        // of the gradient norm above its mean that make a step bad; 0: none do
  std::int64_t spike_window = 128;    // good steps that mean and deviation are of
  std::int64_t sample_tokens = 0;     // tokens of text generated and printed after the last step
};

struct Optimizer {
  OptimizerKind kind = OptimizerKind::adamw;
  double learning_rate = 1e-3;
  double min_learning_rate = 1e-4;
  std::int64_t warmup_steps = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // 0: off
};

struct PrecisionSettings {
  Precision compute = Precision::fp32;
  MasterPrecision master = MasterPrecision::fp32;
  MomentPrecision moments = MomentPrecision::fp32;
  GradientPrecision gradients = GradientPrecision::fp32;
  ReducePrecision reduce = ReducePrecision::fp32;
  double initial_loss_scale = 65536.0;  // fp16 only: start of the dynamic loss scale
};

struct Attention {
  AttentionKernel kernel = AttentionKernel::automatic;
  bool deterministic = true;
  std::int64_t query_tile = 0, key_tile = 0;  // of a portable kernel; 0: its own
  std::int64_t decode_parts = 0;              // S of decoding; 0: chosen
};

struct Parallel {
  Collectives collectives = Collectives::automatic;
  Transfers transfers = Transfers::automatic;
  GradientSync gradient_sync = GradientSync::bucket;
  double bucket_mbyte = 25;
  Shard shard = Shard::none;
  Offload offload = Offload::none;
  std::int64_t offload_slots = 3;  // for chunks of offloaded state on the device
  std::int64_t shard_ranks = 0;    // ranks that share one copy; 0: all
  std::int64_t prefetch_blocks = 1;
  bool reshard_after_forward = true;
  bool allow_uneven = false;
  bool allow_shared_device = false;
  double timeout_s = 30;   // that a step may make no progress; 0: no limit
  std::int64_t ranks = 0;  // that --plan plans for and a run must have; 0: as many as are started
};

struct PlanSettings {
  PlanDevice device = PlanDevice::here;
  std::int64_t ranks_per_node = 0;  // 0: all ranks
  Network network = Network::none;  // between hosts; none: node_link_gbyte_per_s
  NetworkPer network_per = NetworkPer::node;

  // Rates of one rank; 0: as measured on `device`
  double gemm_tflops = 0;            // matrix products
  double attention_tflops = 0;       // forward and backward together: train/plan_time.hpp says how flop are counted
  double copy_gbyte_per_s = 0;       // bytes read plus bytes written
  double link_gbyte_per_s = 0;       // sent to the ranks of its host, which send as much
  double node_link_gbyte_per_s = 0;  // the same to other hosts
  double host_link_gbyte_per_s = 0;  // between a rank and its host's memory, each way at once: offload
};

struct Checkpoint {
  std::int64_t every = 0;  // steps; 0: only at the end and when stopped
  std::int64_t keep = 2;   // newest complete checkpoints kept
  bool at_end = true;      // also after the last step
  Background background = Background::automatic;
};

struct Trace {
  std::int64_t every_steps = 10;                  // steps between console lines
  std::vector<std::int64_t> profile_steps;        // steps whose kernels are timed one by one
  std::vector<std::int64_t> profile_ranks = {0};  // whose events and memory are kept
  bool memory = true;                             // write the memory timeline of the first step
  double flush_s = 5;                             // longest time run.h5 lags behind
};

struct Generate {
  std::string prompt = "\n";
  std::vector<std::string> prompts = {};  // continued together, instead of prompt; empty: prompt
  std::int64_t max_tokens = 256;
  double temperature = 0.8;  // 0: greedy
  std::int64_t top_k = 40;   // 0: all
  bool graph = false;
  bool chained = true;  // with graph: a launch starts while the previous one still runs
};

struct Settings {
  Job job;
  Model model;
  Data data;
  Train train;
  Optimizer optimizer;
  PrecisionSettings precision;
  Attention attention;
  Parallel parallel;
  PlanSettings plan;
  Checkpoint checkpoint;
  Trace trace;
  Generate generate;
  std::map<std::type_index, std::any> others;  // sections that rooms above the product add and that have been set

  /// One of these, at its defaults until it is set.
  template <class Section>
  const Section& section() const {
    static const Section kDefault{};
    const auto found = others.find(typeid(Section));
    return found == others.end() ? kDefault : *std::any_cast<Section>(&found->second);
  }
  template <class Section>
  Section& section() {
    return *std::any_cast<Section>(&others.try_emplace(typeid(Section), Section{}).first->second);
  }
};

}  // namespace tessera::config
