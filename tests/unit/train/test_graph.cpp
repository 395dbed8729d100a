#include "train/graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/chain.hpp"
#include "kernels/cuda/target.hpp"
#include "kernels/gemm/gemm.hpp"
#include "model/generate.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"
#include "unit/model/pass.hpp"

namespace tessera::test {
namespace {

using train::StepGraph;

TEST(StepGraph, is_refused_by_name_where_there_are_none) {
  if (kernels::kHere.has_vendor_parts()) GTEST_SKIP() << "this build has graphs";
  StepGraph graph;
  EXPECT_FALSE(graph.is_recorded());
  EXPECT_THROW(graph.record(Device(), [] {}), std::logic_error);
  int calls = 0;
  const auto enqueue = [&] { ++calls; };
  EXPECT_FALSE(graph.run(Device(), enqueue)) << "the first time runs";
  EXPECT_EQ(calls, 1);
  EXPECT_THROW(graph.run(Device(), enqueue), std::logic_error) << "the second records";
}

TEST(StepGraph, of_other_work_than_kernels_is_not_chained_and_says_so) {
  if (!kernels::kHere.has_vendor_parts()) GTEST_SKIP() << "this build has no graphs";
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

/// A product of several waves of tiles is recorded as a kernel alone: nothing is cleared before it. So is one by an
/// algorithm that was stored and restored; one by a stored line without the mark has a workspace, and gives the same
/// bits.
TEST(StepGraph, of_a_large_product_is_one_kernel) {
  if (!kernels::kKernelsWait) GTEST_SKIP() << "graphs are chained, and say why not, in builds for sm_90 alone";
  const int n = 4096, k = 64;  // 1024 tiles of 128 x 128
  const Buffer<bfloat16> a(uniform(std::size_t{n} * k, 1)), b(uniform(std::size_t{n} * k, 2));
  const auto c = Buffer<bfloat16>::unwritten(std::size_t{n} * n);
  const auto workspace = Buffer<float>::unwritten(
      static_cast<std::size_t>(kernels::gemm_workspace<bfloat16, bfloat16>(kernels::kHere, n, n, k)));
  const Device exec;
  const auto multiply = [&] {
    kernels::Gemm<Device, bfloat16, bfloat16>{.a = a.matrix(n, k),
                                              .op_a = kernels::Op::none,
                                              .b = b.matrix(n, k),
                                              .op_b = kernels::Op::transpose,
                                              .c = c.matrix(n, n),
                                              .accumulate = false,
                                              .workspace = workspace.vector(),
                                              .math = kernels::GemmMath::full}
        .launch(exec);
  };
  const auto replayed = [&](std::string& why_not) {
    StepGraph graph;
    multiply();
    graph.record(exec, multiply, StepGraph::Links::chained);
    why_not = graph.not_chained_because();
    c.upload(std::vector<bfloat16>(c.size(), bfloat16(0.0f)));
    graph.launch(exec);
    exec.fence();
    return c.elements();
  };
  std::string why_not;
  kernels::set_gemm_algorithms({});
  const std::vector<bfloat16> fresh = replayed(why_not);
  EXPECT_EQ(why_not, "");
  std::vector<std::string> lines = kernels::gemm_algorithms();
  ASSERT_EQ(lines.size(), 2u);
  kernels::set_gemm_algorithms(lines);
  EXPECT_TRUE(same_bits(replayed(why_not), fresh));
  EXPECT_EQ(why_not, "");
  const std::string mark = " without workspace";
  ASSERT_NE(lines[1].find(mark), std::string::npos);
  lines[1].erase(lines[1].find(mark), mark.size());
  kernels::set_gemm_algorithms(lines);
  EXPECT_TRUE(same_bits(replayed(why_not), fresh));
  kernels::set_gemm_algorithms({});
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
    return model::generate_together<Scalar>(
        Device(), shape, pass.table, pass.weights(),
        {.attention = kernels::AttentionKind::flash2, .math = kernels::GemmMath::full}, prompts, options, nobody);
  }
};
TYPED_TEST_SUITE(GraphOfATokensStep, AllScalars, ScalarNames);

TYPED_TEST(GraphOfATokensStep, gives_the_tokens_of_plain_launches_chained_or_not) {
  if (!kernels::kHere.has_vendor_parts()) GTEST_SKIP() << "this build has no graphs";
  const Device exec;
  for (const int sequences : {1, 2, 3, 8, 9}) {
    const auto plain = this->texts(sequences, {});
    for (const auto links : {StepGraph::Links::ordinary, StepGraph::Links::chained}) {
      SCOPED_TRACE(::testing::Message() << sequences << " sequences, "
                                        << (links == StepGraph::Links::chained ? "chained" : "ordinary links"));
      StepGraph graph;
      int recordings = 0;
      const auto found = this->texts(sequences, {.run_step = [&](const std::function<void()>& enqueue, bool waits) {
                                       EXPECT_EQ(waits, kernels::kKernelsWait && sequences <= 8);
                                       const auto wanted = waits ? links : StepGraph::Links::ordinary;
                                       recordings += graph.run(exec, enqueue, wanted);
                                       EXPECT_EQ(graph.not_chained_because(), "");
                                     }});
      EXPECT_EQ(recordings, 1);
      EXPECT_EQ(found, plain);
    }
  }
}

}  // namespace
}  // namespace tessera::test
