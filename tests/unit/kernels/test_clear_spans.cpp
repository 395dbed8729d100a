#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/clear_spans.hpp"
#include "support/buffer.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::ClearSpan;
using kernels::kClearedPerTeam;

constexpr std::int64_t kPiece = kClearedPerTeam;

/// `before` with the spans cleared by the kernel.
template <class Scalar>
std::vector<double> cleared(const std::vector<double>& before, const std::vector<ClearSpan>& spans) {
  const Buffer<Scalar> array(before);
  const std::vector<ClearSpan> pieces = kernels::cut_spans(spans);
  const Buffer<ClearSpan> on_device(pieces);
  kernels::ClearSpans<Device, Scalar>{on_device.vector(), array.vector()}.launch(instance());
  return array.values();
}

template <class Scalar>
struct ClearSpans : ::testing::Test {};
TYPED_TEST_SUITE(ClearSpans, GradientScalars, ScalarNames);

TYPED_TEST(ClearSpans, clears_its_spans_and_nothing_beside_them) {
  const std::vector<ClearSpan> spans = {
      {3, 1}, {5, 0}, {7, 129}, {1000, kPiece}, {kPiece + 1001, kPiece - 1}, {50'000, 3 * kPiece + 5}};
  const std::size_t n = 50'000 + 3 * kPiece + 5 + 2;
  std::vector<double> expected = uniform_as<TypeParam>(n, 1, 1, 2);  // no zero among them
  const std::vector<double> before = expected;
  for (const ClearSpan& span : spans) std::fill_n(expected.begin() + span.first, span.count, 0.0);
  EXPECT_TRUE(same_bits(cleared<TypeParam>(before, spans), expected));  // +0, not -0
}

TYPED_TEST(ClearSpans, a_nan_goes_like_any_number) {
  EXPECT_THAT(cleared<TypeParam>({std::nan(""), 1, std::nan(""), 2}, {{0, 1}, {2, 1}}),
              ::testing::ElementsAre(0, 1, 0, 2));
}

TYPED_TEST(ClearSpans, launches_once_under_its_name_on_the_callers_instance_and_not_at_all_for_no_spans) {
  const OtherInstance other;
  const LaunchRecorder recorder;
  cleared<TypeParam>({1}, {});
  EXPECT_THAT(recorder.labels(), ::testing::IsEmpty());
  cleared<TypeParam>({1, 2, 3}, {{0, 1}, {2, 1}});
  EXPECT_EQ(recorder.launches().size(), 1u);
  EXPECT_TRUE(launched_under(recorder, "tessera::clear_spans", instance()));
}

TEST(CutSpans, gives_pieces_of_one_teams_work_in_their_order) {
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  for (const ClearSpan& piece : kernels::cut_spans({{5, kPiece}, {kPiece + 9, 2 * kPiece + 1}, {9 * kPiece, 0}})) {
    pieces.emplace_back(piece.first, piece.count);
  }
  EXPECT_THAT(pieces,
              ::testing::ElementsAre(std::pair(5, kPiece), std::pair(kPiece + 9, kPiece),
                                     std::pair(2 * kPiece + 9, kPiece), std::pair(3 * kPiece + 9, std::int64_t{1})));
}

TEST(CutSpans, gives_as_many_pieces_as_are_counted) {
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, kPiece - 1, kPiece, kPiece + 1, 5 * kPiece + 3}) {
    EXPECT_EQ(std::ssize(kernels::cut_spans({{7, count}})), kernels::cleared_pieces(count)) << count;
  }
}

}  // namespace
}  // namespace tessera::test
