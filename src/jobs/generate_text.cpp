/// The generate job: texts from a checkpoint. Runs on rank 0; the model is the checkpoint's.

#include <fmt/format.h>

#include <cstdio>  // stderr

#include "config/keys.hpp"
#include "data/corpus.hpp"
#include "io/answer.hpp"
#include "io/checkpoint.hpp"
#include "jobs/directory.hpp"
#include "jobs/generation.hpp"
#include "jobs/jobs.hpp"
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

template <class Scalar>
std::vector<std::vector<int>> continue_texts(const io::CheckpointReader& checkpoint, const config::Settings& trained,
                                             const config::Settings& settings,
                                             const std::vector<std::vector<int>>& prompts) {
  const model::Shape shape = train::shape_of(trained.model);
  const model::ParamTable table(shape);
  const auto params = load_weights<Scalar>(checkpoint, table);
  const config::Generate& g = settings.generate;
  const Exec exec;
  model::Hooks no_hooks;  // one rank holds every weight
  return model::generate_together<Scalar>(exec, shape, table,
                                          model::places_in<Scalar, Accum<Scalar>>(table, params.data(), nullptr),
                                          train::generate_kernels(settings, kDtype<Scalar>, shape.D()), prompts,
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
      std::string text = texts[i];
      for (const int token : tokens[i]) {
        if (token < data::kEndOfText) text += static_cast<char>(token);
      }
      if (!g.prompts.empty()) io::answer(fmt::format("--- {} of {} ---\n", i + 1, texts.size()));
      io::answer_bytes(text + '\n');
    }
  });
  return Exit::finished;
}

}  // namespace tessera::jobs
