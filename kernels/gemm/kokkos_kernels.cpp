#include <KokkosBlas3_gemm.hpp>

#include <dlfcn.h>

#include "kernels/core/cast_copy.hpp"
#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/gemm/gemm.hpp"  // the contract is there; here is how

namespace tessera::kernels {
namespace {

/// Shows a library call to Kokkos Tools as a kernel, so that profiles contain the products too.
class ToolKernel {
 public:
  ToolKernel(Op op_a, Op op_b) : is_watched_(Kokkos::Tools::profileLibraryLoaded()) {
    if (!is_watched_) return;
    const char* letters = op_a == Op::transpose ? "tn" : op_b == Op::transpose ? "nt" : "nn";
    Kokkos::Tools::beginParallelFor(std::string("tessera::gemm::") + letters + "[kokkos_kernels]", 0, &id_);
  }
  ~ToolKernel() {
    if (is_watched_) Kokkos::Tools::endParallelFor(id_);
  }
  ToolKernel(const ToolKernel&) = delete;
  ToolKernel& operator=(const ToolKernel&) = delete;

 private:
  bool is_watched_;
  std::uint64_t id_ = 0;
};

/// The library call; both operands and the result of one type.
template <class Exec, class Real>
void multiply(const Exec& exec, Matrix<const Real, Exec> a, Op op_a, Matrix<const Real, Exec> b, Op op_b,
              Matrix<Real, Exec> c, bool accumulate) {
  const char* const letters[] = {"N", "T"};
  const char* letter_a = letters[static_cast<int>(op_a)];
  const char* letter_b = letters[static_cast<int>(op_b)];
  const Real one = 1, beta = accumulate ? 1 : 0;
  if (a.span() == 0) {  // an empty sum; the library would leave c as it is
    if (!accumulate) Kokkos::deep_copy(exec, c, Real(0));
    return;
  }
  const ToolKernel watched(op_a, op_b);
  const auto call = [&](const auto&... instance) {
    KokkosBlas::gemm(instance..., letter_a, letter_b, one, a, b, beta, c);
  };
  if constexpr (kBlasTakesInstance) {
    call(exec);
  } else {
    call();
  }
}

template <class Exec, class From, class To>
void convert(const Exec& exec, const From* from, To* to, std::int64_t count) {
  CastCopy<Exec, From, To>{Vector<const From, Exec>(from, count), Vector<To, Exec>(to, count)}.launch(exec);
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
  if (m == 0 || n == 0) return;
  if constexpr (sizeof(In) > 2) {
    multiply<Exec, In>(exec, a, op_a, b, op_b, c, accumulate);
  } else {
    const std::int64_t needed = gemm_workspace<In, Out>(m, n, k);
    TESSERA_REQUIRE(std::int64_t(workspace.extent(0)) >= needed, "gemm: workspace too small", workspace.extent(0),
                    needed);
    float* a_wide = workspace.data();
    float* b_wide = a_wide + m * k;
    convert(exec, a.data(), a_wide, m * k);
    convert(exec, b.data(), b_wide, k * n);
    const Matrix<const float, Exec> a_panel(a_wide, a.extent(0), a.extent(1)),
        b_panel(b_wide, b.extent(0), b.extent(1));
    if constexpr (sizeof(Out) > 2) {
      multiply<Exec, float>(exec, a_panel, op_a, b_panel, op_b, c, accumulate);
    } else {
      const Matrix<float, Exec> c_panel(b_wide + k * n, m, n);
      if (accumulate) convert(exec, c.data(), c_panel.data(), m * n);
      multiply<Exec, float>(exec, a_panel, op_a, b_panel, op_b, c_panel, accumulate);
      convert(exec, static_cast<const float*>(c_panel.data()), c.data(), m * n);
    }
  }
}

std::string gemm_library() {
  // The dynamic linker decides which BLAS it is, so ask it.
  void* sgemm = dlsym(RTLD_DEFAULT, "sgemm_");
  Dl_info info{};
  if (!sgemm || dladdr(sgemm, &info) == 0) return "unknown";
  std::string text = info.dli_fname;
  if (auto* config = reinterpret_cast<char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_config"))) {
    text += std::string(" (") + config() + ")";
  } else {
    text += " (not OpenBLAS)";
  }
  return text;
}

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct Gemm<Exec, Scalar, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE
template struct Gemm<Device, bfloat16, float>;
template struct Gemm<Device, float16, float>;

}  // namespace tessera::kernels
