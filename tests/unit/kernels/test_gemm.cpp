#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/target.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/head_gemm.hpp"
#include "kernels/gemm/head_product.hpp"
#include "reference/gemm.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::gemm_workspace;
using kernels::GemmMath;
using kernels::GemmSelection;
using kernels::Op;

struct Shape {
  int m, n, k;
};
// one element, primes, powers of two and their neighbours, thin ones, a column, a head width of 80, an empty sum; and
// where sums are split: much longer than the result is wide
const std::vector<Shape> kShapes = {{1, 1, 1},     {2, 3, 5},   {17, 31, 13},  {64, 65, 63}, {1, 128, 40},
                                    {129, 2, 300}, {40, 1, 19}, {257, 80, 72}, {8, 8, 2048}, {3, 4, 0}};
enum class Start { nothing, itself };  // what the product is added to

template <class InType, class OutType>
struct Types {
  using In = InType;
  using Out = OutType;
};
using AllTypes = ::testing::Types<Types<double, double>, Types<float, float>, Types<bfloat16, bfloat16>,
                                  Types<float16, float16>, Types<bfloat16, float>, Types<float16, float>>;
struct TypeNames {
  template <class T>
  static std::string GetName(int) {
    return std::string(kScalarName<typename T::In>) + "_to_" + std::string(kScalarName<typename T::Out>);
  }
};

/// Operands for every product; made once, because filling them takes longer than a product.
template <class In, class Out>
Buffer<float> workspace_of(const std::vector<Shape>& shapes, GemmMath math = GemmMath::full) {
  std::int64_t most = 0;
  for (const Shape s : shapes) most = std::max(most, gemm_workspace<In, Out>(kernels::kHere, s.m, s.n, s.k, math));
  return Buffer<float>::unwritten(most);
}

template <class In, class Out>
std::vector<Out> product(const Buffer<float>& workspace, Shape s, Op op_a, Op op_b, Start start,
                         const std::vector<double>& a, const std::vector<double>& b, const std::vector<double>& before,
                         GemmMath math = GemmMath::full) {
  const bool ta = op_a == Op::transpose, tb = op_b == Op::transpose;
  const Buffer<In> a_in(a), b_in(b);
  // without accumulation the previous c must not matter, not even a NaN
  const auto c = start == Start::itself ? Buffer<Out>(before) : Buffer<Out>::unwritten(before.size());
  kernels::Gemm<Device, In, Out>{.a = a_in.matrix(ta ? s.k : s.m, ta ? s.m : s.k),
                                 .op_a = op_a,
                                 .b = b_in.matrix(tb ? s.n : s.k, tb ? s.k : s.n),
                                 .op_b = op_b,
                                 .c = c.matrix(s.m, s.n),
                                 .accumulate = start == Start::itself,
                                 .workspace = workspace.vector(),
                                 .math = math}
      .launch(instance());
  return c.elements();
}

/// Error bound of c: one rounding to Out, and that of the sum (terms of either sign, at most 1: partial sums grow like
/// sqrt(k)); on GPUs a product that accumulates in 16 bits is rounded before the addition, too.
template <class In, class Out>
Closeness closeness(Shape s, Start start, const std::vector<double>& sum, const std::vector<double>& before) {
  Closeness allowed{.relative = kEpsilon<Out>, .absolute = tolerance<Accum<In>>(s.k) * (1 + std::sqrt(s.k))};
  if (start == Start::itself && sizeof(Out) == 2 && kernels::kHere.has_vendor_parts()) {
    double largest = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) largest = std::max(largest, std::abs(sum[i] - before[i]));
    allowed.absolute += kEpsilon<Out> / 2 * largest;
  }
  return allowed;
}

std::size_t elements_of(int rows, int columns) { return static_cast<std::size_t>(rows) * columns; }

template <class T>
struct Gemm : ::testing::Test {};
TYPED_TEST_SUITE(Gemm, AllTypes, TypeNames);

TYPED_TEST(Gemm, matches_reference_for_ragged_shapes_all_transposes_and_whatever_it_is_added_to) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  const auto workspace = workspace_of<In, Out>(kShapes);
  for (const Shape s : kShapes) {
    const auto a = uniform_as<In>(elements_of(s.m, s.k), 1), b = uniform_as<In>(elements_of(s.k, s.n), 2);
    const auto before = uniform_as<Out>(elements_of(s.m, s.n), 3);
    for (const Op op_a : {Op::none, Op::transpose}) {
      for (const Op op_b : {Op::none, Op::transpose}) {
        const auto expected =
            reference::gemm(a, op_a == Op::transpose, b, op_b == Op::transpose, s.m, s.n, s.k, before);
        for (const Start start : {Start::nothing, Start::itself}) {
          SCOPED_TRACE(::testing::Message() << s.m << 'x' << s.n << 'x' << s.k << " transposed " << int(op_a) << ' '
                                            << int(op_b) << " added to " << int(start));
          auto sum = expected;
          for (std::size_t i = 0; start == Start::nothing && i < sum.size(); ++i) sum[i] -= before[i];
          const Buffer<Out> got(product<In, Out>(workspace, s, op_a, op_b, start, a, b, before));
          EXPECT_TRUE(all_close<Out>(got.values(), sum, closeness<In, Out>(s, start, sum, before),
                                     {std::size_t(s.m), std::size_t(s.n)}));
        }
      }
    }
  }
}

TYPED_TEST(Gemm, repeats_bit_for_bit) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  const std::vector<Shape> shapes = {{61, 67, 129}, {64, 128, 4096}, {8, 8, 4096}};
  const auto workspace = workspace_of<In, Out>(shapes);
  for (const Shape s : shapes) {
    const auto a = uniform_as<In>(elements_of(s.m, s.k), 1), b = uniform_as<In>(elements_of(s.k, s.n), 2);
    const auto before = uniform_as<Out>(elements_of(s.m, s.n), 3);
    for (const Op op_a : {Op::none, Op::transpose}) {
      const auto once = product<In, Out>(workspace, s, op_a, Op::none, Start::itself, a, b, before);
      for (int repeat = 0; repeat < 5; ++repeat) {
        EXPECT_TRUE(same_bits(once, product<In, Out>(workspace, s, op_a, Op::none, Start::itself, a, b, before)));
      }
    }
  }
}

TYPED_TEST(Gemm, keeps_restores_and_repeats_algorithms_that_were_selected_by_time) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  const Shape s{128, 256, 2048};
  const auto workspace = workspace_of<In, Out>({s});
  const auto a = uniform_as<In>(elements_of(s.m, s.k), 1), b = uniform_as<In>(elements_of(s.k, s.n), 2);
  const auto before = uniform_as<Out>(elements_of(s.m, s.n), 3);
  const auto multiply = [&] {
    return product<In, Out>(workspace, s, Op::none, Op::transpose, Start::itself, a, b, before);
  };
  kernels::set_gemm_algorithms({});
  kernels::set_gemm_selection(GemmSelection::timed);
  const auto selected = multiply();  // the trials must leave c as a single product does
  const auto lines = kernels::gemm_algorithms();
  kernels::set_gemm_selection(GemmSelection::heuristic);
  const bool has_choice = kernels::kHere.has_vendor_parts() && sizeof(In) == 2;
  EXPECT_EQ(lines.size(), has_choice ? 2U : 0U);  // the library's line, and the product's
  const auto expected = reference::gemm(a, false, b, true, s.m, s.n, s.k, before);
  EXPECT_TRUE(
      all_close<Out>(Buffer<Out>(selected).values(), expected, closeness<In, Out>(s, Start::itself, expected, before)));

  kernels::set_gemm_algorithms({});
  EXPECT_TRUE(kernels::gemm_algorithms().empty());
  kernels::set_gemm_algorithms(lines);
  EXPECT_EQ(kernels::gemm_algorithms(), lines);
  EXPECT_TRUE(same_bits(multiply(), selected));
  EXPECT_EQ(kernels::gemm_algorithms(), lines);
  kernels::set_gemm_algorithms({});
}

TYPED_TEST(Gemm, shows_itself_by_name_on_the_callers_instance) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  const Shape s{4, 5, 6};
  const OtherInstance other;
  const LaunchRecorder recorder;
  product<In, Out>(workspace_of<In, Out>({s}), s, Op::none, Op::transpose, Start::itself, std::vector<double>(24),
                   std::vector<double>(30), std::vector<double>(20));
  const bool is_ours = kernels::kHere.has_vendor_parts() && sizeof(In) == 2;
  EXPECT_THAT(recorder.labels(), ::testing::Contains(::testing::StartsWith("tessera::gemm::nt[")));
  if (is_ours) {
    EXPECT_THAT(recorder.labels(), ::testing::ElementsAre("tessera::gemm::nt[cublaslt]"));
  }
  for (const auto& [label, number, time_s] : recorder.launches()) {
    EXPECT_THAT(label, ::testing::AnyOf(::testing::StartsWith("tessera::"), ::testing::StartsWith("KokkosBlas::")));
    EXPECT_EQ(number, Kokkos::Tools::Experimental::device_id(instance())) << label;
  }
}

TYPED_TEST(Gemm, refuses_shapes_that_disagree_and_a_small_workspace) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  const auto in = Buffer<In>::zeros(64);
  const auto out = Buffer<Out>::zeros(64);
  const auto needed = gemm_workspace<In, Out>(kernels::kHere, 3, 5, 4);
  const auto workspace = Buffer<float>::zeros(needed);
  using Kernel = kernels::Gemm<Device, In, Out>;
  const Kernel good{.a = in.matrix(3, 4),
                    .op_a = Op::none,
                    .b = in.matrix(4, 5),
                    .op_b = Op::none,
                    .c = out.matrix(3, 5),
                    .accumulate = false,
                    .workspace = workspace.vector()};
  EXPECT_NO_THROW(good.launch(instance()));
  const auto refuses = [&](auto change) {
    Kernel bad = good;
    change(bad);
    EXPECT_THROW(bad.launch(instance()), std::invalid_argument);
  };
  refuses([&](Kernel& k) { k.a = in.matrix(4, 4); });
  refuses([&](Kernel& k) { k.b = in.matrix(3, 5); });
  refuses([&](Kernel& k) { k.c = out.matrix(3, 4); });
  refuses([&](Kernel& k) { k.op_a = Op::transpose; });
  refuses([&](Kernel& k) { k.op_b = Op::transpose; });
  EXPECT_EQ(needed > 0, sizeof(In) == 2);
  if (needed > 0) refuses([&](Kernel& k) { k.workspace = workspace.first(static_cast<int>(needed) - 1); });
}

TYPED_TEST(Gemm, tf32_is_for_products_of_float_on_gpus_and_within_its_error) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  const Shape s{64, 96, 128};
  const auto workspace = workspace_of<In, Out>({s}, GemmMath::tf32);
  const auto a = uniform_as<In>(elements_of(s.m, s.k), 1), b = uniform_as<In>(elements_of(s.k, s.n), 2);
  const std::vector<double> zero(elements_of(s.m, s.n));
  const auto multiply = [&] {
    return product<In, Out>(workspace, s, Op::none, Op::none, Start::nothing, a, b, zero, GemmMath::tf32);
  };
  if (!kernels::kHere.has_vendor_parts() || !std::is_same_v<In, float>) {
    EXPECT_THROW(multiply(), std::invalid_argument);
    return;
  }
  const auto got = Buffer<Out>(multiply()).values();
  const auto expected = reference::gemm(a, false, b, false, s.m, s.n, s.k, zero);
  // relative error of an operand: at most 2^-11 if rounded, 2^-10 if truncated; the errors' signs are random
  EXPECT_TRUE(all_close<Out>(got, expected, {.absolute = 2 * 0x1p-10 * std::sqrt(s.k)}));
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) largest = std::max(largest, std::abs(got[i] - expected[i]));
  EXPECT_GT(largest, 16 * kEpsilon<float>);  // so tf32 was used
}

template <class Scalar>
struct HeadGemm : ::testing::Test {};
TYPED_TEST_SUITE(HeadGemm, AllScalars, ScalarNames);

/// Heads one after the other, and interleaved in rows; more heads than sequences, and fewer; all transposes.
TYPED_TEST(HeadGemm, matches_reference_for_all_strides_and_transposes) {
  using Real = Accum<TypeParam>;
  enum class Laid { in_a_row, interleaved };
  const auto heads = [](const Buffer<TypeParam>& x, Laid laid, int B, int H, int rows, int columns) {
    return laid == Laid::in_a_row ? x.heads(B, H, rows, columns)
                                  : kernels::heads_of_rows<Device>(x.data(), B, H, rows, columns);
  };
  const auto at = [](Laid laid, int H, int rows, int columns, int b, int h, int i, int j) {
    return laid == Laid::in_a_row ? ((std::size_t(b) * H + h) * rows + i) * columns + j
                                  : ((std::size_t(b) * rows + i) * H + h) * columns + j;
  };
  for (const auto& [B, H] : {std::pair{1, 3}, {2, 3}, {3, 2}}) {
    for (const Shape s : {Shape{17, 24, 40}, {1, 5, 7}, {16, 1, 9}, {5, 8, 1}, {3, 4, 0}}) {
      for (const int ways : {0, 1, 2, 3, 4, 5, 6, 7}) {
        const Laid laid = ways & 1 ? Laid::interleaved : Laid::in_a_row;
        const bool ta = ways & 2, tb = ways & 4;
        SCOPED_TRACE(::testing::Message()
                     << B << " x " << H << " of " << s.m << 'x' << s.n << 'x' << s.k << ' ' << ways);
        const auto a = uniform_as<TypeParam>(B * H * elements_of(s.m, s.k), 1);
        const auto b = uniform_as<TypeParam>(B * H * elements_of(s.k, s.n), 2);
        const Buffer<TypeParam> a_in(a), b_in(b);
        const auto c = Buffer<TypeParam>::unwritten(B * H * elements_of(s.m, s.n));
        const auto a_heads = heads(a_in, laid, B, H, ta ? s.k : s.m, ta ? s.m : s.k);
        const auto b_heads = heads(b_in, laid, B, H, tb ? s.n : s.k, tb ? s.k : s.n);
        kernels::HeadGemm<Device, TypeParam>{.label = "tessera::test",
                                             .a = ta ? kernels::transposed(a_heads) : a_heads,
                                             .b = tb ? kernels::transposed(b_heads) : b_heads,
                                             .c = heads(c, laid, B, H, s.m, s.n),
                                             .factor = Real(0.5)}
            .launch(instance());
        std::vector<double> expected(c.size());
        for (int i_b = 0; i_b < B; ++i_b) {
          for (int i_h = 0; i_h < H; ++i_h) {
            for (int i = 0; i < s.m; ++i) {
              for (int j = 0; j < s.n; ++j) {
                double sum = 0;
                for (int p = 0; p < s.k; ++p) {
                  sum += a[ta ? at(laid, H, s.k, s.m, i_b, i_h, p, i) : at(laid, H, s.m, s.k, i_b, i_h, i, p)] *
                         b[tb ? at(laid, H, s.n, s.k, i_b, i_h, j, p) : at(laid, H, s.k, s.n, i_b, i_h, p, j)];
                }
                expected[at(laid, H, s.m, s.n, i_b, i_h, i, j)] = sum / 2;
              }
            }
          }
        }
        EXPECT_TRUE(all_close<TypeParam>(
            c.values(), expected,
            {.relative = kEpsilon<TypeParam>, .absolute = tolerance<Real>(s.k) * (1 + std::sqrt(s.k))}));
      }
    }
  }
}

TYPED_TEST(HeadGemm, refuses_shapes_and_strides_that_it_cannot_multiply) {
  const auto data = Buffer<TypeParam>::zeros(1024);
  using Kernel = kernels::HeadGemm<Device, TypeParam>;
  const Kernel good{.label = "tessera::test",
                    .a = data.heads(2, 2, 3, 4),
                    .b = data.heads(2, 2, 4, 5),
                    .c = data.heads(2, 2, 3, 5),
                    .factor = 1};
  EXPECT_NO_THROW(good.launch(instance()));
  const auto refuses = [&](auto change) {
    Kernel bad = good;
    change(bad);
    EXPECT_THROW(bad.launch(instance()), std::invalid_argument);
  };
  refuses([&](Kernel& k) { k.a = data.heads(2, 2, 3, 5); });
  refuses([&](Kernel& k) { k.b = data.heads(2, 1, 4, 5); });
  refuses([&](Kernel& k) { k.c = kernels::transposed(data.heads(2, 2, 5, 3)); });
  refuses([&](Kernel& k) {
    k.a = kernels::HeadTensor<const TypeParam, Device>(data.data(), Kokkos::LayoutStride(2, 48, 2, 24, 3, 8, 4, 2));
  });
}

TEST(HeadGemmAlgorithms, come_back_from_their_lines) {
  if (!kernels::kHere.has_vendor_parts()) GTEST_SKIP() << "the library has no choice";
  kernels::set_gemm_algorithms({});
  const auto data = Buffer<float>::zeros(4096);
  const auto multiply = [&] {
    kernels::HeadGemm<Device, float>{.label = "tessera::test",
                                     .a = data.heads(2, 2, 8, 16),
                                     .b = data.heads(2, 2, 16, 8),
                                     .c = data.heads(2, 2, 8, 8),
                                     .factor = 1}
        .launch(instance());
  };
  multiply();
  const auto lines = kernels::gemm_algorithms();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[1], ::testing::HasSubstr(" batch 4 rows 16 8 8 steps 128 128 64 :"));
  kernels::set_gemm_algorithms({});
  kernels::set_gemm_algorithms(lines);
  multiply();
  EXPECT_EQ(kernels::gemm_algorithms(), lines);
  kernels::set_gemm_algorithms({});
}

TEST(GemmAlgorithms, refuse_lines_that_do_not_belong_here) {
  const std::string other = "cuBLASLt 1.2.3 on another GPU with 7 multiprocessors";
  EXPECT_THROW(kernels::set_gemm_algorithms({other}), std::runtime_error);
  if (!kernels::kHere.has_vendor_parts()) return;
  const Shape s{8, 8, 8};
  product<bfloat16, bfloat16>(workspace_of<bfloat16, bfloat16>({s}), s, Op::none, Op::none, Start::nothing,
                              std::vector<double>(64), std::vector<double>(64), std::vector<double>(64));
  const auto lines = kernels::gemm_algorithms();
  ASSERT_GE(lines.size(), 2U);
  EXPECT_THROW(kernels::set_gemm_algorithms({lines[0], "bf16 bf16 full xy 8 8 8"}), std::invalid_argument);
  auto cut = lines[1].substr(0, lines[1].find(':') + 20);
  EXPECT_THROW(kernels::set_gemm_algorithms({lines[0], cut}), std::invalid_argument);
  EXPECT_EQ(kernels::gemm_algorithms(), lines);  // a refusal changes nothing
}

}  // namespace
}  // namespace tessera::test
