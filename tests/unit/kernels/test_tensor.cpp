/// Addresses in tensors of more than 2^31 elements: computed, never followed, so that any machine can check them.
#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/attention/check.hpp"
#include "kernels/core/team.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/rope.hpp"
#include "support/buffer.hpp"
#include "support/instance.hpp"

namespace tessera::test {
namespace {

using Host = Kokkos::DefaultHostExecutionSpace;  // whose elements the host may address
using kernels::contiguous_heads;
using kernels::HeadRows;
using kernels::HeadTensor;
using kernels::Matrix;

/// An address at which there is no memory.
bfloat16* nowhere() { return reinterpret_cast<bfloat16*>(std::uintptr_t{1} << 40); }

/// Elements between it and `element`.
std::int64_t offset_of(const bfloat16& element) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(&element) -
                                   reinterpret_cast<std::uintptr_t>(nowhere())) /
         std::int64_t{sizeof(bfloat16)};
}

TEST(Tensor, int_indices_reach_every_element_of_a_matrix) {
  const Matrix<const bfloat16, Host> logits(nowhere(), 70'000, 128'256);
  for (const int row : {0, 16'743, 16'744, 33'488, 69'999}) {  // 2^31 and 2^32 elements lie in rows 16743 and 33487
    for (const int column : {0, 1, 128'255}) {
      EXPECT_EQ(offset_of(logits(row, column)), std::int64_t{row} * 128'256 + column) << row << ' ' << column;
    }
  }
}

TEST(Tensor, int_indices_reach_every_element_of_rows_per_head) {
  const HeadRows<const bfloat16, Host> rows(nowhere(), 64, 128, 1 << 20);
  EXPECT_EQ(offset_of(rows(15, 127, (1 << 20) - 1)), (std::int64_t{1} << 31) - 1);
  EXPECT_EQ(offset_of(rows(16, 0, 0)), std::int64_t{1} << 31);
  EXPECT_EQ(offset_of(rows(63, 127, (1 << 20) - 1)), (std::int64_t{1} << 33) - 1);
}

TEST(Tensor, int_indices_reach_every_element_of_a_head_tensor) {
  const int T = 8192;  // scores [1,64,T,T]: 2^32
  const auto scores = contiguous_heads<Host>(nowhere(), 1, 64, T, T);
  EXPECT_EQ(offset_of(scores(0, 31, T - 1, T - 1)), (std::int64_t{1} << 31) - 1);
  EXPECT_EQ(offset_of(scores(0, 32, 0, 0)), std::int64_t{1} << 31);
  EXPECT_EQ(offset_of(scores(0, 63, T - 1, T - 1)), (std::int64_t{1} << 32) - 1);
}

TEST(Tensor, int_indices_reach_every_element_of_the_heads_of_a_fused_buffer) {
  const int B = 64, H = 32, T = 4096, D = 128, C = H * D;
  const auto v = kernels::heads_of_qkv<Host>(nowhere(), 2, B, H, T, D);
  const std::int64_t last_row = std::int64_t{B} * T - 1;
  EXPECT_EQ(offset_of(v(B - 1, H - 1, T - 1, D - 1)), last_row * 3 * C + 3 * C - 1);
  const auto q_and_k = kernels::heads_of_q_and_k<Host>(nowhere(), B, H, T, D);
  EXPECT_EQ(offset_of(q_and_k(B - 1, 2 * H - 1, T - 1, D - 1)), last_row * 3 * C + 2 * C - 1);
}

TEST(Tensor, subviews_and_read_only_copies_keep_the_wide_addresses) {
  const int T = 16'384;
  const auto scores = contiguous_heads<Host>(nowhere(), 1, 32, T, T);
  const HeadTensor<const bfloat16, Host> read_only = scores;
  EXPECT_EQ(offset_of(read_only(0, 31, T - 1, 0)), (std::int64_t{32} * T - 1) * T);
  const HeadTensor<bfloat16, Host> end =
      Kokkos::subview(scores, Kokkos::ALL, Kokkos::ALL, Kokkos::pair<int, int>(T - 2, T), Kokkos::ALL);
  EXPECT_EQ(offset_of(end(0, 31, 1, 0)), (std::int64_t{32} * T - 1) * T);
}

TEST(League, is_refused_from_2_to_the_31_teams_on) {
  const std::int64_t most = (std::int64_t{1} << 31) - 1;
  EXPECT_EQ(kernels::league_of(most), most);
  EXPECT_THROW(kernels::league_of(most + 1), std::invalid_argument);

  const int B = 1 << 16, T = 1 << 16;
  const HeadRows<const float, Device> table(reinterpret_cast<const float*>(nowhere()), T, 1, 2);
  EXPECT_THROW(
      (kernels::Rope<Device, bfloat16>{contiguous_heads<Device>(nowhere(), B, 1, T, 2), table}.launch(instance())),
      std::invalid_argument);
}

TEST(AttentionShapes, are_refused_from_2_to_the_31_rows_on) {
  const int T = 1 << 15, D = 64;
  const auto heads = [&](int B, int rows) { return contiguous_heads<Device>(nowhere(), B, 256, rows, D); };
  EXPECT_NO_THROW(kernels::detail::require_attention_shapes(heads(255, T), heads(255, T), D));
  EXPECT_THROW(kernels::detail::require_attention_shapes(heads(256, T), heads(256, 1), D), std::invalid_argument);
  EXPECT_THROW(kernels::detail::require_attention_shapes(heads(256, 1), heads(256, T), D), std::invalid_argument);
}

}  // namespace
}  // namespace tessera::test
