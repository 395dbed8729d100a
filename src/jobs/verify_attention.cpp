/// The verify.attention job: attention, forward and backward, on tensors from a file, for comparison elsewhere.
///
///   job.input    q, d_out [B,H,Tq,D]; k, v [B,H,Tk,D] float32; root attribute `causal` 0 or 1
///   job.output   out, d_q [B,H,Tq,D]; lse [B,H,Tq]; d_k, d_v [B,H,Tk,D] float32
///
/// precision.compute chooses the storage type, [attention] the kernel, as for training. Runs on rank 0.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/h5.hpp"
#include "jobs/directory.hpp"
#include "jobs/jobs.hpp"
#include "jobs/scalars.hpp"
#include "jobs/memory.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention/flash2/forward.hpp"
#include "memory/arena.hpp"
#include "train/plan.hpp"

namespace tessera::jobs {
namespace {

using Exec = kernels::Device;
using kernels::contiguous_heads;

struct Heads {
  io::h5::Shape shape;  // [B,H,T,D]
  std::vector<float> values;
};

Heads read_heads(const io::h5::File& file, const std::string& name) {
  const io::h5::Dataset dataset = file.dataset(name);
  dataset.require_contents();
  Heads heads{dataset.shape(), {}};
  if (heads.shape.size() != 4) {
    throw Failure(Exit::files, "{}: must be [B,H,T,D], has {} dimensions", dataset.where(), heads.shape.size());
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
  const std::string path = result_path(context, "attention.h5");
  const io::h5::File input = io::h5::File::open(settings.job.input);
  const Heads q_h = read_heads(input, "q"), k_h = read_heads(input, "k"), v_h = read_heads(input, "v"),
              d_out_h = read_heads(input, "d_out");
  const io::h5::Shape& q_shape = q_h.shape;
  const io::h5::Shape k_shape{q_shape[0], q_shape[1], k_h.shape[2], q_shape[3]};
  if (d_out_h.shape != q_shape || k_h.shape != k_shape || v_h.shape != k_shape) {
    throw Failure(Exit::files,
                  "{}: q and d_out must be [B,H,Tq,D], k and v [B,H,Tk,D]; they are [{}], [{}], [{}], [{}]",
                  settings.job.input, fmt::join(q_shape, ","), fmt::join(d_out_h.shape, ","), fmt::join(k_h.shape, ","),
                  fmt::join(v_h.shape, ","));
  }
  if (q_shape[3] < 1 || q_shape[3] > kernels::Flash2Forward<Exec, Scalar>::kMaxHead) {
    throw Failure(Exit::files, "{}: head width {} is not in 1..{}", settings.job.input, q_shape[3],
                  kernels::Flash2Forward<Exec, Scalar>::kMaxHead);
  }
  const std::int64_t causal = input.integer("causal");
  if (causal != 0 && causal != 1) {
    throw Failure(
        Exit::files,
        "{}: the attribute causal is {}; make it 1 (each query sees the keys up to its own position) or 0 (all keys)",
        settings.job.input, causal);
  }
  const std::int64_t B = q_h.shape[0], H = q_h.shape[1], Tq = q_h.shape[2], D = q_h.shape[3], Tk = k_h.shape[2];

  const kernels::AttentionChoice choice = train::choose_attention(settings.attention, kDtype<Scalar>, D);
  const bool stores_scores = kernels::stores_scores(choice.kind);
  const std::int64_t pairs = stores_scores ? B * H * Tq * Tk : 0;
  const int b = static_cast<int>(B), h = static_cast<int>(H), tq = static_cast<int>(Tq), d = static_cast<int>(D);
  const std::int64_t workspace_bytes =
      std::max(kernels::attention_forward_workspace_bytes(choice, kDtype<Scalar>, b, h, tq, d),
               kernels::attention_workspace_bytes(choice, kDtype<Scalar>, b, h, tq, d));  // one after the other
  const std::int64_t needed = static_cast<std::int64_t>(sizeof(Scalar)) * (4 * B * H * (Tq + Tk) * D + 2 * pairs) +
                              workspace_bytes +
                              kernels::attention_scratch_bytes(choice, kDtype<Scalar>, static_cast<int>(Tk), d);
  const std::int64_t available = available_bytes();
  if (needed > available) {
    throw Failure(Exit::out_of_memory,
                  "{}: these shapes need {} of memory, but {} are available; use fewer heads or a shorter sequence",
                  settings.job.input, memory::readable_bytes(needed), memory::readable_bytes(available));
  }

  const OnDevice<Scalar> q("q", q_h), k("k", k_h), v("v", v_h), d_out("d_out", d_out_h);
  const OnDevice<Scalar> out("out", q_h.shape), d_q("d_q", q_h.shape), d_k("d_k", k_h.shape), d_v("d_v", k_h.shape);
  const OnDevice<Real> lse("lse", io::h5::Shape{B, H, Tq});
  const io::h5::Shape scores = stores_scores ? io::h5::Shape{B, H, Tq, Tk} : io::h5::Shape{0, 0, 0, 0};
  const OnDevice<Scalar> probabilities("probabilities", scores), d_scores("d_scores", scores);

  const Kokkos::View<std::int32_t, Exec::memory_space> tile_counter("tile_counter");  // 0
  const Kokkos::View<std::byte*, Exec::memory_space> workspace(
      Kokkos::view_alloc(Kokkos::WithoutInitializing, "workspace"), workspace_bytes);

  const Exec exec;
  const kernels::Attention<Exec, Scalar> attention{.choice = choice,
                                                   .q = q.heads(),
                                                   .k = k.heads(),
                                                   .v = v.heads(),
                                                   .out = out.heads(),
                                                   .lse = lse.rows(),
                                                   .probabilities = probabilities.heads(),
                                                   .scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(D))),
                                                   .causal = causal == 1,
                                                   .math = train::math_of(settings.precision.compute),
                                                   .tile_counter = tile_counter,
                                                   .workspace = workspace};
  attention.forward(exec);
  attention.backward(exec, {.d_out = d_out.heads(),
                            .d_q = d_q.heads(),
                            .d_k = d_k.heads(),
                            .d_v = d_v.heads(),
                            .d_scores = d_scores.heads(),
                            .workspace = workspace});
  exec.fence();

  write_result(context, path, [&](io::h5::File& output) {
    output.set_attribute("kernel", train::describe(choice));
    output.set_attribute("causal", causal);
    out.write(output, "out", "attention output [B,H,Tq,D]");
    lse.write(output, "lse", "log-sum-exp of the scaled scores [B,H,Tq], -inf where a query sees no key");
    d_q.write(output, "d_q", "gradient of q [B,H,Tq,D]");
    d_k.write(output, "d_k", "gradient of k [B,H,Tk,D]");
    d_v.write(output, "d_v", "gradient of v [B,H,Tk,D]");
  });
}

}  // namespace

Exit verify_attention(const Context& context) {
  context.world.agree_on_root([&] {
    with_scalar(train::dtype_of(context.settings().precision.compute),
                [&]<class Scalar>() { verify<Scalar>(context); });
  });
  return Exit::finished;
}

}  // namespace tessera::jobs
