#include "train/graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/chain.hpp"
#include "model/generate.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"
#include "unit/model/pass.hpp"

namespace tessera::test {
namespace {

using train::StepGraph;

TEST(StepGraph, is_refused_by_name_where_there_are_none) {
  if (!kernels::kIsHost<Device>) GTEST_SKIP() << "this build computes on GPUs";
  StepGraph graph;
  EXPECT_FALSE(graph.is_recorded());
  EXPECT_THROW(graph.record(Device(), [] {}), std::logic_error);
}

TEST(StepGraph, of_other_work_than_kernels_is_not_chained_and_says_so) {
  if (kernels::kIsHost<Device>) GTEST_SKIP() << "this build computes on a host";
  const Device exec;
  const Kokkos::View<int*, Device::memory_space> from("from", 1000), to("to", 1000);
  Kokkos::deep_copy(exec, from, 7);
  exec.fence();
  StepGraph graph;
  graph.record(
      exec, [&] { Kokkos::deep_copy(exec, to, from); }, StepGraph::Links::chained);
  EXPECT_FALSE(graph.not_chained_because().empty());
  graph.launch(exec);
  exec.fence();
  const auto copied = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), to);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(copied(i), 7) << i;
}

/// Texts of a small model with random weights, whose cache fills up several times.
template <class Scalar>
struct GraphOfATokensStep : ::testing::Test {
  const model::Shape shape{211, 40, 128, 3, 4, 200, 1e4, 1e-5};
  Pass<Scalar> pass{shape, {.sequences = 1}};
  model::Hooks nobody;
  GraphOfATokensStep() { pass.set_params(uniform(pass.table.flat_count(), 3)); }

  std::vector<std::vector<int>> texts(int sequences, model::GenerateOptions options) {
    std::vector<std::vector<int>> prompts;
    for (int b = 0; b < sequences; ++b) prompts.push_back(uniform_int(1 + 3 * b, 30 + b, 0, 211));
    options.max_tokens = 150;
    options.top_k = 20;
    return model::generate_together<Device, Scalar>(
        Device(), shape, pass.table, pass.weights(),
        {.attention = kernels::AttentionKind::flash2, .math = kernels::GemmMath::full}, prompts, options, nobody);
  }
};
TYPED_TEST_SUITE(GraphOfATokensStep, AllScalars, ScalarNames);

TYPED_TEST(GraphOfATokensStep, gives_the_tokens_of_plain_launches_chained_or_not) {
  if (kernels::kIsHost<Device>) GTEST_SKIP() << "this build computes on a host";
  const Device exec;
  for (const int sequences : {1, 2, 3, 8, 9}) {
    const auto plain = this->texts(sequences, {});
    for (const auto links : {StepGraph::Links::ordinary, StepGraph::Links::chained}) {
      SCOPED_TRACE(::testing::Message() << sequences << " sequences, "
                                        << (links == StepGraph::Links::chained ? "chained" : "ordinary links"));
      StepGraph graph;
      bool has_run = false;
      const auto found = this->texts(sequences, {.run_step = [&](const std::function<void()>& enqueue, bool waits) {
                                       EXPECT_EQ(waits, kernels::kKernelsWait && sequences <= 8);
                                       if (!has_run) {
                                         enqueue();
                                         has_run = true;
                                         return;
                                       }
                                       if (!graph.is_recorded()) {
                                         graph.record(exec, enqueue, waits ? links : StepGraph::Links::ordinary);
                                         EXPECT_EQ(graph.not_chained_because(), "");
                                       }
                                       graph.launch(exec);
                                     }});
      EXPECT_EQ(found, plain);
    }
  }
}

}  // namespace
}  // namespace tessera::test
