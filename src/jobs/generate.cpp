/// The generate job: text from a checkpoint. Rank 0 works; the model is the checkpoint's.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "config/keys.hpp"
#include "jobs/jobs.hpp"
#include "kernels/core/cast_copy.hpp"
#include "memory/arena.hpp"
#include "model/generate.hpp"
#include "train/plan.hpp"

namespace tessera::jobs {
namespace {

using Exec = kernels::Device;
namespace fs = std::filesystem;

/// job.input is a checkpoint's folder, or a run's directory, whose newest checkpoint is taken.
fs::path checkpoint_folder(const std::string& input) {
  if (fs::exists(fs::path(input) / "index.h5")) return input;
  if (const auto newest = io::newest_checkpoint(input)) return *newest;
  throw Failure(Exit::files, fmt::format("{}: no checkpoint here; job.input wants a run's directory or one of its "
                                         "checkpoints/step_... folders", input));
}

/// The weights as the flat array the model reads, on the device.
template <class Scalar>
Kokkos::View<Scalar*, typename Exec::memory_space> load_weights(const io::CheckpointReader& checkpoint, const model::ParamTable& table) {
  using Real = Accum<Scalar>;
  std::vector<Real> weights(table.flat_count(), Real(0));
  std::vector<float> buffer;
  for (const model::Param& param : table.params()) {
    buffer.resize(param.count);
    checkpoint.read("params", param.label, buffer);
    std::copy(buffer.begin(), buffer.end(), weights.begin() + param.first);
  }
  const Real* source = weights.data();
  const auto master = Kokkos::create_mirror_view_and_copy(
      Exec(), Kokkos::View<const Real*, Kokkos::HostSpace, kernels::Unmanaged>(source, weights.size()));
  Kokkos::View<Scalar*, typename Exec::memory_space> params(Kokkos::view_alloc(Kokkos::WithoutInitializing, "tessera::generate::params"),
                                                           weights.size());
  kernels::CastCopy<Exec, Real, Scalar>{master, params}.launch(Exec());
  Kokkos::fence();
  return params;
}

template <class Scalar>
std::vector<int> continue_text(const io::CheckpointReader& checkpoint, const config::Settings& trained,
                               const config::Settings& settings, const std::vector<int>& prompt) {
  const model::Shape shape = train::shape_of(trained.model);
  const model::ParamTable table(shape);
  const auto params = load_weights<Scalar>(checkpoint, table);
  const config::Generate& g = settings.generate;
  return model::generate<Exec, Scalar>(Exec(), shape, table, params.data(), train::kind_of(settings.attention.implementation), prompt,
                                       {g.max_tokens, g.temperature, g.top_k, settings.job.seed, 256});
}

}  // namespace

Exit generate(const Context& context) {
  const config::Settings& settings = context.settings();
  on_root(context.world, [&] {
    const io::CheckpointReader checkpoint = io::open_checkpoint(checkpoint_folder(settings.job.input), {});
    if (checkpoint.state().tokenisation != "bytes") {
      throw Failure(Exit::usage, fmt::format("generate prints text, and this checkpoint was trained on tokens of kind '{}': "
                                             "give it a checkpoint that was trained with data.source=\"text\"",
                                             checkpoint.state().tokenisation));
    }
    const config::Deck trained = config::parse_deck(checkpoint.state().deck, "the checkpoint's deck");
    std::vector<int> prompt;
    for (const char c : settings.generate.prompt) prompt.push_back(static_cast<unsigned char>(c));
    if (prompt.empty()) prompt.push_back('\n');

    std::vector<int> tokens;
    switch (train::dtype_of(settings.precision.compute)) {
      case Dtype::bf16: tokens = continue_text<bfloat16>(checkpoint, trained.settings, settings, prompt); break;
      case Dtype::fp16: tokens = continue_text<float16>(checkpoint, trained.settings, settings, prompt); break;
      default: tokens = continue_text<float>(checkpoint, trained.settings, settings, prompt);
    }
    std::string text = settings.generate.prompt;
    for (const int token : tokens) {
      if (token < 256) text += static_cast<char>(token);
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fputc('\n', stdout);
  });
  return Exit::finished;
}

}  // namespace tessera::jobs
