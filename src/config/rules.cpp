#include "config/rules.hpp"
#include <cstdint>

#include <fmt/format.h>

#include "config/availability.hpp"
#include "config/extension.hpp"
#include "config/job_traits.hpp"
#include "config/keys.hpp"

namespace tessera::config {
namespace {

struct SizeRow {
  std::string_view name;
  std::int64_t d_model, d_ff, num_layers, num_heads;
  std::int64_t vocab_size;  // 0: the size says nothing about it
};
constexpr SizeRow kSizes[] = {
    {"small", 768, 3072, 12, 12, 0}, {"medium", 1024, 4096, 24, 16, 0}, {"large", 1280, 5120, 36, 20, 0},
    {"xl", 1600, 6400, 48, 25, 0},   {"2.7b", 2560, 10240, 32, 32, 0},  {"8b", 4096, 11008, 34, 32, 151936},
};

void check_model(const Settings& settings, Rules& rules) {
  const Model& model = settings.model;
  const std::int64_t head_width = model.d_model / model.num_heads;
  const bool divides = model.d_model % model.num_heads == 0;
  rules.require(divides, {"model.d_model", "model.num_heads", "model.size"},
                fmt::format("{} is not a multiple of model.num_heads = {}", model.d_model, model.num_heads),
                "d_model = num_heads x head width");
  rules.require(!divides || head_width % 2 == 0, {"model.d_model", "model.num_heads", "model.size"},
                fmt::format("gives the odd head width {} ({} / {} heads); RoPE rotates pairs", head_width,
                            model.d_model, model.num_heads),
                "an even d_model / num_heads");
  rules.require(!divides || head_width % 2 != 0 || (head_width >= 8 && head_width <= 256),
                {"model.d_model", "model.num_heads", "model.size"},
                fmt::format("gives head width {} ({} / {} heads)", head_width, model.d_model, model.num_heads),
                "d_model / num_heads from 8 to 256");
}

void check_training(const Settings& settings, Rules& rules) {
  const Train& train = settings.train;
  const Optimizer& optimizer = settings.optimizer;
  rules.require(
      optimizer.min_learning_rate <= optimizer.learning_rate,
      {"optimizer.min_learning_rate", "optimizer.learning_rate"},
      fmt::format("{} is above optimizer.learning_rate = {}", optimizer.min_learning_rate, optimizer.learning_rate),
      "at most optimizer.learning_rate");
  rules.require(optimizer.kind == OptimizerKind::adamw || optimizer.eps == Optimizer{}.eps,
                {"optimizer.eps", "optimizer.kind"}, "would be ignored: optimizer.kind is not \"adamw\"",
                fmt::format("optimizer.eps = {}, its default, or optimizer.kind = \"adamw\"", Optimizer{}.eps));
  rules.require(train.validate_every == 0 || settings.data.validation_fraction > 0,
                {"train.validate_every", "data.validation_fraction"},
                fmt::format("{} asks for validation, but data.validation_fraction = 0 keeps no data for it",
                            train.validate_every),
                "train.validate_every = 0, or data.validation_fraction above 0");
  rules.require(train.micro_batch_size <= train.batch_size, {"train.micro_batch_size", "train.batch_size"},
                fmt::format("{} is more than train.batch_size = {}", train.micro_batch_size, train.batch_size),
                "at most train.batch_size");
  rules.require(train.micro_batch_size == 0 || train.micro_batch_size > train.batch_size ||
                    settings.parallel.allow_uneven || train.batch_size % train.micro_batch_size == 0,
                {"train.micro_batch_size", "train.batch_size", "parallel.allow_uneven"},
                fmt::format("{} does not divide train.batch_size = {}", train.micro_batch_size, train.batch_size),
                "a divisor of train.batch_size, or parallel.allow_uneven = true");
}

void check_files(const Settings& settings, const Sources& sources, Rules& rules) {
  const JobTraits& job = traits_of(settings.job.kind);
  const Data& data = settings.data;
  rules.require(
      data.source != DataSource::text || settings.model.vocab_size >= 257, {"model.vocab_size", "data.source"},
      fmt::format("{} is too small for data.source = \"text\" (256 bytes and end-of-text)", settings.model.vocab_size),
      "257 or more");
  rules.require(!job.has_steps || data.source == DataSource::synthetic || !data.path.empty(),
                {"data.path", "data.source"}, "is not given, and data.source names a file",
                "a path, or data.source = \"synthetic\"");
  rules.require(data.path.empty() || data.source != DataSource::synthetic || !sources.contains("data.source"),
                {"data.path", "data.source"}, "would be ignored: data.source is \"synthetic\"",
                "data.source = \"text\" or \"tokens\", or no data.path");
  rules.require(data.path.empty() || sources.contains("data.source"), {"data.path"},
                "would be ignored: data.source is not given and defaults to \"synthetic\"",
                "data.source = \"text\" or \"tokens\" beside it");
  rules.require(job.input.empty() || !settings.job.input.empty(), {"job.input", "job.kind"},
                "is not given, and this job.kind reads it", std::string(job.input));
}

void check_generation(const Settings& settings, Rules& rules) {
  const Generate& generate = settings.generate;
  rules.require(settings.train.sample_tokens == 0 || settings.data.source == DataSource::text ||
                    settings.job.kind != JobKind::train || generate.prompt == Generate{}.prompt,
                {"generate.prompt", "train.sample_tokens", "data.source"},
                "would be ignored: data.source is not \"text\", so train.sample_tokens follow the first tokens there",
                "no generate.prompt, or train.sample_tokens = 0");
  rules.require(generate.prompts.empty() || settings.job.kind == JobKind::generate, {"generate.prompts", "job.kind"},
                "would be ignored: job.kind is not \"generate\"", "generate.prompt, or job.kind = \"generate\"");
  rules.require(generate.prompts.empty() || generate.prompt == Generate{}.prompt,
                {"generate.prompt", "generate.prompts"}, "would be ignored: generate.prompts is given",
                "one of the two");
}

void check_precision(const PrecisionSettings& precision, Rules& rules) {
  const Precision compute = precision.compute;
  rules.require(compute == Precision::fp16 || precision.initial_loss_scale == PrecisionSettings{}.initial_loss_scale,
                {"precision.initial_loss_scale", "precision.compute"},
                "would be ignored: precision.compute is not \"fp16\", so losses are not scaled",
                "precision.compute = \"fp16\" beside it");
  rules.require(compute == Precision::bf16 || compute == Precision::fp16 || precision.master == MasterPrecision::fp32,
                {"precision.master", "precision.compute"},
                "would be ignored: with a 32-bit precision.compute there is no other copy of the weights",
                "precision.master = \"fp32\", or precision.compute = \"bf16\"");
  if (precision.gradients != GradientPrecision::bf16) return;
  rules.require(precision.compute == Precision::bf16, {"precision.gradients", "precision.compute"},
                "\"bf16\" would discard digits that other formats compute", "precision.compute = \"bf16\"");
  rules.require(precision.reduce == ReducePrecision::bf16, {"precision.reduce", "precision.gradients"},
                "\"fp32\" is wider than the stored gradients", "precision.reduce = \"bf16\"");
}

void check_attention(const Settings& settings, Rules& rules) {
  const Attention& attention = settings.attention;
  const bool has_tiles = attention.kernel == AttentionKernel::tiled || is_flash1(attention.kernel) ||
                         (is_flash2(attention.kernel) && attention.kernel < AttentionKernel::flash2_4);
  for (const auto& [key, tile] :
       {std::pair<std::string_view, std::int64_t>{"attention.query_tile", attention.query_tile},
        {"attention.key_tile", attention.key_tile}}) {
    rules.require(tile == 0 || tile == 16 || tile == 32 || tile == 64 || tile == 128, {key},
                  fmt::format("{} is not a tile size", tile), "0, 16, 32, 64 or 128");
    rules.require(tile == 0 || has_tiles, {key, "attention.kernel"},
                  "would be ignored: attention.kernel names no portable kernel with tiles",
                  "attention.kernel = \"tiled\", \"flash1\" or \"flash2\", or a step of the ladder up to \"flash2/3\"");
  }
}

void check_bad_steps(const Train& train, Rules& rules) {
  rules.require(train.on_bad_step != OnBadStep::stop || train.bad_steps_limit == Train{}.bad_steps_limit,
                {"train.bad_steps_limit", "train.on_bad_step"}, "would be ignored: the first bad step stops the run",
                "train.on_bad_step = \"skip\" or \"rewind\" beside it");
  rules.require(train.spike_deviations > 0 || train.spike_window == Train{}.spike_window,
                {"train.spike_window", "train.spike_deviations"}, "would be ignored: no step is called a spike",
                "train.spike_deviations above 0 beside it");
}

void check_recomputation(const Settings& settings, Rules& rules) {
  const bool keeps_attention = settings.train.recompute == Recompute::all_but_attention;
  rules.require(!keeps_attention || settings.train.checkpoint_activations > 0,
                {"train.recompute", "train.checkpoint_activations"},
                "would be ignored: train.checkpoint_activations is 0, so nothing is recomputed",
                "train.checkpoint_activations = 1 or more");
  rules.require(!keeps_attention || !is_standard(settings.attention.kernel), {"train.recompute", "attention.kernel"},
                "standard attention's backward pass needs its probabilities, which are recomputed",
                "train.recompute = \"all\", or attention.kernel = \"flash2\"");
}

void check_sharding(const Settings& settings, Rules& rules) {
  const Parallel& parallel = settings.parallel;
  const bool shards_parameters = parallel.shard == Shard::parameters;
  const auto require = [&](bool is_used, std::string_view key, std::string wrong, std::string legal) {
    rules.require(is_used, {key, "parallel.shard", "parallel.gradient_sync"}, "would be ignored: " + wrong,
                  std::move(legal));
  };
  require(shards_parameters || parallel.prefetch_blocks == Parallel{}.prefetch_blocks, "parallel.prefetch_blocks",
          "parallel.shard is not \"parameters\"", "parallel.shard = \"parameters\"");
  require(shards_parameters || parallel.reshard_after_forward, "parallel.reshard_after_forward",
          "parallel.shard is not \"parameters\"", "parallel.shard = \"parameters\"");
  require(parallel.shard != Shard::none || parallel.shard_ranks == 0, "parallel.shard_ranks",
          "parallel.shard is \"none\"", "parallel.shard = \"optimizer\", \"gradients\" or \"parameters\"");
  require((parallel.shard == Shard::none && parallel.gradient_sync == GradientSync::bucket) ||
              parallel.bucket_mbyte == Parallel{}.bucket_mbyte,
          "parallel.bucket_mbyte", "there are no buckets",
          "parallel.gradient_sync = \"bucket\" with parallel.shard = \"none\"");
  rules.require(parallel.offload != Offload::parameters || shards_parameters, {"parallel.offload", "parallel.shard"},
                "\"parameters\" streams the units that parallel.shard = \"parameters\" gathers, on one rank, too",
                "parallel.shard = \"parameters\" beside it, or parallel.offload = \"optimizer\"");
  const bool has_more_slots = parallel.offload_slots != Parallel{}.offload_slots;
  rules.require(!has_more_slots || parallel.offload != Offload::none, {"parallel.offload_slots", "parallel.offload"},
                "would be ignored: parallel.offload is \"none\"", "parallel.offload = \"optimizer\" or \"parameters\"");
  rules.require(!has_more_slots || !settings.train.graph, {"parallel.offload_slots", "train.graph"},
                "would have no effect: in a graph, an update's copies end with it",
                fmt::format("parallel.offload_slots = {}, or train.graph = false", Parallel{}.offload_slots));
  rules.require(parallel.shard == Shard::none || parallel.gradient_sync == GradientSync::bucket,
                {"parallel.gradient_sync", "parallel.shard"},
                "would be ignored: what is sharded crosses the network unit by unit, as soon as it is ready",
                "parallel.gradient_sync = \"bucket\", the default, or parallel.shard = \"none\"");
}

void check_plan(const PlanSettings& plan, Rules& rules) {
  rules.require(plan.network == Network::none || plan.node_link_gbyte_per_s == 0,
                {"plan.network", "plan.node_link_gbyte_per_s"}, "would be ignored: plan.node_link_gbyte_per_s is given",
                "one of the two");
  rules.require(plan.network_per == NetworkPer::node || plan.network != Network::none,
                {"plan.network_per", "plan.network"}, "would be ignored: plan.network is not given",
                "plan.network beside it");
}

/// Values that this version supports one by one, but not together.
void check_combinations(const Settings& settings, Rules& rules) {
  const Precision compute = settings.precision.compute;
  const bool is_16_bit = compute == Precision::bf16 || compute == Precision::fp16;
  rules.require(
      settings.precision.master != MasterPrecision::none || compute != Precision::fp16, {"precision.master"},
      "\"none\" is not for precision.compute = \"fp16\", whose range is too small for weights and updates; use "
      "precision.master = \"fp32\", or precision.compute = \"bf16\"",
      "");
  const AttentionKernel kernel = settings.attention.kernel;
  rules.require(
      traits_of(settings.job.kind).has_own_dtype || !needs_tensor_cores(kernel) || is_16_bit ||
          kernel == AttentionKernel::mma,
      {"attention.kernel"},
      fmt::format("{} with a 32-bit precision.compute is not in this version: of attention on tensor cores only "
                  "\"mma\" takes it; use {} (on a GPU also precision.compute = \"bf16\")",
                  value_text(*find_key("attention.kernel"), settings), without_tensor_cores(kernel)),
      "");
}

}  // namespace

void Rules::require(bool holds, std::initializer_list<std::string_view> keys, std::string wrong, std::string legal) {
  if (holds) return;
  Where where{deck_};
  for (const std::string_view key : keys) {
    const auto source = sources_.find(key);
    if (source == sources_.end()) continue;
    if (source->second.is_faulty) return;
    if (where.text == deck_) where = source->second.where;
  }
  faults_.add({where, std::string(*keys.begin()), std::move(wrong), std::move(legal), ""});
}

void apply_size(Settings& settings, Sources& sources) {
  if (const auto size = sources.find("model.size"); size == sources.end() || size->second.is_faulty) return;
  Model& model = settings.model;
  bool is_exact = true;
  const auto fill = [&](std::string_view key, std::int64_t& member, std::int64_t value) {
    if (!sources.contains(key)) {
      member = value;
      sources[key] = {Origin::size, sources.at("model.size").where, false};
    }
    is_exact = is_exact && member == value;
  };
  for (const SizeRow& row : kSizes) {
    if (row.name != model.size) continue;
    fill("model.d_model", model.d_model, row.d_model);
    fill("model.d_ff", model.d_ff, row.d_ff);
    fill("model.num_layers", model.num_layers, row.num_layers);
    fill("model.num_heads", model.num_heads, row.num_heads);
    if (row.vocab_size > 0) fill("model.vocab_size", model.vocab_size, row.vocab_size);
  }
  if (!is_exact) model.size = "custom";
}

void apply_prompts(Settings& settings, Sources& sources) {
  const auto one = sources.find("generate.prompt"), several = sources.find("generate.prompts");
  if (one == sources.end() || several == sources.end()) return;
  if (one->second.origin < several->second.origin) {
    settings.generate.prompt = Generate{}.prompt;
    sources.erase(one);
  } else if (several->second.origin < one->second.origin) {
    settings.generate.prompts.clear();
    sources.erase(several);
  }
}

void check_named_files(const Settings& settings, const Sources& sources, std::string_view deck, Faults& faults) {
  Rules rules(sources, deck, faults);
  const JobTraits& job = traits_of(settings.job.kind);
  rules.require(settings.job.input.empty() || !job.input.empty(), {"job.input", "job.kind"},
                fmt::format("would be ignored: job.kind = \"{}\" reads no such file", job.name),
                job.resumes ? "--resume PATH, which continues a training" : "no job.input");
  rules.require(settings.job.output.empty() || (!job.file.empty() && !job.resumes), {"job.output", "job.kind"},
                fmt::format("would be ignored: job.kind = \"{}\" writes no such file", job.name), "job.directory");
}

void check_rules(const Settings& settings, const Sources& sources, std::string_view deck, Faults& faults) {
  Rules rules(sources, deck, faults);
  check_model(settings, rules);
  check_training(settings, rules);
  check_files(settings, sources, rules);
  check_generation(settings, rules);
  check_precision(settings.precision, rules);
  check_attention(settings, rules);
  check_recomputation(settings, rules);
  check_bad_steps(settings.train, rules);
  check_sharding(settings, rules);
  check_plan(settings.plan, rules);
  if (extension().check != nullptr) extension().check(settings, rules);
  check_combinations(settings, rules);
}

}  // namespace tessera::config
