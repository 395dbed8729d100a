/// The sample that a training job generates after its last step (train.sample_tokens).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/settings.hpp"
#include "data/corpus.hpp"
#include "jobs/stop.hpp"
#include "parallel/world.hpp"
#include "train/trainer.hpp"

namespace tessera::jobs {

struct TrainingSample {
  std::vector<int> prompt, tokens;  // tokens: the generated ones
  std::string text;                 // of both; the numbers of tokens where the corpus is no text
  bool was_cut = false;             // by a reason to stop on any rank
};

/// A text continues generate.prompt; other tokens continue the corpus's first ones. Rank 0 generates and returns the
/// result; if the model is sharded, the others follow each pass to supply their weights. Collective.
std::optional<TrainingSample> training_sample(parallel::World& world, const config::Settings& settings,
                                              const data::Corpus& corpus, bool is_sharded, const StopRequest& stop,
                                              train::Trainer& trainer);

}  // namespace tessera::jobs
