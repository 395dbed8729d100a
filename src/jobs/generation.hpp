/// What jobs that generate share, and the sample that a training job generates after its last step.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/settings.hpp"
#include "data/corpus.hpp"
#include "jobs/stop.hpp"
#include "kernels/core/tensor.hpp"
#include "parallel/world.hpp"
#include "train/trainer.hpp"

namespace tessera::jobs {

/// The tokens of a text, which are its bytes.
std::vector<int> tokens_of(const std::string& text);
/// The bytes of tokens; those that are none, end-of-text among them, give nothing.
std::string bytes_of_tokens(std::span<const int> tokens);

/// For GenerateOptions::run_step: runs the first step launch by launch, captures the second as a graph, then replays
/// it. With generate.chained its launches are chained (train/graph.hpp) if the decoder's kernels wait; if that is
/// impossible, a line on stderr says why. Use for one call of generate() whose hooks launch nothing. Empty without
/// generate.graph.
std::function<void(const std::function<void()>&, bool)> step_runner(const kernels::Device& exec,
                                                                    const config::Generate& settings);

struct TrainingSample {
  std::vector<int> prompt, tokens;  // tokens: the generated ones
  std::string text;                 // of both; the numbers of tokens where the corpus is no text
  bool was_cut = false;             // by a reason to stop on any rank
};

/// The sample of train.sample_tokens: a text continues generate.prompt; other tokens continue the corpus's first ones.
/// Rank 0 generates and returns the result; if the model is sharded, the others follow each pass to supply their
/// weights. Collective.
std::optional<TrainingSample> training_sample(parallel::World& world, const config::Settings& settings,
                                              const data::Corpus& corpus, bool is_sharded, const StopRequest& stop,
                                              train::Trainer& trainer);

}  // namespace tessera::jobs
