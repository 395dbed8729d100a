/// The verify.attention job: attention, forward and backward, on tensors from a file, for comparison elsewhere.
///
///   job.input    q, d_out [B,H,Tq,D]; k, v [B,H,Tk,D] float32; root attribute `causal` 0 or 1
///   job.output   out, d_q [B,H,Tq,D]; lse [B,H,Tq]; d_k, d_v [B,H,Tk,D] float32
///
/// precision.compute chooses the storage type, attention.implementation the kernel. Rank 0 works.

#include <fmt/format.h>

#include <cmath>

#include "io/h5.hpp"
#include "jobs/jobs.hpp"
#include "kernels/attention/attention.hpp"
#include "train/plan.hpp"

namespace tessera::jobs {
namespace {

using Exec = kernels::Device;
using kernels::contiguous_heads;

struct Heads {
  io::h5::Shape shape;        // [B,H,T,D]
  std::vector<float> values;
};

Heads read_heads(const io::h5::File& file, const std::string& name) {
  const io::h5::Dataset dataset = file.dataset(name);
  Heads heads{dataset.shape(), {}};
  if (heads.shape.size() != 4) {
    throw Failure(Exit::files, fmt::format("{}: must be [B,H,T,D], has {} dimensions", dataset.where(), heads.shape.size()));
  }
  heads.values = dataset.values<float>();
  return heads;
}

template <class Scalar>
class OnDevice {
 public:
  OnDevice(const std::string& label, const io::h5::Shape& shape)
      : shape_(shape), view_(Kokkos::view_alloc(Kokkos::WithoutInitializing, label), count()) {}
  OnDevice(const std::string& label, const Heads& heads) : OnDevice(label, heads.shape) {
    const auto host = Kokkos::create_mirror_view(view_);
    for (std::size_t i = 0; i < host.extent(0); ++i) host(i) = static_cast<Scalar>(heads.values[i]);
    Kokkos::deep_copy(view_, host);
  }

  kernels::HeadTensor<Scalar, Exec> heads() const {
    const auto extent = [&](int i) { return static_cast<int>(shape_[i]); };
    return contiguous_heads<Exec>(view_.data(), extent(0), extent(1), extent(2), extent(3));
  }
  kernels::HeadRows<Scalar, Exec> rows() const {
    return kernels::HeadRows<Scalar, Exec>(view_.data(), shape_[0], shape_[1], shape_[2]);
  }

  void write(io::h5::File& file, const std::string& name, const char* description) const {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view_);
    std::vector<float> values(host.extent(0));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(host(i));
    file.write(name, shape_, std::span<const float>(values), {"1", description});
  }

 private:
  std::int64_t count() const {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape_) count *= extent;
    return count;
  }
  io::h5::Shape shape_;
  Kokkos::View<Scalar*, typename Exec::memory_space> view_;
};

template <class Scalar>
void verify(const Context& context) {
  using Real = Accum<Scalar>;
  const config::Settings& settings = context.settings();
  const io::h5::File input = io::h5::File::open(settings.job.input);
  const Heads q_h = read_heads(input, "q"), k_h = read_heads(input, "k"), v_h = read_heads(input, "v"), d_out_h = read_heads(input, "d_out");
  if (d_out_h.shape != q_h.shape || v_h.shape != k_h.shape) {
    throw Failure(Exit::files, fmt::format("{}: d_out must have q's shape, and v k's", settings.job.input));
  }
  const bool causal = input.integer("causal") != 0;
  const std::int64_t B = q_h.shape[0], H = q_h.shape[1], Tq = q_h.shape[2], D = q_h.shape[3], Tk = k_h.shape[2];

  const OnDevice<Scalar> q("q", q_h), k("k", k_h), v("v", v_h), d_out("d_out", d_out_h);
  const OnDevice<Scalar> out("out", q_h.shape), d_q("d_q", q_h.shape), d_k("d_k", k_h.shape), d_v("d_v", k_h.shape);
  const OnDevice<Real> lse("lse", io::h5::Shape{B, H, Tq});
  const kernels::AttentionKind kind = train::kind_of(settings.attention.implementation);
  const io::h5::Shape scores = kind == kernels::AttentionKind::standard ? io::h5::Shape{B, H, Tq, Tk} : io::h5::Shape{0, 0, 0, 0};
  const OnDevice<Scalar> probabilities("probabilities", scores), d_scores("d_scores", scores);

  const Exec exec;
  const kernels::Attention<Exec, Scalar> attention{kind, q.heads(), k.heads(), v.heads(), out.heads(), lse.rows(),
                                                   probabilities.heads(), static_cast<Real>(1 / std::sqrt(static_cast<double>(D))), causal};
  attention.forward(exec);
  attention.backward(exec, {d_out.heads(), d_q.heads(), d_k.heads(), d_v.heads(), d_scores.heads()});
  exec.fence();

  io::h5::File output = io::h5::File::create(output_path(context, "attention.h5"));
  output.set_attribute("causal", std::int64_t{causal});
  out.write(output, "out", "attention output [B,H,Tq,D]");
  lse.write(output, "lse", "log-sum-exp of the scaled scores [B,H,Tq], -inf where a query sees no key");
  d_q.write(output, "d_q", "gradient of q [B,H,Tq,D]");
  d_k.write(output, "d_k", "gradient of k [B,H,Tk,D]");
  d_v.write(output, "d_v", "gradient of v [B,H,Tk,D]");
  output.close();
}

}  // namespace

Exit verify_attention(const Context& context) {
  on_root(context.world, [&] {
    switch (train::dtype_of(context.settings().precision.compute)) {
      case Dtype::bf16: return verify<bfloat16>(context);
      case Dtype::fp16: return verify<float16>(context);
      default: return verify<float>(context);
    }
  });
  return Exit::finished;
}

}  // namespace tessera::jobs
