/// The rows of the key table: member, legal values, unit, and the text of `--explain`. Defaults are in settings.hpp.
#include <string>
#include <vector>

#include "config/extension.hpp"
#include "config/key_rows.hpp"
#include "config/keys.hpp"

namespace tessera::config {
namespace {

constexpr auto kProgress = in_order<Progress::none>("auto", "bar", "line", "none");
constexpr Word kSizes[] = {word("custom"), word("small"), word("medium"), word("large"),
                           word("xl"),     word("2.7b"),  word("8b")};
constexpr auto kSources = in_order<DataSource::synthetic>("text", "tokens", "synthetic");
constexpr auto kOptimizers = in_order<OptimizerKind::lion>("adamw", "lion");
constexpr auto kCompute = in_order<Precision::fp16>("fp32", "tf32", "bf16", "fp16");
constexpr auto kMaster = in_order<MasterPrecision::none>("fp32", "none");
constexpr auto kRecompute = in_order<Recompute::all_but_attention>("all", "all_but_attention");
constexpr auto kMoments = in_order<MomentPrecision::bf16>("fp32", "bf16");
constexpr auto kGradients = in_order<GradientPrecision::bf16>("fp32", "bf16");
constexpr auto kReduce = in_order<ReducePrecision::bf16>("fp32", "bf16");
constexpr auto kAttention = in_order<AttentionKernel::wgmma>(
    "auto", "standard", "standard/0", "tiled", "flash1", "flash1/1", "flash1/2", "flash1/3", "flash1/4", "flash1/5",
    "flash2", "flash2/0", "flash2/1", "flash2/2", "flash2/3", "flash2/4", "flash2/5", "mma", "wgmma");
constexpr auto kCollectives = in_order<Collectives::nccl>("auto", "mpi", "nccl");
constexpr auto kOnBadStep = in_order<OnBadStep::rewind>("stop", "skip", "rewind");
constexpr auto kBackground = in_order<Background::off>("auto", "on", "off");
constexpr auto kTransfers = in_order<Transfers::copy_engine>("auto", "ring", "copy_engine");
constexpr auto kGradientSync = in_order<GradientSync::bucket>("per_parameter", "flat", "overlap", "bucket");
constexpr auto kShard = in_order<Shard::parameters>("none", "optimizer", "gradients", "parameters");
constexpr auto kOffload = in_order<Offload::parameters>("none", "optimizer", "parameters");
constexpr auto kNetworks = in_order<Network::xdr>("none", "100g", "200g", "400g", "800g", "hdr", "ndr", "xdr");
constexpr auto kNetworkPers = in_order<NetworkPer::rank>("node", "rank");
constexpr auto kPlanDevices = in_order<PlanDevice::h200>("here", "cpu", "a100", "h100", "h200");

/// The kinds of jobs, of whatever room.
std::span<const Word> job_kinds() {
  static const std::vector<Word> kinds = [] {
    std::vector<Word> all;
    for (const JobTraits* job : all_jobs()) all.push_back(word(job->name, job->kind));
    return all;
  }();
  return kinds;
}

std::string_view meaning_of_job_kind() {
  static const std::string text =
      "What to do. train and generate run a model; verify.* compute reference outputs from job.input." +
      std::string(extension().jobs_meaning);
  return text;
}

/// The product's.
std::vector<Key> make_table() {
  using S = Settings;
  return {
      {"job.kind", at<&S::job, &Job::kind>(), words(job_kinds()), "-", meaning_of_job_kind()},
      {"job.seed", at<&S::job, &Job::seed>(), between(0, kMaxInteger), "-",
       "Seed of initial weights, sample order, synthetic data and generated text. Same seed, deck, build and ranks: "
       "same numbers, bit for bit."},
      {"job.input", at<&S::job, &Job::input>(), path(), "-",
       "What generate and verify.* read. A checkpoint folder for generate, an HDF5 file for verify.*."},
      {"job.output", at<&S::job, &Job::output>(), path(), "-",
       "HDF5 file that verify.* and bench.* write. Empty: attention.h5, model.h5 or bench.h5 in job.directory. An "
       "existing file is refused unless job.overwrite is true."},
      {"job.directory", at<&S::job, &Job::directory>(), path(), "-",
       "Folder for everything that the run writes. Empty: runs/<deck name> under the current directory (of "
       "NAME/deck.toml: runs/NAME). A folder that "
       "is not empty is refused unless the run resumes or job.overwrite is true."},
      {"job.overwrite", at<&S::job, &Job::overwrite>(), any(), "-",
       "Whether existing results may be replaced: the run in job.directory (run.h5 and checkpoints), an experiment "
       "there (experiment.h5 and the files of its rows), or job.output. Other files stay. With --resume: whether an "
       "experiment may drop rows that have run and are no longer in the deck."},
      {"job.progress", at<&S::job, &Job::progress>(), words(kProgress), "-",
       "How progress is shown. auto: a bar on a terminal, one line per interval otherwise."},

      {"model.size", at<&S::model, &Model::size>(), words(kSizes), "-",
       "A named size: sets d_model, d_ff, num_layers and num_heads (8b also vocab_size) unless the deck sets them. If "
       "the deck sets one differently, the resolved deck says custom."},
      {"model.vocab_size", at<&S::model, &Model::vocab_size>(), between(2, kMaxVocab), "tokens",
       "Number of different tokens, V. Text needs 257: the 256 bytes and end-of-text."},
      {"model.context_length", at<&S::model, &Model::context_length>(), between(1, kMaxTokens), "tokens",
       "Length of a sequence, T."},
      {"model.d_model", at<&S::model, &Model::d_model>(), between(8, 1 << 20), "channels",
       "Width of the residual stream, C. A multiple of num_heads; the head width d_model / num_heads is even, 8 to "
       "256."},
      {"model.num_layers", at<&S::model, &Model::num_layers>(), between(1, 10000), "blocks", "Transformer blocks, L."},
      {"model.num_heads", at<&S::model, &Model::num_heads>(), between(1, 65536), "heads",
       "Attention heads per block, H."},
      {"model.d_ff", at<&S::model, &Model::d_ff>(), between(1, 1 << 22), "channels",
       "Width inside the SwiGLU MLP, F; about 8/3 of d_model is usual."},
      {"model.rope_theta", at<&S::model, &Model::rope_theta>(), above(0, 1e12), "-",
       "Base of the rotary position angles. Pair i of a head is rotated by position * theta^(-2i/D)."},
      {"model.norm_eps", at<&S::model, &Model::norm_eps>(), between(1e-12, 1), "-",
       "Added to the mean square in RMSNorm."},

      {"data.source", at<&S::data, &Data::source>(), words(kSources), "-",
       "Where tokens come from. text: a file read as bytes; tokens: a nanoGPT or llm.c .bin file or an HDF5 array; "
       "synthetic: generated from the seed, no file is read."},
      {"data.path", at<&S::data, &Data::path>(), path(), "-",
       "The file of data.source text or tokens. A pattern with *, ? or [...] names several, such as "
       "data/fineweb_train_*.bin (in a shell: quoted): files of one format, read in the order of their names as if "
       "concatenated. An HDF5 array is FILE.h5:/dataset; the default dataset is /tokens."},
      {"data.validation_fraction", at<&S::data, &Data::validation_fraction>(), fraction(), "-",
       "Fraction of the corpus, at its end, that is used for validation and never for training."},

      {"train.steps", at<&S::train, &Train::steps>(), between(1, kMaxSteps), "steps",
       "Optimizer steps of the whole run, resumed parts included."},
      {"train.batch_size", at<&S::train, &Train::batch_size>(), between(1, 1 << 24), "sequences",
       "Sequences per optimizer step over all ranks. A multiple of micro_batch_size x ranks, unless "
       "parallel.allow_uneven is true."},
      {"train.micro_batch_size", at<&S::train, &Train::micro_batch_size>(), between(0, 1 << 24), "sequences",
       "Sequences per forward and backward pass on one rank. 0: a rank's whole share. Smaller values need less memory "
       "and give the same gradients."},
      {"train.validate_every", at<&S::train, &Train::validate_every>(), between(0, kMaxSteps), "steps",
       "Steps between validations. 0: only after the last step."},
      {"train.validation_sequences", at<&S::train, &Train::validation_sequences>(), between(0, kMaxSteps), "sequences",
       "Sequences read by each validation. 0: the whole validation part."},
      {"train.time_limit_s", at<&S::train, &Train::time_limit_s>(), at_least(0), "s",
       "Wall time after which the run saves a checkpoint at the next step and exits with code 75. 0: no limit."},
      {"train.graph", at<&S::train, &Train::graph>(), any(), "-",
       "Whether to capture the whole step once and replay it as one CUDA graph. Needs a CUDA build."},
      {"train.fused", at<&S::train, &Train::fused>(), any(), "-",
       "Whether to fuse element-wise kernels. true: RMSNorm also adds to the residual stream, one launch rotates q and "
       "k, and one updates all tensors. false: one launch per operation, for comparison; needs a CUDA build."},
      {"train.tune_gemm", at<&S::train, &Train::tune_gemm>(), any(), "-",
       "Whether the first step times the library's algorithms for each GEMM (not of standard attention) and keeps the "
       "fastest. Checkpoints store "
       "the choice, and a resumed run keeps it (on another kind of GPU or library version it chooses again, and says "
       "so). Two fresh runs may choose differently and then differ in their last bits. Needs a CUDA build."},
      {"train.checkpoint_activations", at<&S::train, &Train::checkpoint_activations>(), between(0, 10000), "blocks",
       "Activation checkpointing: keep one residual per this many blocks and recompute the rest in the backward pass. "
       "0: keep all."},
      {"train.recompute", at<&S::train, &Train::recompute>(), words(kRecompute), "-",
       "What activation checkpointing recomputes. all_but_attention: keeps attention's output and log-sum-exp, which "
       "saves much time on long sequences for little memory. Used with train.checkpoint_activations only."},
      {"train.on_bad_step", at<&S::train, &Train::on_bad_step>(), words(kOnBadStep), "-",
       "What follows a step whose loss or gradient norm is not finite, or spikes (train.spike_deviations). Such a step "
       "never changes weights. stop: exit code 5; skip: the next batch; rewind: back to the last checkpoint, or the "
       "start, and on without that batch. An overflow in fp16 is no bad step while a smaller loss scale may help."},
      {"train.bad_steps_limit", at<&S::train, &Train::bad_steps_limit>(), between(1, kMaxSteps), "steps",
       "How many bad steps a run may have; one more ends it with exit code 5. Used with train.on_bad_step = skip or "
       "rewind only."},
      {"train.spike_deviations", at<&S::train, &Train::spike_deviations>(), between(0, 1e6), "-",
       "A gradient norm above the mean of the last ones by more than this many standard deviations makes a step bad. "
       "0: none does."},
      {"train.spike_window", at<&S::train, &Train::spike_window>(), between(2, 1024), "steps",
       "How many good steps' gradient norms train.spike_deviations looks back on; until there are as many, none is a "
       "spike."},
      {"train.sample_tokens", at<&S::train, &Train::sample_tokens>(), between(0, kMaxTokens), "tokens",
       "Number of tokens to generate and print after the last step, from generate.prompt; if data.source is not text, "
       "from the first 8 tokens of the data. A signal or the time limit cuts it short. 0: none."},

      {"optimizer.kind", at<&S::optimizer, &Optimizer::kind>(), words(kOptimizers), "-",
       "Update rule. adamw keeps two moments per weight; lion keeps one and moves each weight by the learning rate "
       "times a sign. Defaults are AdamW's; Lion's paper takes beta2 = 0.99, a learning rate 3 to 10 times smaller, "
       "and a weight_decay larger by the same factor."},
      {"optimizer.learning_rate", at<&S::optimizer, &Optimizer::learning_rate>(), between(0, 100), "-",
       "Peak learning rate, reached after the warm-up."},
      {"optimizer.min_learning_rate", at<&S::optimizer, &Optimizer::min_learning_rate>(), between(0, 100), "-",
       "Learning rate at which the cosine decay would arrive one step after the last."},
      {"optimizer.warmup_steps", at<&S::optimizer, &Optimizer::warmup_steps>(), between(0, kMaxSteps), "steps",
       "Steps over which the learning rate rises linearly from 0 to its peak. May exceed train.steps."},
      {"optimizer.beta1", at<&S::optimizer, &Optimizer::beta1>(), fraction(), "-",
       "Decay of AdamW's running mean of gradients; in Lion, the weight of the running mean in its mix with the new "
       "gradient; the sign of the mix is the update."},
      {"optimizer.beta2", at<&S::optimizer, &Optimizer::beta2>(), fraction(), "-",
       "Decay of AdamW's running mean of squared gradients, or of Lion's running mean of gradients."},
      {"optimizer.eps", at<&S::optimizer, &Optimizer::eps>(), between(1e-30, 1), "-",
       "Added to the root of AdamW's second moment. For comparing strategies use 1e-3: with a tiny eps AdamW's first "
       "step is just the sign of the gradient, which magnifies rounding differences."},
      {"optimizer.weight_decay", at<&S::optimizer, &Optimizer::weight_decay>(), between(0, 100), "-",
       "Decoupled weight decay, multiplied by the learning rate. Norm gains are not decayed."},
      {"optimizer.clip_norm", at<&S::optimizer, &Optimizer::clip_norm>(), at_least(0), "-",
       "Largest global L2 norm of the gradient; a larger one is scaled down. 0: off."},

      {"precision.compute", at<&S::precision, &PrecisionSettings::compute>(), words(kCompute), "-",
       "Number format of activations and of the weights that the forward pass reads. Sums are always in fp32. tf32 "
       "needs a CUDA build; on CPUs, bf16 and fp16 are for comparing results and bring no speed."},
      {"precision.master", at<&S::precision, &PrecisionSettings::master>(), words(kMaster), "-",
       "Number format of the weights that the optimizer updates. none, for precision.compute = bf16 only: the "
       "optimizer updates the compute weights themselves, with stochastic rounding."},
      {"precision.moments", at<&S::precision, &PrecisionSettings::moments>(), words(kMoments), "-",
       "Number format of the optimizer's moments. bf16: stochastically rounded."},
      {"precision.gradients", at<&S::precision, &PrecisionSettings::gradients>(), words(kGradients), "-",
       "Number format in which gradients are stored. bf16 needs bf16 in precision.compute and precision.reduce, and "
       "one micro-step per step."},
      {"precision.reduce", at<&S::precision, &PrecisionSettings::reduce>(), words(kReduce), "-",
       "Number format in which gradients cross the network. One rank alone sends none."},
      {"precision.initial_loss_scale", at<&S::precision, &PrecisionSettings::initial_loss_scale>(), between(1, 1 << 24),
       "-", "First value of the dynamic loss scale. Used with precision.compute = fp16 only."},

      {"attention.kernel", at<&S::attention, &Attention::kernel>(), words(kAttention), "-",
       "Which attention kernel runs. auto: the fastest that this build and GPU have for the dtype and the head width, "
       "chosen for each pass: tensor cores, else flash2. standard stores all T x T scores, with products by the "
       "library (standard/0: by plain kernels); the others never do. tiled computes them tile by tile, one launch per "
       "operation. flash1 and flash2 take one launch: FlashAttention-1 loops over keys outside, FlashAttention-2 over "
       "queries. flash2 is the portable kernel. mma (mma.sync, sm_80 or later) and wgmma (sm_90a) are flash2 on tensor "
       "cores; wgmma takes bf16 and fp16, mma also fp32, each product by three TF32 products, or by one where "
       "precision.compute is tf32. flash1/1 to 5 and flash2/0 to 5 are steps of the ladder from a plain kernel "
       "(flash1, flash2/0) to a tuned one; each step adds to the one before. 1: rows in scratch start at multiples of "
       "16 bytes; 2: wide loads and stores; 3: wide loads in q k^T. Of flash1, 4: team reductions for each row's "
       "maximum and sum; 5: tensor cores for q k^T, in bf16 or fp16. Of flash2, on GPUs, 4: each thread keeps 4 x 4 "
       "scores and its output in registers; 5: larger blocks. The backward pass of all but standard, mma, wgmma and "
       "auto is flash2's portable one. The line 'attention' of --plan and of the log names what runs."},
      {"attention.query_tile", at<&S::attention, &Attention::query_tile>(), between(0, 128), "queries",
       "Queries per tile in the forward kernels tiled, flash1 and flash2, including the ladder up to flash2/3: 16, 32, "
       "64 or 128. A tile that does not fit in the device's scratch is refused. 0: the kernel's default."},
      {"attention.key_tile", at<&S::attention, &Attention::key_tile>(), between(0, 128), "keys",
       "Keys per tile in the same kernels as attention.query_tile: 16, 32, 64 or 128. 0: the kernel's default."},
      {"attention.deterministic", at<&S::attention, &Attention::deterministic>(), any(), "-",
       "Whether the backward pass adds gradients in a fixed order, so that repeats agree bit for bit. CPU kernels "
       "always do."},
      {"attention.decode_parts", at<&S::attention, &Attention::decode_parts>(), between(0, 1024), "parts",
       "Number of parts into which generation splits each sequence's cached keys; each part is read by one team. 0: "
       "chosen from the context length and the number of sequences and heads; on CPUs 1."},

      {"parallel.collectives", at<&S::parallel, &Parallel::collectives>(), words(kCollectives), "-",
       "What moves data between ranks. auto: NCCL if the build has it and every rank has its own GPU, else MPI."},
      {"parallel.transfers", at<&S::parallel, &Parallel::transfers>(), words(kTransfers), "-",
       "How GPUs exchange data under NCCL: all-reduces, reduce-scatters and all-gathers. ring: NCCL's ring. "
       "copy_engine: the GPUs' copy engines move the data, which leaves the SMs to the GEMMs. auto: copy_engine if all "
       "ranks share a host, can access each other's memory and form no groups (parallel.shard_ranks), else ring."},
      {"parallel.gradient_sync", at<&S::parallel, &Parallel::gradient_sync>(), words(kGradientSync), "-",
       "How gradients are summed over ranks. per_parameter: one message per parameter after the backward pass; flat: "
       "one message for all parameters after it; overlap: each parameter as soon as it is ready; bucket: parameters "
       "joined into buckets, each sent as soon as it is full."},
      {"parallel.bucket_mbyte", at<&S::parallel, &Parallel::bucket_mbyte>(), between(0.001, 65536), "MB",
       "Size of a gradient bucket, in millions of bytes. Used with parallel.gradient_sync = bucket only. Four GPUs of "
       "a host take 3 % less time with 50 than with 25."},
      {"parallel.shard", at<&S::parallel, &Parallel::shard>(), words(kShard), "-",
       "What is sharded over ranks instead of replicated. none: nothing; optimizer: the optimizer state (ZeRO-1); "
       "gradients: also the gradients (ZeRO-2); parameters: also the parameters (ZeRO-3, FSDP). A single rank holds "
       "everything, unless parallel.offload keeps its parameters on the host."},
      {"parallel.shard_ranks", at<&S::parallel, &Parallel::shard_ranks>(), between(0, 1 << 20), "ranks",
       "How many consecutive ranks, such as those of a host, share one copy of what is sharded; each group of that "
       "many ranks holds a full copy. Must divide the number of ranks, which should be numbered host by host (srun "
       "--distribution=block). 0: all ranks."},
      {"parallel.offload", at<&S::parallel, &Parallel::offload>(), words(kOffload), "-",
       "What is kept in host memory instead of device memory; results are bit for bit the same. optimizer: the "
       "moments, and what the master weights hold beyond the compute weights (fp32: nothing, bf16: the lower halves, "
       "fp16: everything). They stream through the GPU during the next forward pass; on a single rank without clipping "
       "(optimizer.clip_norm = 0) or loss scaling (not fp16), half of them already during the backward pass. "
       "parameters: also the weights, each unit copied to the GPU before it is read; needs parallel.shard = "
       "parameters."},
      {"parallel.offload_slots", at<&S::parallel, &Parallel::offload_slots>(), between(3, 1 << 16), "chunks",
       "How many chunks of offloaded state fit on the device at a time; --plan shows their size. That many chunks can "
       "be copied in ahead during the backward pass, so the next forward pass waits only for the rest. 3 suffice for "
       "every model; at most as many as the model has chunks. Used with parallel.offload and train.graph = false "
       "only."},
      {"parallel.prefetch_blocks", at<&S::parallel, &Parallel::prefetch_blocks>(), between(0, 10000), "blocks",
       "How many blocks ahead sharded parameters are gathered, or copied from the host. Used with parallel.shard = "
       "parameters only."},
      {"parallel.reshard_after_forward", at<&S::parallel, &Parallel::reshard_after_forward>(), any(), "-",
       "Whether gathered parameters are freed after the forward pass and gathered again for the backward pass. false: "
       "they stay until the update, which takes memory for all of them. Used with parallel.shard = parameters only."},
      {"parallel.allow_uneven", at<&S::parallel, &Parallel::allow_uneven>(), any(), "-",
       "Whether ranks may get different numbers of sequences. Gradients are then weighted by tokens."},
      {"parallel.allow_shared_device", at<&S::parallel, &Parallel::allow_shared_device>(), any(), "-",
       "Whether several ranks may use one GPU. CPU builds have none to share."},
      {"parallel.timeout_s", at<&S::parallel, &Parallel::timeout_s>(), between(0, 86400), "s",
       "How long a step of several ranks may make no progress before the run ends with exit code 7: a rank, the "
       "network or a GPU is lost. The first steps get twice as long, later ones at least twice the longest silence so "
       "far. Set-up, checkpoints, bench.comm's operations, sequences that ranks share unevenly and the start (until "
       "MPI and Kokkos run on every rank) get ten times as long. A rank that fails and then hangs while exiting is "
       "ended after half the limit plus 3 s, with the exit code of its failure (7 if the cause is not known by then). "
       "0: no limit."},
      {"parallel.ranks", at<&S::parallel, &Parallel::ranks>(), between(0, 1 << 20), "ranks",
       "Number of ranks that --plan plans for; a run on any other number is refused. 0: as many as are started "
       "(scripts/run -n)."},

      {"plan.device", at<&S::plan, &PlanSettings::device>(), words(kPlanDevices), "-",
       "Device of each rank that --plan plans for; runs ignore it. here: what this build computes on, for which no "
       "measured rates ship. a100 h100 h200: GPUs with 80, 80 and 141 GB in a build with CUDA and NCCL, even if this "
       "build has neither."},
      {"plan.ranks_per_node", at<&S::plan, &PlanSettings::ranks_per_node>(), between(0, 1 << 20), "ranks",
       "Number of ranks per host, whose memory --plan adds up; runs ignore it. Ranks on several hosts all-reduce over "
       "NCCL's ring instead of the copy engines. 0: all ranks are on one host."},
      {"plan.gemm_tflops", at<&S::plan, &PlanSettings::gemm_tflops>(), between(0, 1e6), "TFLOP/s",
       "Rate of GEMMs on one rank, for predicting times: by --plan, and by runs with parallel.offload; other runs "
       "ignore it. 0: as measured on plan.device, if a figure ships for it."},
      {"plan.attention_tflops", at<&S::plan, &PlanSettings::attention_tflops>(), between(0, 1e6), "TFLOP/s",
       "Rate of causal attention on one rank, forward and backward together; used like plan.gemm_tflops. Forward "
       "counts 2 C T flop per token, backward 5 C T. 0: as measured on plan.device, if a figure ships for it."},
      {"plan.copy_gbyte_per_s", at<&S::plan, &PlanSettings::copy_gbyte_per_s>(), between(0, 1e9), "GB/s",
       "Rate of a copy within one rank's memory, counting bytes read and bytes written; used like plan.gemm_tflops. 0: "
       "as measured on plan.device, if a figure ships for it."},
      {"plan.link_gbyte_per_s", at<&S::plan, &PlanSettings::link_gbyte_per_s>(), between(0, 1e9), "GB/s",
       "Rate at which one rank sends to ranks of its host while receiving as much; used like plan.gemm_tflops. 0: as "
       "measured on plan.device, if a figure ships for it."},
      {"plan.node_link_gbyte_per_s", at<&S::plan, &PlanSettings::node_link_gbyte_per_s>(), between(0, 1e9), "GB/s",
       "Rate at which one rank sends to other hosts while receiving as much, its share of the host's network; used "
       "like plan.gemm_tflops. 0: from plan.network."},
      {"plan.network", at<&S::plan, &PlanSettings::network>(), words(kNetworks), "-",
       "Network between hosts, whose nominal speed --plan takes if plan.node_link_gbyte_per_s is 0. 100g 200g 400g "
       "800g: Ethernet of that many Gbit/s in each direction; hdr ndr xdr: InfiniBand of 200, 400 and 800. Runs reach "
       "less. none: unknown."},
      {"plan.network_per", at<&S::plan, &PlanSettings::network_per>(), words(kNetworkPers), "-",
       "Who shares an adapter of plan.network. node: all ranks of a host; rank: nobody, each rank has its own."},
      {"plan.host_link_gbyte_per_s", at<&S::plan, &PlanSettings::host_link_gbyte_per_s>(), between(0, 1e9), "GB/s",
       "Rate at which one rank copies from its host's memory while copying as much back, for predicting times with "
       "parallel.offload; runs measure it before their first step. No figure ships."},

      {"checkpoint.every", at<&S::checkpoint, &Checkpoint::every>(), between(0, kMaxSteps), "steps",
       "Steps between checkpoints. 0: only at the end and when stopped."},
      {"checkpoint.keep", at<&S::checkpoint, &Checkpoint::keep>(), between(1, 1 << 20), "checkpoints",
       "How many of the newest complete checkpoints stay on disk. Older ones are deleted once the newest has been read "
       "back from the disk and agrees with its checksums; none right after a bad step."},
      {"checkpoint.at_end", at<&S::checkpoint, &Checkpoint::at_end>(), any(), "-",
       "Whether a run saves a checkpoint after its last step. false: the finished run cannot be continued. A run that "
       "is stopped always saves one."},
      {"checkpoint.background", at<&S::checkpoint, &Checkpoint::background>(), words(kBackground), "-",
       "Whether checkpoints are written while training goes on, by a thread that wants a core of its own: from a copy "
       "in host memory, which --plan counts. Training waits for the copy, and for the checkpoint before if that is "
       "still being written. auto: on GPUs, with checkpoint.every, if each host has the memory."},

      {"trace.every_steps", at<&S::trace, &Trace::every_steps>(), between(1, kMaxSteps), "steps",
       "Steps between console lines."},
      {"trace.profile_steps", at<&S::trace, &Trace::profile_steps>(), between(1, kMaxSteps), "steps",
       "Steps whose kernels are timed one by one. They are slower and left out of averages."},
      {"trace.profile_ranks", at<&S::trace, &Trace::profile_ranks>(), between(0, 1e9), "ranks",
       "Ranks whose events, communication and memory go to run.h5: those of profiled steps, and of the first step with "
       "trace.memory."},
      {"trace.memory", at<&S::trace, &Trace::memory>(), any(), "-",
       "Whether to write the memory timeline of the first step to run.h5."},
      {"trace.flush_s", at<&S::trace, &Trace::flush_s>(), between(0, 86400), "s",
       "Seconds between writes of run.h5; more if writing would take over 1 % of the run."},

      {"generate.prompt", at<&S::generate, &Generate::prompt>(), not_empty(), "-",
       "Text that the generated text continues."},
      {"generate.prompts", at<&S::generate, &Generate::prompts>(), any(), "-",
       "Texts to continue together, as one batch, instead of generate.prompt; an empty text stands for a line break. "
       "[]: generate.prompt alone. For job.kind = generate only."},
      {"generate.graph", at<&S::generate, &Generate::graph>(), any(), "-",
       "Whether generate and bench.generate capture the step that produces a token once and replay it as a CUDA "
       "graph. Needs a CUDA build."},
      {"generate.chained", at<&S::generate, &Generate::chained>(), any(), "-",
       "Whether generate.graph chains its launches: each starts, and reads weights, while the previous one still runs. "
       "For up to 8 sequences on GPUs from sm_90 on; elsewhere, or without generate.graph, it has no effect."},
      {"generate.max_tokens", at<&S::generate, &Generate::max_tokens>(), between(1, kMaxTokens), "tokens",
       "Maximum number of tokens to generate; end-of-text ends generation earlier."},
      {"generate.temperature", at<&S::generate, &Generate::temperature>(), between(0, 100), "-",
       "Divides the logits before sampling. Smaller is more predictable, larger more varied; 0 always takes the most "
       "likely token."},
      {"generate.top_k", at<&S::generate, &Generate::top_k>(), between(0, kMaxVocab), "tokens",
       "Sample from this many most likely tokens. 0: from all."},
  };
}

}  // namespace

std::span<const Key> all_keys() {
  static const std::vector<Key> table = [] {
    std::vector<Key> keys = make_table();
    keys.insert(keys.end(), extension().keys.begin(), extension().keys.end());
    return keys;
  }();
  return table;
}

}  // namespace tessera::config
