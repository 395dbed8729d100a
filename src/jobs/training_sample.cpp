#include "jobs/training_sample.hpp"  // the contract is there; here is how

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tessera::jobs {
namespace {

constexpr std::int64_t kPromptTokens = 8;  // of a corpus that is no text

/// Ranks agree on the maximum before each token and each pass through the model.
enum class State { goes_on, is_cut, is_whole, begins_pass };

class Agreement {
 public:
  Agreement(parallel::World& world, const StopRequest& stop) : world_(world), stop_(stop) {}

  State operator()(State mine) const {
    return static_cast<State>(
        world_.max(static_cast<int>(mine == State::goes_on && stop_.is_due() ? State::is_cut : mine)));
  }

 private:
  parallel::World& world_;
  const StopRequest& stop_;
};

void follow_sample(const Agreement& agree, train::Trainer& trainer) {
  for (State state = State::goes_on; state == State::goes_on || state == State::begins_pass;) {
    state = agree(State::goes_on);
    if (state == State::begins_pass) trainer.follow();
  }
}

std::vector<int> prompt_of(const config::Settings& settings, const data::Corpus& corpus, bool is_text) {
  const std::string& prompt = settings.generate.prompt;
  std::vector<int> tokens(prompt.size());
  if (is_text) {
    std::transform(prompt.begin(), prompt.end(), tokens.begin(), [](char c) { return static_cast<unsigned char>(c); });
  } else {
    tokens.resize(std::min(kPromptTokens, settings.model.context_length));
    corpus.copy(0, tokens);
  }
  return tokens;
}

std::string text_of(const TrainingSample& sample, const std::string& prompt, bool is_text) {
  std::string text = is_text ? prompt : fmt::format("{} ->", fmt::join(sample.prompt, " "));
  for (const int token : sample.tokens) {
    if (!is_text)
      text += fmt::format(" {}", token);
    else if (token < data::kEndOfText)
      text += static_cast<char>(token);
  }
  return text;
}

}  // namespace

std::optional<TrainingSample> training_sample(parallel::World& world, const config::Settings& settings,
                                              const data::Corpus& corpus, bool is_sharded, const StopRequest& stop,
                                              train::Trainer& trainer) {
  const Agreement agree(world, stop);
  const bool is_text = corpus.tokenisation() == "bytes";
  trainer.begin_generation();
  if (world.rank() != 0) {
    follow_sample(agree, trainer);
    return std::nullopt;
  }
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
