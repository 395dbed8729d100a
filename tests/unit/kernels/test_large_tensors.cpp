/// Kernels on tensors of more than 2^31 elements, on GPUs with room for them: the last rows or the last head, whose
/// offsets exceed an int, must equal bit for bit what a small tensor of only them gives.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/attention/decode/decode.hpp"
#include "kernels/attention/standard/standard.hpp"
#include "kernels/core/device_info.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/residual_add.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/rope.hpp"
#include "kernels/sample.hpp"
#include "kernels/swiglu.hpp"
#include "support/buffer.hpp"
#include "support/instance.hpp"
#include "support/random.hpp"
#ifdef TESSERA_VENDOR_CUDA
  #include "kernels/attention/flash2/ampere/backward.hpp"
  #include "kernels/attention/flash2/ampere/forward.hpp"
  #include "kernels/attention/flash2/hopper/backward.hpp"
  #include "kernels/attention/flash2/hopper/forward.hpp"
#endif

namespace tessera::test {
namespace {

using Scalar = bfloat16;
using Host = std::vector<Scalar>;

constexpr std::int64_t kInts = std::int64_t{1} << 31;

/// Device memory for a tensor of n numbers: zeros, but for its end. The host never holds it.
class Large {
 public:
  explicit Large(std::int64_t n) : bytes_("test.large", n * sizeof(Scalar)), size_(n) {}

  Scalar* data() const { return reinterpret_cast<Scalar*>(bytes_.data()); }
  kernels::Matrix<Scalar, Device> matrix(int columns) const {
    return kernels::Matrix<Scalar, Device>(data(), size_ / columns, columns);
  }
  void set_end(const Host& values) const {
    Kokkos::deep_copy(end(values.size()), View(bytes_of(values), values.size() * sizeof(Scalar)));
  }
  /// The last n numbers.
  Host end_values(std::size_t n) const {
    Host values(n);
    Kokkos::deep_copy(View(bytes_of(values), n * sizeof(Scalar)), end(n));
    return values;
  }

 private:
  using View = Kokkos::View<unsigned char*, Kokkos::HostSpace, kernels::Unmanaged>;
  using DeviceView = Kokkos::View<unsigned char*, Device::memory_space, kernels::Unmanaged>;

  static unsigned char* bytes_of(const Host& values) {
    return reinterpret_cast<unsigned char*>(const_cast<Scalar*>(values.data()));
  }
  DeviceView end(std::size_t n) const {
    return DeviceView(reinterpret_cast<unsigned char*>(data() + size_ - n), n * sizeof(Scalar));
  }

  Kokkos::View<unsigned char*, Device::memory_space> bytes_;
  std::int64_t size_;
};

Host numbers(std::size_t n, int seed, double most = 1) {
  Host rounded;
  rounded.reserve(n);
  for (const double x : uniform(n, seed, -most, most)) rounded.push_back(static_cast<Scalar>(x));
  return rounded;
}

/// The last n elements.
template <class Element>
std::vector<Element> last(std::size_t n, const std::vector<Element>& values) {
  return {values.end() - static_cast<std::ptrdiff_t>(n), values.end()};
}

struct LargeTensors : ::testing::Test {
  void SetUp() override {
    if (kernels::kIsHost<Device>) GTEST_SKIP() << "for GPUs: a host would take minutes";
    constexpr std::int64_t kNeeded = std::int64_t{24} << 30;
    const std::int64_t free = kernels::device_info().free_bytes;
    if (free < kNeeded) GTEST_SKIP() << "needs 24 GiB of free GPU memory, found " << (free >> 30);
  }
};

TEST_F(LargeTensors, standard_attention_forward_and_backward) {
  constexpr int H = 33, T = 8192, D = 16;  // scores [1,H,T,T]: the last head begins at 2^31
  static_assert(std::int64_t{H} * T * T > kInts);
  constexpr std::size_t kHead = std::size_t{T} * D;
  const Host q = numbers(H * kHead, 1), k = numbers(H * kHead, 2), v = numbers(H * kHead, 3),
             d_out = numbers(H * kHead, 4);
  struct Results {
    Host out, d_q, d_k, d_v;
    std::vector<float> lse;
  };
  const auto run = [&](int heads, Scalar* probabilities, Scalar* d_scores) {
    const auto of = [&](const Host& values) { return Buffer<Scalar>(last(heads * kHead, values)); };
    const auto unwritten = [&] { return Buffer<Scalar>::unwritten(heads * kHead); };
    const Buffer<Scalar> q_in = of(q), k_in = of(k), v_in = of(v), d_out_in = of(d_out);
    const auto out = unwritten(), d_q = unwritten(), d_k = unwritten(), d_v = unwritten();
    const auto lse = Buffer<float>::unwritten(std::size_t(heads) * T);
    const auto view = [&](const Buffer<Scalar>& buffer) { return buffer.heads(1, heads, T, D); };
    const auto scores = [&](Scalar* data) { return kernels::contiguous_heads<Device>(data, 1, heads, T, T); };
    kernels::StandardForward<Device, Scalar>{.task = {.q = view(q_in),
                                                      .k = view(k_in),
                                                      .v = view(v_in),
                                                      .out = view(out),
                                                      .lse = lse.head_rows(1, heads, T),
                                                      .scale = 0.25f,
                                                      .causal = true},
                                             .probabilities = scores(probabilities)}
        .launch(instance());
    kernels::StandardBackward<Device, Scalar>{.task = {.q = view(q_in),
                                                       .k = view(k_in),
                                                       .v = view(v_in),
                                                       .out = view(out),
                                                       .lse = lse.head_rows(1, heads, T),
                                                       .d_out = view(d_out_in),
                                                       .d_q = view(d_q),
                                                       .d_k = view(d_k),
                                                       .d_v = view(d_v),
                                                       .scale = 0.25f,
                                                       .causal = true},
                                              .probabilities = scores(probabilities),
                                              .d_scores = scores(d_scores)}
        .launch(instance());
    const auto of_last_head = [&](const Buffer<Scalar>& buffer) { return last(kHead, buffer.elements()); };
    return Results{of_last_head(out), of_last_head(d_q), of_last_head(d_k), of_last_head(d_v), last(T, lse.elements())};
  };
  const Large probabilities(std::int64_t{H} * T * T), d_scores(std::int64_t{H} * T * T);
  const Results large = run(H, probabilities.data(), d_scores.data());
  const auto one_head = Buffer<Scalar>::zeros(std::size_t{T} * T), d_one_head = Buffer<Scalar>::zeros(one_head.size());
  const Results alone = run(1, one_head.data(), d_one_head.data());
  EXPECT_TRUE(same_bits(large.out, alone.out));
  EXPECT_TRUE(same_bits(large.lse, alone.lse));
  EXPECT_TRUE(same_bits(large.d_q, alone.d_q));
  EXPECT_TRUE(same_bits(large.d_k, alone.d_k));
  EXPECT_TRUE(same_bits(large.d_v, alone.d_v));
  EXPECT_NE(static_cast<float>(alone.d_q.back()), 0.0f);
}

TEST_F(LargeTensors, append_to_the_cache_and_decode) {
  constexpr int H = 257, T = 1 << 16, D = 128;  // a cache [1,H,T,D]: the last head begins at 2^31
  static_assert(std::int64_t{H} * T * D > kInts);
  constexpr std::size_t kHead = std::size_t{T} * D;
  const Host q = numbers(H * D, 1), k = numbers(H * D, 2), v = numbers(H * D, 3);
  std::vector<float> angles(std::size_t{T} * D);
  kernels::fill_rope_table(angles.data(), T, D, 10000);
  const Buffer<float> table(angles);
  const Buffer<int> position(std::vector<int>{T - 1}), count(std::vector<int>{T});
  struct Results {
    Host out;
    std::vector<float> lse;
  };
  const auto run = [&](int heads, Scalar* keys, Scalar* values) {
    const auto of = [&](const Host& tokens) { return Buffer<Scalar>(last(std::size_t(heads) * D, tokens)); };
    const Buffer<Scalar> q_in = of(q), k_in = of(k), v_in = of(v);
    const auto out = Buffer<Scalar>::unwritten(std::size_t(heads) * D);
    const auto lse = Buffer<float>::unwritten(heads);
    const auto token = [&](const Buffer<Scalar>& buffer) { return buffer.heads(1, heads, 1, D); };
    const auto cache = [&](Scalar* data) { return kernels::contiguous_heads<Device>(data, 1, heads, T, D); };
    kernels::CacheAppend<Device, Scalar>{.q = token(q_in),
                                         .k = token(k_in),
                                         .v = token(v_in),
                                         .table = table.head_rows(T, D / 2, 2),
                                         .positions = position.vector(),
                                         .keys = cache(keys),
                                         .values = cache(values)}
        .launch(instance());
    kernels::DecodeAttention<Device, Scalar>{.q = token(q_in),
                                             .k = cache(keys),
                                             .v = cache(values),
                                             .keys = count.vector(),
                                             .out = token(out),
                                             .lse = lse.head_rows(1, heads, 1),
                                             .scale = 0.5f,
                                             .parts = 1,
                                             .partial = {},
                                             .arrived = {}}
        .launch(instance());
    return Results{last(D, out.elements()), last(1, lse.elements())};
  };
  const Host head_keys = numbers(kHead, 4), head_values = numbers(kHead, 5);
  const Large keys(std::int64_t{H} * T * D), values(std::int64_t{H} * T * D);
  keys.set_end(head_keys);
  values.set_end(head_values);
  const Results large = run(H, keys.data(), values.data());
  const Buffer<Scalar> own_keys(head_keys), own_values(head_values);
  const Results alone = run(1, own_keys.data(), own_values.data());
  EXPECT_TRUE(same_bits(large.out, alone.out));
  EXPECT_TRUE(same_bits(large.lse, alone.lse));
  EXPECT_TRUE(same_bits(keys.end_values(D), last(D, own_keys.elements())));
  EXPECT_TRUE(same_bits(values.end_values(D), last(D, v)));
}

#ifdef TESSERA_VENDOR_CUDA
struct Hopper {
  static bool runs_here() { return kernels::HopperBackward<Scalar>::runs_on(instance()); }
  static void forward(const kernels::ForwardTask<Device, Scalar>& task) {
    const auto counter = Buffer<std::int32_t>::zeros(1);
    kernels::HopperForward<Scalar>{task, counter.value()}.launch(instance());
    instance().fence();  // the counter is freed next
  }
  using Backward = kernels::HopperBackward<Scalar>;
};
struct Ampere {
  static bool runs_here() { return true; }
  static void forward(const kernels::ForwardTask<Device, Scalar>& task) {
    kernels::AmpereForward<Scalar>{task}.launch(instance());
  }
  using Backward = kernels::AmpereBackward<Scalar>;
};

template <class Path>
struct LargeAttention : LargeTensors {};
using AttentionPaths = ::testing::Types<Ampere, Hopper>;
TYPED_TEST_SUITE(LargeAttention, AttentionPaths);

TYPED_TEST(LargeAttention, tuned_attention_in_a_fused_buffer_forward_and_backward) {
  if (!TypeParam::runs_here()) GTEST_SKIP() << "this device or build cannot run the path";
  constexpr int B = 255, T = 1024, H = 22, D = 128, C = H * D;  // qkv [B*T,3C]
  static_assert(std::int64_t{B - 1} * T * 3 * C > kInts);
  constexpr std::size_t kSequence = std::size_t{T} * C;
  const auto run = [&](int sequences, Scalar* qkv, Scalar* out, Scalar* d_out, Scalar* d_qkv) {
    const auto lse = Buffer<float>::unwritten(std::size_t(sequences) * H * T);
    const auto part = [&](Scalar* of, int i) { return kernels::heads_of_qkv<Device>(of, i, sequences, H, T, D); };
    const auto rows = [&](Scalar* of) { return kernels::heads_of_rows<Device>(of, sequences, H, T, D); };
    TypeParam::forward(
        {part(qkv, 0), part(qkv, 1), part(qkv, 2), rows(out), lse.head_rows(sequences, H, T), 0.1f, true});
    const auto bytes = TypeParam::Backward::workspace_bytes(sequences, H, T, D);
    const Large workspace(bytes / static_cast<std::int64_t>(sizeof(Scalar)));
    typename TypeParam::Backward{
        .task = {part(qkv, 0), part(qkv, 1), part(qkv, 2), rows(out), lse.head_rows(sequences, H, T), rows(d_out),
                 part(d_qkv, 0), part(d_qkv, 1), part(d_qkv, 2), 0.1f, true},
        .order = kernels::DqOrder::fixed,
        .workspace = kernels::Vector<std::byte, Device>(reinterpret_cast<std::byte*>(workspace.data()), bytes)}
        .launch(instance());
    instance().fence();
    return last(std::size_t{H} * T, lse.elements());
  };
  const Host qkv_end = numbers(3 * kSequence, 1), d_out_end = numbers(kSequence, 2);
  constexpr std::int64_t kRows = std::int64_t{B} * T;
  const Large qkv(kRows * 3 * C), d_qkv(kRows * 3 * C), out(kRows * C), d_out(kRows * C);
  qkv.set_end(qkv_end);
  d_out.set_end(d_out_end);
  const auto lse = run(B, qkv.data(), out.data(), d_out.data(), d_qkv.data());
  const Buffer<Scalar> own_qkv(qkv_end), own_d_out(d_out_end);
  const auto own_out = Buffer<Scalar>::unwritten(kSequence), own_d_qkv = Buffer<Scalar>::unwritten(3 * kSequence);
  const auto own_lse = run(1, own_qkv.data(), own_out.data(), own_d_out.data(), own_d_qkv.data());
  EXPECT_TRUE(same_bits(lse, own_lse));
  EXPECT_TRUE(same_bits(out.end_values(kSequence), own_out.elements()));
  EXPECT_TRUE(same_bits(d_qkv.end_values(3 * kSequence), own_d_qkv.elements()));
  EXPECT_NE(static_cast<float>(own_d_qkv.elements().back()), 0.0f);
}
#endif

TEST_F(LargeTensors, embedding_backward) {
  constexpr int C = 4096, N = static_cast<int>(kInts / C) + 64, V = 16, kRows = 8;
  const Host rows = numbers(std::size_t{kRows} * C, 1);
  std::vector<int> tokens(N, 0);  // all but the last rows are gradients of token 0, and zero
  for (int i = 0; i < kRows; ++i) tokens[N - kRows + i] = 3 + i;
  const Large d_out(std::int64_t{N} * C);
  d_out.set_end(rows);
  using Backward = kernels::EmbeddingBackward<Device, Scalar>;
  const auto d_weight = Buffer<float>::zeros(std::size_t{V} * C);
  const auto order = Buffer<int>::unwritten(Backward::order_size(N));
  const auto partial = Buffer<float>::unwritten(std::size_t(Backward::partial_rows(N)) * C);
  Backward{.tokens = Buffer<int>(tokens).vector(),
           .d_out = d_out.matrix(C),
           .d_weight = d_weight.matrix(V, C),
           .order = order.vector(),
           .partial = partial.matrix(Backward::partial_rows(N), C)}
      .launch(instance());
  instance().fence();
  const auto found = d_weight.values();
  for (int i = 0; i < V * C; ++i) {
    const int row = i / C - 3;
    ASSERT_EQ(found[i], row < 0 || row >= kRows ? 0.0 : static_cast<double>(rows[row * C + i % C])) << i;
  }
}

TEST_F(LargeTensors, residual_add) {
  constexpr std::int64_t n = kInts + 1000;
  constexpr std::size_t kLast = 1500;
  const Host x_end = numbers(kLast, 1), delta_end = numbers(kLast, 2);
  const Large x(n), delta(n);
  x.set_end(x_end);
  delta.set_end(delta_end);
  using Numbers = kernels::Vector<Scalar, Device>;
  kernels::ResidualAdd<Device, Scalar>{
      .x = Numbers(x.data(), n), .delta = Numbers(delta.data(), n), .out = Numbers(x.data(), n)}
      .launch(instance());
  instance().fence();
  Host sums;
  for (std::size_t i = 0; i < kLast; ++i) {
    sums.push_back(static_cast<Scalar>(static_cast<float>(x_end[i]) + static_cast<float>(delta_end[i])));
  }
  EXPECT_TRUE(same_bits(x.end_values(kLast), sums));
}

TEST_F(LargeTensors, rope_of_a_fused_buffer) {
  constexpr int B = 4, T = 1 << 16, H = 22, D = 128, kRow = 3 * H * D;  // qkv [B*T,3C]
  constexpr int kTokens = 16;                                           // that are compared
  static_assert(std::int64_t{B} * T * kRow > kInts);
  std::vector<float> angles(std::size_t{T} * D);
  kernels::fill_rope_table(angles.data(), T, D, 10000);
  const Buffer<float> table(angles);
  const auto turn = [&](Scalar* qkv, int sequences, int tokens) {
    kernels::Rope<Device, Scalar>{.x = kernels::heads_of_q_and_k<Device>(qkv, sequences, H, tokens, D),
                                  .table = table.head_rows(T, D / 2, 2),
                                  .first_position = T - tokens}
        .launch(instance());
  };
  const Host rows = numbers(std::size_t{kTokens} * kRow, 1);
  const Large qkv(std::int64_t{B} * T * kRow);
  qkv.set_end(rows);
  turn(qkv.data(), B, T);
  const Buffer<Scalar> own(rows);
  turn(own.data(), 1, kTokens);
  EXPECT_TRUE(same_bits(qkv.end_values(own.size()), own.elements()));
  EXPECT_FALSE(same_bits(own.elements(), rows));
}

TEST_F(LargeTensors, swiglu_forward_and_backward) {
  constexpr int N = 97'600, F = 11'008, kRows = 4;  // gate_up [N,2F]
  const Host gate_up_rows = numbers(std::size_t{kRows} * 2 * F, 1, 4), d_out_rows = numbers(std::size_t{kRows} * F, 2);
  const auto forward = [](const kernels::Matrix<Scalar, Device>& gate_up, const kernels::Matrix<Scalar, Device>& out) {
    kernels::SwigluForward<Device, Scalar>{.gate_up = gate_up, .out = out}.launch(instance());
  };
  const auto backward = [](const kernels::Matrix<Scalar, Device>& gate_up, const kernels::Matrix<Scalar, Device>& d_out,
                           const kernels::Matrix<Scalar, Device>& d_gate_up) {
    kernels::SwigluBackward<Device, Scalar>{.gate_up = gate_up, .d_out = d_out, .d_gate_up = d_gate_up}.launch(
        instance());
  };
  static_assert(std::int64_t{N} * 2 * F > kInts);
  const Large gate_up(std::int64_t{N} * 2 * F), d_gate_up(std::int64_t{N} * 2 * F);
  const Large out(std::int64_t{N} * F), d_out(std::int64_t{N} * F);
  gate_up.set_end(gate_up_rows);
  d_out.set_end(d_out_rows);
  forward(gate_up.matrix(2 * F), out.matrix(F));
  backward(gate_up.matrix(2 * F), d_out.matrix(F), d_gate_up.matrix(2 * F));

  const Buffer<Scalar> own_gate_up(gate_up_rows), own_d_out(d_out_rows);
  const auto own_out = Buffer<Scalar>::unwritten(own_d_out.size());
  const auto own_d_gate_up = Buffer<Scalar>::unwritten(own_gate_up.size());
  forward(own_gate_up.matrix(kRows, 2 * F), own_out.matrix(kRows, F));
  backward(own_gate_up.matrix(kRows, 2 * F), own_d_out.matrix(kRows, F), own_d_gate_up.matrix(kRows, 2 * F));
  EXPECT_TRUE(same_bits(out.end_values(own_out.size()), own_out.elements()));
  EXPECT_TRUE(same_bits(d_gate_up.end_values(own_d_gate_up.size()), own_d_gate_up.elements()));
}

/// Logits [N,V] of so many columns: rows in registers, and rows too long for them.
struct LargeLogits : LargeTensors, ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(, LargeLogits, ::testing::Values(32'768, 128'256));

TEST_P(LargeLogits, cross_entropy_and_sample) {
  const int V = GetParam(), N = static_cast<int>(kInts / V) + 64;
  constexpr int kRows = 8;
  const Host rows = numbers(std::size_t{kRows} * V, 1, 8);
  std::vector<int> targets(N, 0);
  for (int i = 0; i < kRows; ++i) targets[N - 1 - i] = i * (V / kRows) + 3;
  const Buffer<float> grad_scale(std::vector<float>{1.0f});
  struct Results {
    std::vector<float> loss;
    std::vector<int> drawn;
  };
  const auto run = [&](const kernels::Matrix<Scalar, Device>& logits) {
    const int n = logits.extent_int(0);
    const Buffer<int> target(last(n, targets)), tokens = Buffer<int>::unwritten(n), drawn = Buffer<int>::zeros(n);
    const auto loss = Buffer<float>::unwritten(n);
    kernels::SampleTokens<Device, Scalar>{
        .logits = logits, .drawn = drawn.vector(), .tokens = tokens.vector(), .temperature = 0, .top_k = 0, .seed = 1}
        .launch(instance());
    kernels::CrossEntropy<Device, Scalar>{.logits = logits,
                                          .targets = target.vector(),
                                          .row_loss = loss.vector(),
                                          .grad_scale = grad_scale.value(),
                                          .write_gradient = true}
        .launch(instance());
    return Results{last(kRows, loss.elements()), last(kRows, tokens.elements())};
  };
  const Large logits(std::int64_t{N} * V);
  logits.set_end(rows);
  const Results large = run(logits.matrix(V));
  const Buffer<Scalar> own(rows);
  const Results alone = run(own.matrix(kRows, V));
  EXPECT_TRUE(same_bits(large.loss, alone.loss));
  EXPECT_EQ(large.drawn, alone.drawn);
  EXPECT_TRUE(same_bits(logits.end_values(own.size()), own.elements()));
}

TEST_F(LargeTensors, rmsnorm_forward_and_backward) {
  constexpr int C = 4096, N = static_cast<int>(kInts / C) + 64, kRows = 8;
  const Host rows = numbers(std::size_t{kRows} * C, 1), d_y_rows = numbers(std::size_t{kRows} * C, 2);
  const Buffer<Scalar> gain(numbers(C, 3));
  const auto forward = [&](const kernels::Matrix<Scalar, Device>& x, const kernels::Matrix<Scalar, Device>& y,
                           const Buffer<float>& rrms) {
    kernels::RmsnormForward<Device, Scalar>{
        .x = x, .delta = {}, .residual = {}, .gain = gain.vector(), .y = y, .rrms = rrms.vector(), .eps = 1e-5f}
        .launch(instance());
  };
  const auto backward = [&](const kernels::Matrix<Scalar, Device>& x, const kernels::Matrix<Scalar, Device>& d_y,
                            const kernels::Matrix<Scalar, Device>& d_x, const Buffer<float>& rrms) {
    using Backward = kernels::RmsnormBackward<Device, Scalar>;
    const auto d_gain = Buffer<float>::zeros(C), partial = Buffer<float>::zeros(std::size_t{Backward::kPartials} * C);
    Backward{.x = x,
             .gain = gain.vector(),
             .rrms = rrms.vector(),
             .d_y = d_y,
             .d_residual = {},
             .d_x = d_x,
             .d_gain = d_gain.vector(),
             .partial = partial.matrix(Backward::kPartials, C)}
        .launch(instance());
    return d_gain.elements();  // after the launch has run
  };
  const Large x(std::int64_t{N} * C), y(x.matrix(C).size());
  x.set_end(rows);
  const auto rrms = Buffer<float>::unwritten(N), own_rrms = Buffer<float>::unwritten(kRows);
  forward(x.matrix(C), y.matrix(C), rrms);
  const Buffer<Scalar> own_x(rows), own_d_y(d_y_rows);
  const auto own_y = Buffer<Scalar>::unwritten(rows.size()), own_d_x = Buffer<Scalar>::unwritten(rows.size());
  forward(own_x.matrix(kRows, C), own_y.matrix(kRows, C), own_rrms);
  EXPECT_TRUE(same_bits(y.end_values(rows.size()), own_y.elements()));

  const Large d_y(x.matrix(C).size());
  const Large& d_x = y;
  d_y.set_end(d_y_rows);
  backward(x.matrix(C), d_y.matrix(C), d_x.matrix(C), rrms);
  backward(own_x.matrix(kRows, C), own_d_y.matrix(kRows, C), own_d_x.matrix(kRows, C), own_rrms);
  EXPECT_TRUE(same_bits(d_x.end_values(rows.size()), own_d_x.elements()));
}

}  // namespace
}  // namespace tessera::test
