#include "kernels/gemm/head_gemm.hpp"  // the contract is there; here is how

#include <algorithm>

#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/cuda/target.hpp"
#include "kernels/gemm/cublaslt.hpp"
#include "kernels/gemm/head_product.hpp"
#include "kernels/gemm/host_blas.hpp"

namespace tessera::kernels {
namespace {

/// A matrix of each head as it is stored: row-major, transposed or not.
struct Stored {
  Op op;
  std::int64_t rows, columns;
  std::int64_t row;  // from a row to the next [elements]
  bool is_contiguous;
};

template <class Heads>
Stored stored(const Heads& x) {
  const auto of = [](Op op, int rows, int columns, std::int64_t row, std::int64_t element) {
    // The distance of a single row to the next, or of a single element, means nothing.
    if (rows <= 1) row = columns;
    return Stored{op, rows, columns, row, (element == 1 || columns <= 1) && row >= columns};
  };
  const int M = x.extent_int(2), N = x.extent_int(3);
  const Stored plain = of(Op::none, M, N, x.stride(2), x.stride(3));
  return plain.is_contiguous ? plain : of(Op::transpose, N, M, x.stride(3), x.stride(2));
}

/// How the heads [B,H] of several operands are divided among calls: `calls` of `batch` heads each.
struct Calls {
  int calls, batch;
  int outer, inner;  // the dimensions that calls and batches walk
};

template <class... Heads>
Calls divide(const Heads&... x) {
  const auto extent = [](int d, const auto& first, const auto&...) { return first.extent_int(d); };
  const int B = extent(0, x...), H = extent(1, x...);
  const bool is_even = (... && (std::int64_t(x.stride(0)) == std::int64_t(x.stride(1)) * H));
  if (B == 1 || is_even) return {1, B * H, 0, 1};
  return B <= H ? Calls{B, H, 0, 1} : Calls{H, B, 1, 0};
}

template <class Exec, class Scalar>
void multiply_cublaslt(const Exec& exec, const HeadGemm<Exec, Scalar>& x) {
  const auto& [label, a, b, c, factor, math] = x;
  const Stored sa = stored(a), sb = stored(b), sc = stored(c);
  const Calls how = divide(a, b, c);
  const auto step = [&](const auto& heads) { return how.batch > 1 ? std::int64_t(heads.stride(how.inner)) : 0; };
  const auto address = [&](const auto& heads, int call) { return heads.data() + call * heads.stride(how.outer); };
  cublaslt::Kind kind{.in = kDtype<Scalar>,
                      .out = kDtype<Scalar>,
                      .math = math,
                      .op_a = sa.op,
                      .op_b = sb.op,
                      .m = c.extent_int(2),
                      .n = c.extent_int(3),
                      .k = a.extent_int(3),
                      .accumulate = false,
                      .alignment = 0,
                      .batch = {how.batch, {sa.row, sb.row, sc.row}, {step(a), step(b), step(c)}}};
  for (int call = 0; call < how.calls; ++call) {
    const cublaslt::Operands operands{.a = address(a, call),
                                      .b = address(b, call),
                                      .before = address(c, call),
                                      .c = address(c, call),
                                      .workspace = nullptr,
                                      .factor = factor,
                                      .label = label};
    std::int64_t addresses = cublaslt::common_alignment(operands);
    for (const std::int64_t of_step : kind.batch.step) addresses |= of_step * std::int64_t{sizeof(Scalar)};
    kind.alignment = static_cast<int>(addresses & -addresses);
    cublaslt::multiply(exec, kind, operands);
  }
}

template <class Exec, class Scalar>
void multiply_on_host(const Exec& exec, const HeadGemm<Exec, Scalar>& x) {
  const auto matrix = [](const auto& heads, const Stored& as, int i_b, int i_h) {
    using Element = typename std::decay_t<decltype(heads)>::value_type;
    const Tensor<Exec, Element**> whole(heads.data() + i_b * heads.stride(0) + i_h * heads.stride(1), as.rows, as.row);
    return Tensor<Exec, Element**>(
        Kokkos::subview(whole, Kokkos::ALL, Kokkos::pair<std::int64_t, std::int64_t>(0, as.columns)));
  };
  const Stored a = stored(x.a), b = stored(x.b), c = stored(x.c);
  const int B = x.c.extent_int(0), H = x.c.extent_int(1);
  host_blas::multiply_blocks(exec, x.label, B * H, x.c.extent_int(2), [=](int head, int first, int count) {
    const auto of_head = [&](const auto& heads, const Stored& as) { return matrix(heads, as, head / H, head % H); };
    host_blas::multiply_rows<Exec, Scalar>(first, count, x.factor, of_head(x.a, a), a.op, of_head(x.b, b), b.op,
                                           Scalar(0), of_head(x.c, c));
  });
}

}  // namespace

template <class Exec, class Scalar>
void HeadGemm<Exec, Scalar>::launch(const Exec& exec) const {
  detail::require_head_product(a, b, c);
  const Stored result = stored(c);
  TESSERA_REQUIRE(stored(a).is_contiguous && stored(b).is_contiguous && result.is_contiguous && result.op == Op::none,
                  "head gemm: rows of c, and rows or columns of a and b, must be contiguous", a.stride(2), a.stride(3),
                  b.stride(2), b.stride(3), c.stride(2), c.stride(3));
  TESSERA_REQUIRE(math == GemmMath::full || (cublaslt::kServes<Exec> && std::is_same_v<Scalar, float>),
                  "head gemm: tf32 is for products of float by cuBLASLt", cublaslt::kServes<Exec>, kScalarName<Scalar>);
  if (c.size() == 0) return;
  const bool is_empty_sum = a.extent(3) == 0;  // libraries would leave c as it is
  if constexpr (has_head_library(kDtype<Scalar>, kTargetOf<Exec>)) {
    if (!is_empty_sum) {
      if constexpr (kIsHost<Exec>) {
        return multiply_on_host(exec, *this);
      } else {
        return multiply_cublaslt(exec, *this);
      }
    }
  }
  HeadProduct<Exec, Scalar>{label, a, b, c, factor}.launch(exec);
}

TESSERA_INSTANTIATE_KERNEL(HeadGemm);

}  // namespace tessera::kernels
