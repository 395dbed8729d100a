#include "model/hooks.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <sstream>
#include <string>

#include "model/generate.hpp"
#include "support/buffer.hpp"
#include "support/random.hpp"
#include "unit/model/closed_units.hpp"
#include "unit/model/golden.hpp"
#include "unit/model/pass.hpp"

namespace tessera::test {
namespace {

/// The announcements in their order: "f1" opens block 0 for its forward pass, "F1" closes it, "g9" is a gradient.
class Diary final : public model::Hooks {
 public:
  void before(model::Pass pass, int unit) override { note("frbi"[static_cast<int>(pass)], unit); }
  void after(model::Pass pass, int unit) override {
    note("FRBI"[static_cast<int>(pass)], unit);
    if (pass == model::Pass::backward && on_unit) on_unit(unit);
  }
  void gradient_enqueued(int param) override {
    note('g', param);
    if (on_gradient) on_gradient(param);
  }
  void progress() override { ++progresses; }

  std::string without_gradients() const {
    std::string kept, word;
    for (std::istringstream words(text); words >> word;) kept += word[0] == 'g' ? "" : word + ' ';
    return kept;
  }

  std::string text;
  int progresses = 0;
  std::function<void(int)> on_unit, on_gradient;

 private:
  void note(char what, int number) { text += what + std::to_string(number) + ' '; }
};

struct Hooks : ::testing::Test {
  const Golden golden;
  std::unique_ptr<Pass<double>> pass_with(int checkpoint) const {
    auto pass = std::make_unique<Pass<double>>(
        golden.shape, PassOptions{.sequences = 3, .checkpoint_blocks = checkpoint, .chunk_rows = 40});
    pass->set_params(golden.flat("params"));
    pass->set_tokens(golden.tokens, 3, 24);
    return pass;
  }
};

TEST_F(Hooks, announce_every_unit_in_every_pass) {
  const std::string forward = "f0 F0 f1 F1 f2 F2 f3 ", head = "b3 F3 B3 ";
  const std::pair<int, std::string> expected[] = {{0, forward + head + "b2 B2 b1 B1 b0 B0 "},
                                                  {1, forward + head + "r2 b2 R2 B2 r1 b1 R1 B1 b0 B0 "},
                                                  {2, forward + head + "r1 R1 r2 b2 R2 B2 b1 B1 b0 B0 "}};
  for (const auto& [checkpoint, words] : expected) {
    const auto pass = pass_with(checkpoint);
    Diary diary;
    pass->run(true, &diary);
    EXPECT_EQ(diary.without_gradients(), words) << checkpoint;
    EXPECT_GE(diary.progresses, 2 * 8 + 2 * 7);
    Diary inference;
    pass->run(false, &inference);
    EXPECT_EQ(inference.text, "i0 I0 i1 I1 i2 I2 i3 I3 ");
  }
}

TEST_F(Hooks, announce_every_gradient_once_and_in_the_order_of_the_flat_array) {
  const auto pass = pass_with(0);
  Diary diary;
  int next = static_cast<int>(pass->table.params().size()) - 1;
  diary.on_gradient = [&](int param) { EXPECT_EQ(param, next--); };
  pass->run(true, &diary);
  EXPECT_EQ(next, -1);
}

TEST_F(Hooks, a_walk_announces_what_a_micro_step_does) {
  for (const int checkpoint : {0, 1, 2}) {
    const auto pass = pass_with(checkpoint);
    Diary computed, walked;
    pass->run(true, &computed);
    pass->transformer.walk(walked);
    EXPECT_EQ(walked.text, computed.text) << checkpoint;
  }
}

TEST_F(Hooks, an_announced_gradient_is_complete) {
  for (const bool by_unit : {false, true}) {
    const auto pass = pass_with(0);
    const double* grads = pass->arena.data<double>(1);
    ASSERT_EQ(pass->layout[1].label, "grads");
    std::vector<double> announced(pass->table.flat_count(), 0.0);
    const auto keep = [&](std::int64_t first, std::int64_t count) {
      Kokkos::fence();
      const std::vector<double> now = download(grads + first, count);
      std::copy(now.begin(), now.end(), announced.begin() + first);
    };
    Diary diary;
    if (by_unit) {
      diary.on_unit = [&](int unit) { keep(pass->table.units()[unit].first, pass->table.units()[unit].count); };
    } else {
      diary.on_gradient = [&](int param) {
        keep(pass->table.params()[param].first, pass->table.params()[param].count);
      };
    }
    pass->run(true, &diary);
    EXPECT_TRUE(same_bits(announced, pass->grads)) << by_unit;
  }
}

TEST_F(Hooks, no_weight_is_read_while_its_unit_is_closed) {
  for (const int checkpoint : {0, 1, 2}) {
    for (const auto attention : {kernels::AttentionKind::flash2, kernels::AttentionKind::standard}) {
      const PassOptions options{
          .sequences = 3, .checkpoint_blocks = checkpoint, .attention = attention, .chunk_rows = 40};
      Pass<double> open(golden.shape, options), closed(golden.shape, options);
      for (auto* pass : {&open, &closed}) {
        pass->set_params(golden.flat("params"));
        pass->set_tokens(golden.tokens, 3, 24);
      }
      ClosedUnits closing(closed.table, const_cast<double*>(closed.params()));
      open.run(true);
      closed.run(true, &closing);
      EXPECT_TRUE(same_bits(closed.grads, open.grads)) << checkpoint;
      EXPECT_EQ(closed.loss, open.loss);
      open.run(false);
      closed.run(false, &closing);
      EXPECT_EQ(closed.loss, open.loss);
      EXPECT_EQ(closing.passes, 2);
    }
  }
}

TEST_F(Hooks, the_reading_of_a_closed_unit_shows) {
  const auto pass = pass_with(0);
  struct Late final : model::Hooks {  // opens block 1 too late
    explicit Late(model::Hooks& heard) : heard(heard) {}
    void before(model::Pass p, int unit) override {
      if (unit != 2) heard.before(p, unit);
    }
    void after(model::Pass p, int unit) override {
      if (unit == 2) heard.before(p, unit);
      heard.after(p, unit);
    }
    model::Hooks& heard;
  };
  ClosedUnits closing(pass->table, const_cast<double*>(pass->params()));
  Late late(closing);
  pass->run(false, &late);
  EXPECT_TRUE(std::isnan(pass->loss));
}

TEST_F(Hooks, generation_reads_no_weight_of_a_closed_unit) {
  const auto pass = pass_with(0);
  const auto text = [&](model::Hooks& hooks) {
    return model::generate<double>(Device(), pass->shape, pass->table, pass->weights(),
                                   {kernels::AttentionKind::flash2, kernels::GemmMath::full}, {4, 5, 6},
                                   {.max_tokens = 40, .temperature = 0}, hooks);
  };
  ClosedUnits closing(pass->table, const_cast<double*>(pass->params()));
  model::Hooks nobody;
  EXPECT_EQ(text(closing), text(nobody));
  EXPECT_GE(closing.passes, 40);
}

}  // namespace
}  // namespace tessera::test
