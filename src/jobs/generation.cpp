#include "jobs/generation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>  // stderr
#include <memory>

#include "train/graph.hpp"

namespace tessera::jobs {
namespace {

constexpr std::int64_t kPromptTokens = 8;  // of a corpus that is no text

/// Ranks agree on the maximum before each token and each pass through the model.
enum class State { goes_on, is_cut, is_whole, begins_pass };

std::vector<int> prompt_of(const config::Settings& settings, const data::Corpus& corpus, bool is_text) {
  if (is_text) return tokens_of(settings.generate.prompt);
  std::vector<int> tokens(static_cast<std::size_t>(std::min(kPromptTokens, settings.model.context_length)));
  corpus.copy(0, tokens);
  return tokens;
}

std::string text_of(const TrainingSample& sample, const std::string& prompt, bool is_text) {
  if (is_text) return prompt + bytes_of_tokens(sample.tokens);
  std::string text = fmt::format("{} ->", fmt::join(sample.prompt, " "));
  for (const int token : sample.tokens) text += fmt::format(" {}", token);
  return text;
}

}  // namespace

std::vector<int> tokens_of(const std::string& text) {
  std::vector<int> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string bytes_of_tokens(std::span<const int> tokens) {
  std::string text;
  for (const int token : tokens) {
    if (token < data::kEndOfText) text += static_cast<char>(token);
  }
  return text;
}

std::function<void(const std::function<void()>&, bool)> step_runner(const kernels::Device& exec,
                                                                    const config::Generate& settings) {
  if (!settings.graph) return {};
  return [exec, is_chained = settings.chained, graph = std::make_shared<train::StepGraph>()](
             const std::function<void()>& enqueue, bool kernels_wait) {
    using Links = train::StepGraph::Links;
    if (!graph->run(exec, enqueue, is_chained && kernels_wait ? Links::chained : Links::ordinary)) return;
    std::string why_not = graph->not_chained_because();
    if (!kernels_wait) why_not = "kernels for this many sequences, or for GPUs before sm_90, do not wait";
    if (is_chained && !why_not.empty()) {
      fmt::print(stderr, "graph      the launches of a step are not chained (generate.chained): {}\n", why_not);
    }
  };
}

std::optional<TrainingSample> training_sample(parallel::World& world, const config::Settings& settings,
                                              const data::Corpus& corpus, bool is_sharded, const StopRequest& stop,
                                              train::Trainer& trainer) {
  const auto agree = [&](State mine) {
    const State now = mine == State::goes_on && stop.is_due() ? State::is_cut : mine;
    return static_cast<State>(world.max(static_cast<int>(now)));
  };
  trainer.begin_generation();
  if (world.rank() != 0) {
    for (State state = State::goes_on; state == State::goes_on || state == State::begins_pass;) {
      state = agree(State::goes_on);
      if (state == State::begins_pass) trainer.follow();
    }
    return std::nullopt;
  }
  const bool is_text = corpus.tokenisation() == "bytes";
  TrainingSample sample;
  sample.prompt = prompt_of(settings, corpus, is_text);
  model::GenerateOptions options{.max_tokens = settings.train.sample_tokens,
                                 .temperature = settings.generate.temperature,
                                 .top_k = settings.generate.top_k,
                                 .seed = settings.job.seed,
                                 .end_of_text = is_text ? data::kEndOfText : -1,
                                 .is_cut = [&] { return sample.was_cut = agree(State::goes_on) != State::goes_on; }};
  if (is_sharded) options.begins_pass = [&] { agree(State::begins_pass); };
  sample.tokens = trainer.generate(sample.prompt, options);
  if (!sample.was_cut) agree(State::is_whole);
  sample.text = text_of(sample, settings.generate.prompt, is_text);
  return sample;
}

}  // namespace tessera::jobs
