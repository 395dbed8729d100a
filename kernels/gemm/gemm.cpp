#include "kernels/gemm/gemm.hpp"  // the contract is there; here is how

#include <dlfcn.h>

#include "kernels/core/cast_copy.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/cuda/target.hpp"
#include "kernels/gemm/cublaslt.hpp"
#include "kernels/gemm/head_product.hpp"
#include "kernels/gemm/host_blas.hpp"
#include "kernels/gemm/kokkos_kernels.hpp"

namespace tessera::kernels {
namespace {

/// Whether Kokkos Kernels on a GPU would compute a product by dot products and atomic additions: in no fixed order.
[[maybe_unused]] bool is_summed_in_any_order(Op op_a, Op op_b, std::int64_t results) {
  return op_a == Op::transpose && op_b == Op::none && results < 100;
}

/// c = op(a) op(b), or c += op(a) op(b), by Kokkos Kernels.
template <class Exec, class Real>
void multiply(const Exec& exec, Tensor<Exec, const Real**> a, Op op_a, Tensor<Exec, const Real**> b, Op op_b,
              Tensor<Exec, Real**> c, bool accumulate) {
  if constexpr (!kIsHost<Exec>) {
    if (is_summed_in_any_order(op_a, op_b, c.size())) {
      const auto one_head = [](const auto& x) {
        using Element = typename std::decay_t<decltype(x)>::value_type;
        return contiguous_heads<Exec, Element>(x.data(), 1, 1, x.extent_int(0), x.extent_int(1));
      };
      HeadProduct<Exec, Real>{
          detail::product_label(op_a, op_b), transposed(one_head(a)), one_head(b), one_head(c), 1, accumulate}
          .launch(exec);
      return;
    }
  }
  kokkos_kernels::multiply<Exec, Real>(exec, detail::product_label(op_a, op_b), 1, a, op_a, b, op_b, accumulate ? 1 : 0,
                                       c);
}

template <class Exec, class From, class To>
void convert(const Exec& exec, const From* from, To* to, std::int64_t count) {
  CastCopy<Exec, From, To>{Vector<const From, Exec>(from, count), Vector<To, Exec>(to, count)}.launch(exec);
}

/// The product of 16-bit operands without library support: widened to float panels in the workspace.
template <class Exec, class In, class Out>
void multiply_panels(const Exec& exec, const Gemm<Exec, In, Out>& product, std::int64_t m, std::int64_t n,
                     std::int64_t k) {
  const auto& [a, op_a, b, op_b, c, accumulate, workspace, math] = product;
  float* a_wide = workspace.data();
  float* b_wide = a_wide + m * k;
  convert(exec, a.data(), a_wide, m * k);
  convert(exec, b.data(), b_wide, k * n);
  const Matrix<const float, Exec> a_panel(a_wide, a.extent(0), a.extent(1)), b_panel(b_wide, b.extent(0), b.extent(1));
  if constexpr (sizeof(Out) > 2) {
    multiply<Exec, float>(exec, a_panel, op_a, b_panel, op_b, c, accumulate);
  } else {
    const Matrix<float, Exec> c_panel(b_wide + k * n, m, n);
    if (accumulate) convert(exec, static_cast<const Out*>(c.data()), c_panel.data(), m * n);
    multiply<Exec, float>(exec, a_panel, op_a, b_panel, op_b, c_panel, accumulate);
    convert(exec, static_cast<const float*>(c_panel.data()), c.data(), m * n);
  }
}

template <class Exec, class In, class Out>
void multiply_cublaslt(const Exec& exec, const Gemm<Exec, In, Out>& x, std::int64_t m, std::int64_t n, std::int64_t k) {
  const std::uintptr_t workspace =
      round_up(reinterpret_cast<std::uintptr_t>(x.workspace.data()), std::uintptr_t{cublaslt::kWorkspaceAlignment});
  const cublaslt::Operands operands{.a = x.a.data(),
                                    .b = x.b.data(),
                                    .before = x.c.data(),
                                    .c = x.c.data(),
                                    .workspace = reinterpret_cast<void*>(workspace)};
  const cublaslt::Kind kind{.in = kDtype<In>,
                            .out = kDtype<Out>,
                            .math = x.math,
                            .op_a = x.op_a,
                            .op_b = x.op_b,
                            .m = m,
                            .n = n,
                            .k = k,
                            .accumulate = x.accumulate,
                            .alignment = cublaslt::common_alignment(operands)};
  cublaslt::multiply(exec, kind, operands);
}

}  // namespace

template <class Exec, class In, class Out>
void Gemm<Exec, In, Out>::launch(const Exec& exec) const {
  const bool ta = op_a == Op::transpose, tb = op_b == Op::transpose;
  const std::int64_t m = c.extent(0), n = c.extent(1), k = a.extent(ta ? 0 : 1);
  TESSERA_REQUIRE(std::int64_t(a.extent(ta ? 1 : 0)) == m && std::int64_t(b.extent(tb ? 0 : 1)) == n &&
                      std::int64_t(b.extent(tb ? 1 : 0)) == k,
                  "gemm: shapes must be op(a) [m,k] x op(b) [k,n] = c [m,n]", a.extent(0), a.extent(1), ta, b.extent(0),
                  b.extent(1), tb, m, n);
  TESSERA_REQUIRE(math == GemmMath::full || (cublaslt::kServes<Exec> && std::is_same_v<In, float>),
                  "gemm: tf32 is for products of float by cuBLASLt", cublaslt::kServes<Exec>, kScalarName<In>);
  const std::int64_t needed = gemm_workspace<In, Out>(kTargetOf<Exec>, m, n, k, math);
  TESSERA_REQUIRE(std::int64_t(workspace.extent(0)) >= needed, "gemm: workspace too small [floats]",
                  workspace.extent(0), needed);
  if (m == 0 || n == 0) return;
  if (k == 0) {  // an empty sum; libraries would leave c as it is
    if (!accumulate) Kokkos::deep_copy(exec, c, static_cast<Out>(0.0f));
    return;
  }
  if constexpr (cublaslt::kServes<Exec>) {
    if (sizeof(In) == 2 || math == GemmMath::tf32 || is_summed_in_any_order(op_a, op_b, m * n)) {
      multiply_cublaslt(exec, *this, m, n, k);
      return;
    }
  }
  if constexpr (sizeof(In) > 2) {
    multiply<Exec, In>(exec, a, op_a, b, op_b, c, accumulate);
  } else if constexpr (!cublaslt::kServes<Exec>) {
    multiply_panels(exec, *this, m, n, k);
  }
}

std::string gemm_library() {
  // The dynamic linker chooses the BLAS, unless it is part of the program.
  Dl_info info{};
  void* const sgemm = dlsym(RTLD_DEFAULT, "sgemm_");
  std::string text = sgemm != nullptr && dladdr(sgemm, &info) != 0 ? info.dli_fname : "linked statically";
  text += " (" + openblas::description() + ")";
  if (kHasThreads<Device> && !openblas::is_safe_for_threads()) {
    text += ", on one thread: choose libopenblas0-pthread to use more";
  }
  if constexpr (cublaslt::kServes<Device>) text = cublaslt::versions() + "; on the host " + text;
  return text;
}

int blas_threads() { return kIsHost<Device> && openblas::is_safe_for_threads() ? Device().concurrency() : 1; }

void warm_up_gemm() {
  if constexpr (kIsHost<Device>) openblas::map_buffers(blas_threads());
  constexpr std::size_t kSize = 128;
  const Kokkos::View<float*, Device> memory("tessera::gemm_warm_up", 3 * kSize * kSize);
  const auto matrix = [&](std::size_t i) {
    return Matrix<float, Device>(memory.data() + i * kSize * kSize, kSize, kSize);
  };
  const Kokkos::View<float*, Device> workspace("tessera::gemm_warm_up",
                                               gemm_workspace<float, float>(kHere, kSize, kSize, kSize));
  const Device exec;
  Gemm<Device, float>{.a = matrix(0),
                      .op_a = Op::none,
                      .b = matrix(1),
                      .op_b = Op::none,
                      .c = matrix(2),
                      .accumulate = false,
                      .workspace = Vector<float, Device>(workspace.data(), workspace.extent(0))}
      .launch(exec);
  exec.fence();
}

GemmSelection set_gemm_selection([[maybe_unused]] GemmSelection selection) {
  if constexpr (cublaslt::kServes<Device>) {
    return cublaslt::set_selection(selection);
  } else {
    return GemmSelection::heuristic;
  }
}

std::vector<std::string> gemm_algorithms() {
  if constexpr (cublaslt::kServes<Device>) {
    return cublaslt::algorithms();
  } else {
    return {};
  }
}

void set_gemm_algorithms(const std::vector<std::string>& lines) {
  if constexpr (cublaslt::kServes<Device>) {
    cublaslt::set_algorithms(lines);
  } else if (!lines.empty()) {
    throw std::runtime_error("gemm: the algorithms were chosen with " + lines.front() +
                             ", and this build's library has none to choose: leave them out");
  }
}

TESSERA_INSTANTIATE_KERNEL(Gemm);
template struct Gemm<Device, bfloat16, float>;
template struct Gemm<Device, float16, float>;

}  // namespace tessera::kernels
