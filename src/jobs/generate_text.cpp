/// The generate job: texts from a checkpoint. Runs on rank 0; the model is the checkpoint's.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>  // stderr

#include "config/keys.hpp"
#include "data/corpus.hpp"
#include "io/answer.hpp"
#include "io/checkpoint.hpp"
#include "jobs/directory.hpp"
#include "jobs/generation.hpp"
#include "jobs/jobs.hpp"
#include "jobs/memory.hpp"
#include "jobs/scalars.hpp"
#include "kernels/core/cast_copy.hpp"
#include "model/generate.hpp"
#include "train/plan.hpp"

namespace tessera::jobs {
namespace {

using Exec = kernels::Device;

/// The weights as the flat array the model reads, on the device.
template <class Scalar>
Kokkos::View<Scalar*, typename Exec::memory_space> load_weights(const io::CheckpointReader& checkpoint,
                                                                const model::ParamTable& table) {
  std::vector<float> weights(table.flat_count(), 0.0f);
  for (const model::Param& param : table.params()) {
    checkpoint.read("params", param.label, std::span(weights).subspan(param.first, param.count));
  }
  checkpoint.require_unchanged();
  const auto master = Kokkos::create_mirror_view_and_copy(
      Exec(), Kokkos::View<const float*, Kokkos::HostSpace, kernels::Unmanaged>(weights.data(), weights.size()));
  Kokkos::View<Scalar*, typename Exec::memory_space> params(
      Kokkos::view_alloc(Kokkos::WithoutInitializing, "tessera::generate::params"), weights.size());
  kernels::CastCopy<Exec, float, Scalar>{master, params}.launch(Exec());
  Kokkos::fence();
  return params;
}

/// Weights are read in fp32 and then copied to the working format; the memory of a generation follows.
void require_memory_for(std::int64_t parameters, Dtype dtype, std::int64_t generation, std::int64_t prompts) {
  const std::int64_t needed = parameters * bytes_of(dtype) + std::max(parameters * bytes_of(Dtype::fp32), generation);
  const std::int64_t available = available_bytes();
  if (needed <= available) return;
  throw Failure(Exit::out_of_memory,
                "the checkpoint's weights ({}, read in fp32) and the generation of {} ({}) need {} of memory, but {} "
                "are available: give fewer generate.prompts at a time, or take another machine",
                memory::readable_bytes(parameters * bytes_of(Dtype::fp32)), counted(prompts, "text"),
                memory::readable_bytes(generation), memory::readable_bytes(needed), memory::readable_bytes(available));
}

template <class Scalar>
std::vector<std::vector<int>> continue_texts(const io::CheckpointReader& checkpoint, const config::Settings& trained,
                                             const config::Settings& settings,
                                             const std::vector<std::vector<int>>& prompts) {
  const model::Shape shape = train::shape_of(trained.model);
  const model::ParamTable table(shape);
  const model::GenerateKernels how = train::generate_kernels(settings, kDtype<Scalar>, shape.D());
  const auto prompt_count = static_cast<std::int64_t>(prompts.size());
  require_memory_for(table.flat_count(), kDtype<Scalar>,
                     model::generation_bytes(shape, kDtype<Scalar>, how, prompt_count), prompt_count);
  const auto params = load_weights<Scalar>(checkpoint, table);
  const config::Generate& g = settings.generate;
  const Exec exec;
  model::Hooks no_hooks;  // one rank holds every weight
  return model::generate_together<Scalar>(
      exec, shape, table, model::places_in<Scalar, Accum<Scalar>>(table, params.data(), nullptr), how, prompts,
      {.max_tokens = g.max_tokens,
       .temperature = g.temperature,
       .top_k = g.top_k,
       .seed = settings.job.seed,
       .end_of_text = data::kEndOfText,
       .run_step = step_runner(exec, g)},
      no_hooks);
}

}  // namespace

Exit generate(const Context& context) {
  const config::Settings& settings = context.settings();
  context.world.agree_on_root([&] {
    const io::CheckpointReader checkpoint =
        io::open_checkpoint(checkpoint_folder(settings.job.input), {}, "job.input=");
    if (checkpoint.state().tokenisation != "bytes") {
      throw Failure(Exit::usage,
                    "generate prints text, and this checkpoint was trained on tokens of kind '{}': use one that was "
                    "trained with data.source=\"text\"",
                    checkpoint.state().tokenisation);
    }
    fmt::print(stderr, "model      from {} (step {}); the deck's own model is not used\n",
               printable(checkpoint.folder().string()), checkpoint.state().step);
    const config::Deck trained = config::parse_stored_deck(checkpoint.state().deck, "the checkpoint's deck");
    const config::Generate& g = settings.generate;
    const std::vector<std::string> texts = g.prompts.empty() ? std::vector{g.prompt} : g.prompts;
    std::vector<std::vector<int>> prompts, tokens;
    for (const std::string& text : texts) prompts.push_back(tokens_of(text.empty() ? "\n" : text));
    with_scalar(train::dtype_of(settings.precision.compute), [&]<class Scalar>() {
      tokens = continue_texts<Scalar>(checkpoint, trained.settings, settings, prompts);
    });
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i] + bytes_of_tokens(tokens[i]);
      const auto without = std::ranges::count_if(tokens[i], [](int token) { return token > data::kEndOfText; });
      if (without > 0) {
        fmt::print(stderr, "generate   {} of {} are no bytes (model.vocab_size is above 257) and have no text\n",
                   without, counted(std::ssize(tokens[i]), "token"));
      }
      if (!g.prompts.empty()) io::answer(fmt::format("--- {} of {} ---\n", i + 1, texts.size()));
      io::answer_bytes(text + '\n');
    }
  });
  return Exit::finished;
}

}  // namespace tessera::jobs
