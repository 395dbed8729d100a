#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/gemm/gemm.hpp"
#include "reference/gemm.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::gemm_workspace;
using kernels::Op;

struct Shape {
  int m, n, k;
};
// one element, primes, powers of two and their neighbours, a thin one, an empty sum
const std::vector<Shape> kShapes = {{1, 1, 1},    {2, 3, 5},     {17, 31, 13}, {64, 65, 63},
                                    {1, 128, 40}, {129, 2, 300}, {3, 4, 0}};

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

template <class In, class Out>
std::vector<Out> product(Shape s, Op op_a, Op op_b, bool accumulate, const std::vector<double>& a,
                         const std::vector<double>& b, const std::vector<double>& before) {
  const bool ta = op_a == Op::transpose, tb = op_b == Op::transpose;
  const Buffer<In> a_in(a), b_in(b);
  const Buffer<Out> c(before);
  const auto workspace = Buffer<float>::unwritten(gemm_workspace<In, Out>(s.m, s.n, s.k));
  kernels::Gemm<Device, In, Out>{.a = a_in.matrix(ta ? s.k : s.m, ta ? s.m : s.k),
                                 .op_a = op_a,
                                 .b = b_in.matrix(tb ? s.n : s.k, tb ? s.k : s.n),
                                 .op_b = op_b,
                                 .c = c.matrix(s.m, s.n),
                                 .accumulate = accumulate,
                                 .workspace = workspace.vector()}
      .launch(Device());
  return c.elements();
}

template <class T>
struct Gemm : ::testing::Test {};
TYPED_TEST_SUITE(Gemm, AllTypes, TypeNames);

TYPED_TEST(Gemm, matches_reference_for_ragged_shapes_all_transposes_with_and_without_accumulation) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  for (const Shape s : kShapes) {
    const auto a = uniform_as<In>(s.m * s.k, 1), b = uniform_as<In>(s.k * s.n, 2);
    const auto before = uniform_as<Out>(s.m * s.n, 3);
    for (const Op op_a : {Op::none, Op::transpose}) {
      for (const Op op_b : {Op::none, Op::transpose}) {
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(::testing::Message() << s.m << 'x' << s.n << 'x' << s.k << " transposed " << int(op_a) << ' '
                                            << int(op_b) << " accumulate " << accumulate);
          const auto start = accumulate ? before : std::vector<double>(before.size());
          const auto expected =
              reference::gemm(a, op_a == Op::transpose, b, op_b == Op::transpose, s.m, s.n, s.k, start);
          // what c held must not matter without accumulation, not even a NaN
          const auto held = accumulate ? before : std::vector<double>(before.size(), std::nan(""));
          const Buffer<Out> got(product<In, Out>(s, op_a, op_b, accumulate, a, b, held));
          // terms of either sign, at most 1: their partial sums grow like sqrt(k)
          EXPECT_TRUE(
              all_close<Out>(got.values(), expected,
                             {.relative = kEpsilon<Out>, .absolute = tolerance<Accum<In>>(s.k) * (1 + std::sqrt(s.k))},
                             {std::size_t(s.m), std::size_t(s.n)}));
        }
      }
    }
  }
}

TYPED_TEST(Gemm, repeats_bit_for_bit) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  const Shape s{61, 67, 129};
  const auto a = uniform_as<In>(s.m * s.k, 1), b = uniform_as<In>(s.k * s.n, 2);
  const std::vector<double> zero(s.m * s.n);
  EXPECT_TRUE(same_bits(product<In, Out>(s, Op::none, Op::none, false, a, b, zero),
                        product<In, Out>(s, Op::none, Op::none, false, a, b, zero)));
}

TYPED_TEST(Gemm, launches_nothing_of_ours_under_another_name) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  const Shape s{4, 5, 6};
  const LaunchRecorder recorder;
  product<In, Out>(s, Op::none, Op::none, true, std::vector<double>(24), std::vector<double>(30),
                   std::vector<double>(20));
  for (const auto& label : recorder.labels()) {
    EXPECT_THAT(label, ::testing::AnyOf(::testing::StartsWith("tessera::"), ::testing::StartsWith("KokkosBlas::")));
  }
}

TYPED_TEST(Gemm, refuses_shapes_that_disagree_and_a_small_workspace) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  const auto in = Buffer<In>::zeros(64);
  const auto out = Buffer<Out>::zeros(64);
  const auto workspace = Buffer<float>::zeros(256);
  using Kernel = kernels::Gemm<Device, In, Out>;
  const Kernel good{.a = in.matrix(3, 4),
                    .op_a = Op::none,
                    .b = in.matrix(4, 5),
                    .op_b = Op::none,
                    .c = out.matrix(3, 5),
                    .accumulate = false,
                    .workspace = workspace.vector()};
  EXPECT_NO_THROW(good.launch(Device()));
  const auto refuses = [&](auto change) {
    Kernel bad = good;
    change(bad);
    EXPECT_THROW(bad.launch(Device()), std::invalid_argument);
  };
  refuses([&](Kernel& k) { k.a = in.matrix(4, 4); });
  refuses([&](Kernel& k) { k.b = in.matrix(3, 5); });
  refuses([&](Kernel& k) { k.c = out.matrix(3, 4); });
  refuses([&](Kernel& k) { k.op_a = Op::transpose; });
  refuses([&](Kernel& k) { k.op_b = Op::transpose; });
  const auto needed = gemm_workspace<In, Out>(3, 5, 4);
  EXPECT_EQ(needed > 0, sizeof(In) == 2);
  if (needed > 0) refuses([&](Kernel& k) { k.workspace = workspace.first(static_cast<int>(needed) - 1); });
}

}  // namespace
}  // namespace tessera::test
