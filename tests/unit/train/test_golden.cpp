/// Twenty steps of each optimizer against losses, norms and weights of an independent float64 implementation.

#include <gtest/gtest.h>

#include "support/close.hpp"
#include "unit/io/scratch.hpp"
#include "unit/model/golden.hpp"
#include "unit/train/training.hpp"

namespace tessera::test {
namespace {

/// A corpus file and a sampler over it that yields given rows [rows,T+1]: row i is sample samples()[i].
///
/// The sampler's windows are adjacent and share a token with their neighbour, so the rows go to windows that do not
/// touch, each batch to consecutive samples.
class GivenBatches {
 public:
  GivenBatches(const std::vector<int>& rows, std::int64_t T, std::int64_t batch, std::int64_t vocab_size) {
    const std::int64_t count = static_cast<std::int64_t>(rows.size()) / (T + 1);
    std::vector<std::uint16_t> tokens(T * count * 400, 0);
    write_array(folder_ / "places.bin", tokens);
    const auto corpus_of = [&](const char* name) {
      return data::Corpus::open(config::DataSource::tokens, folder_ / name, vocab_size, 1);
    };
    const data::Corpus places_corpus = corpus_of("places.bin");
    const data::Sampler places(places_corpus, T, 0, 5);

    std::vector<bool> is_used(tokens.size(), false);
    std::int64_t g = 0;
    for (std::int64_t row = 0; row < count; row += batch) {
      const auto is_free = [&] {
        std::vector<bool> used = is_used;
        for (std::int64_t i = 0; i < batch; ++i) {
          for (std::int64_t t = places.window_start(g + i); t <= places.window_start(g + i) + T; ++t) {
            if (used[t]) return false;
            used[t] = true;
          }
        }
        is_used = used;
        return true;
      };
      while (!is_free()) ++g;
      for (std::int64_t i = 0; i < batch; ++i) {
        for (std::int64_t t = 0; t <= T; ++t) {
          tokens[places.window_start(g + i) + t] = static_cast<std::uint16_t>(rows[(row + i) * (T + 1) + t]);
        }
      }
      first_samples_.push_back(g);
      g += batch;
    }
    write_array(folder_ / "tokens.bin", tokens);
    corpus_.emplace(corpus_of("tokens.bin"));
    sampler_.emplace(*corpus_, T, 0, 5);
  }

  const data::Sampler& sampler() const { return *sampler_; }
  std::int64_t first_sample(std::size_t batch) const { return first_samples_.at(batch); }

 private:
  ScratchFolder folder_;
  std::vector<std::int64_t> first_samples_;
  std::optional<data::Corpus> corpus_;
  std::optional<data::Sampler> sampler_;
};

struct GoldenTraining : ::testing::Test {
  explicit GoldenTraining(config::OptimizerKind optimizer = config::OptimizerKind::adamw) : kind(optimizer) {}

  Golden golden;
  io::h5::File lion = io::h5::File::open(TESSERA_SOURCE_DIR "/tests/golden/lion.h5");
  const config::OptimizerKind kind;
  const io::h5::File& results() const { return kind == config::OptimizerKind::lion ? lion : golden.file; }
  std::vector<double> values(const std::string& path) const { return results().dataset(path).values<double>(); }
  std::vector<double> losses = values("train/loss"), norms = values("train/grad_norm");
  GivenBatches batches{golden.file.dataset("train/tokens").values<std::int32_t>(), golden.T, golden.B, golden.shape.V};

  config::Settings settings() const {
    const model::Shape& s = golden.shape;
    config::Settings deck;
    deck.model = {"custom", s.V, s.T, s.C, s.L, s.H, s.F, s.rope_theta, s.norm_eps};
    deck.train.steps = results().integer("steps");
    deck.train.batch_size = golden.B;
    const auto number = [&](const char* key) { return results().number(key); };
    deck.optimizer = {.kind = kind,
                      .learning_rate = number("learning_rate"),
                      .min_learning_rate = number("learning_rate"),
                      .beta1 = number("beta1"),
                      .beta2 = number("beta2"),
                      .weight_decay = number("weight_decay"),
                      .clip_norm = number("clip_norm")};
    if (kind == config::OptimizerKind::adamw) deck.optimizer.eps = number("eps");
    deck.parallel.allow_uneven = true;  // 3 sequences on 2 ranks
    return deck;
  }

  /// Runs all steps from the golden's weights; every loss, norm and final weight within its bound, relative; a weight
  /// may be `moved` besides.
  void check(const config::Settings& deck, Dtype dtype, double loss_bound, double weight_bound, double moved = 0) {
    Training run(deck, dtype);
    run.trainer->load_state([&](const train::StateTensor& tensor) {
      const std::vector<double> start = golden.values("params/" + tensor.param->label);
      for (std::size_t i = 0; i < start.size(); ++i)
        tensor.data[i] = tensor.group == "params" ? static_cast<float>(start[i]) : 0.0f;
    });
    const double tokens = static_cast<double>(golden.B) * golden.T;
    for (std::size_t step = 0; step < losses.size(); ++step) {
      const train::StepNumbers n = run.trainer->run(batches.first_sample(step), batches.sampler());
      const double loss = run.world.sum({n.loss_sum})[0] / tokens;
      EXPECT_NEAR(loss, losses[step], loss_bound * losses[step]) << "step " << step;
      EXPECT_NEAR(n.grad_norm, norms[step], 10 * loss_bound * norms[step]) << "step " << step;
      EXPECT_FALSE(n.was_skipped);
    }
    State state = state_of(*run.trainer);
    for (const model::Param& param : golden.table.params()) {
      const std::vector<float>& trained = state["params/" + param.label];
      EXPECT_TRUE(all_close<float>({trained.begin(), trained.end()}, values("train/params/" + param.label),
                                   {.of_max = weight_bound, .absolute = moved}))
          << param.label;
    }
  }
};

TEST_F(GoldenTraining, batches_are_those_of_the_golden) {
  const auto rows = golden.file.dataset("train/tokens").values<std::int32_t>();
  std::vector<std::int32_t> row(golden.T + 1);
  for (std::size_t i = 0; i < rows.size() / row.size(); ++i) {
    batches.sampler().fill(batches.first_sample(i / golden.B) + static_cast<std::int64_t>(i) % golden.B, row);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), rows.begin() + i * row.size())) << "row " << i;
  }
}

struct GoldenLion : GoldenTraining {
  GoldenLion() : GoldenTraining(config::OptimizerKind::lion) {}
};

TEST_F(GoldenTraining, the_norm_crosses_the_clipping_limit_on_the_way) {
  const double clip = golden.file.number("clip_norm");
  EXPECT_LT(*std::min_element(norms.begin(), norms.end()), clip);
  EXPECT_GT(*std::max_element(norms.begin(), norms.end()), clip);
}

TEST_F(GoldenTraining, fp32_losses_agree_to_1e_4) { check(settings(), Dtype::fp32, 1e-4, 1e-4); }

TEST_F(GoldenTraining, fp32_with_accumulation_checkpointing_and_small_buckets_agrees_to_1e_4) {
  config::Settings deck = settings();
  deck.train.micro_batch_size = 1;
  deck.train.checkpoint_activations = 1;
  deck.attention.kernel = config::AttentionKernel::standard;
  deck.parallel.bucket_mbyte = 0.001;
  check(deck, Dtype::fp32, 1e-4, 1e-4);
}

TEST_F(GoldenTraining, fp64_losses_agree_up_to_the_epsilon_of_clipping) {
  // The golden clips by norm alone, we by norm + 1e-6 as PyTorch does: 5e-7 relative in every clipped gradient.
  check(settings(), Dtype::fp64, 1e-6, 1e-6);
}

TEST_F(GoldenTraining, sixteen_bit_losses_agree_to_their_precision) {
  // The residual stream is rounded at each of its 2L + 1 sums and once more before the head, half an epsilon each, all
  // one way at worst: (L + 1) epsilon, 3 here. One more for the weights, which 20 steps of rounded gradients moved.
  // A weight may move 0.2 in 20 steps, about a third of the largest, and a small gradient's relative error decides how
  // far: 16 epsilon of the largest. In fp16 that is less than a step, of which one may be turned: twice the rate.
  const double loss_epsilons = static_cast<double>(golden.shape.L) + 2;
  check(settings(), Dtype::bf16, loss_epsilons * kEpsilon<bfloat16>, 16 * kEpsilon<bfloat16>);
  config::Settings deck = settings();
  deck.precision.initial_loss_scale = 1024;
  check(deck, Dtype::fp16, loss_epsilons * kEpsilon<float16>, 16 * kEpsilon<float16>, 2 * deck.optimizer.learning_rate);
}

TEST_F(GoldenTraining, the_leaderboards_precision_agrees_to_its_roundings) {
  // input/leaderboard/step_8b.toml's: beside the roundings above, every step rounds every weight once more, at random,
  // by less than an epsilon: 20 steps err by half an epsilon times the root of 20 (2.2), a loss by two more epsilons.
  config::Settings deck = settings();
  deck.precision.master = config::MasterPrecision::none;
  deck.precision.moments = config::MomentPrecision::bf16;
  deck.precision.gradients = config::GradientPrecision::bf16;
  deck.precision.reduce = config::ReducePrecision::bf16;
  deck.train.checkpoint_activations = 1;
  deck.train.recompute = config::Recompute::all_but_attention;
  const double loss_epsilons = static_cast<double>(golden.shape.L) + 4;
  check(deck, Dtype::bf16, loss_epsilons * kEpsilon<bfloat16>, 18 * kEpsilon<bfloat16>);
}

TEST_F(GoldenLion, fp64_losses_and_weights_agree_but_for_the_rounding_of_saved_weights) {
  check(settings(), Dtype::fp64, 1e-11, kEpsilon<float>);
}

TEST_F(GoldenLion, fp32_with_accumulation_and_small_buckets_agrees_but_for_directions_that_rounding_turns) {
  config::Settings deck = settings();
  deck.train.micro_batch_size = 1;
  deck.parallel.bucket_mbyte = 0.001;
  check(deck, Dtype::fp32, 1e-4, 8 * deck.optimizer.learning_rate);  // of weights of about 1: four turns of one
}

TEST_F(GoldenLion, sixteen_bit_losses_agree_to_their_precision) {
  const double loss_epsilons = static_cast<double>(golden.shape.L) + 2;  // as AdamW's; no weight moves 20 rates
  const double most = 2 * static_cast<double>(losses.size()) * settings().optimizer.learning_rate;
  check(settings(), Dtype::bf16, loss_epsilons * kEpsilon<bfloat16>, most);
  config::Settings deck = settings();
  deck.precision.initial_loss_scale = 1024;
  check(deck, Dtype::fp16, loss_epsilons * kEpsilon<float16>, most);
}

}  // namespace
}  // namespace tessera::test
