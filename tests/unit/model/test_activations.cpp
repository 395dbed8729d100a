#include "model/activations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "support/buffer.hpp"
#include "support/random.hpp"
#include "unit/model/golden.hpp"
#include "unit/model/pass.hpp"

namespace tessera::test {
namespace {

using kernels::AttentionKind;

/// At every tick, overwrites with NaN all memory that no live tensor owns, and checks at the next tick that nothing has
/// been written there except tensors that have become live since. So a kernel that reads a tensor before it was written
/// or after its lifetime, or writes outside one, is found even if the memory happens to be free.
class Poisoner final : public model::Hooks {
 public:
  template <class Scalar>
  explicit Poisoner(const Pass<Scalar>& pass)
      : layout_(pass.layout),
        base_(reinterpret_cast<unsigned char*>(const_cast<Scalar*>(pass.params())) - layout_[0].offset) {}

  void tick(int tick) override {
    EXPECT_GT(tick, last_tick_) << "time stands still or runs backwards";
    Kokkos::fence();
    for (const Range& range : unowned_) {
      const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), bytes_of(range));
      const unsigned char* const begin = host.data();
      const unsigned char* const end = begin + host.size();
      const unsigned char* written = std::find_if(begin, end, [](unsigned char byte) { return byte != 0xFF; });
      if (written == end) continue;
      ADD_FAILURE() << "byte " << range.first + (written - begin) << " was written between ticks " << last_tick_
                    << " and " << tick;
      break;
    }
    for (const Range& range :
         not_owned([&](const memory::Lifetime& life) { return life.first < tick && tick <= life.last; })) {
      Kokkos::deep_copy(bytes_of(range), static_cast<unsigned char>(0xFF));
    }
    unowned_ = not_owned([&](const memory::Lifetime& life) { return life.first <= tick && tick <= life.last; });
    last_tick_ = tick;
    ++ticks;
  }
  int ticks = 0;

 private:
  struct Range {
    std::int64_t first, last;  // bytes of the arena
  };
  kernels::Vector<unsigned char, Device> bytes_of(const Range& range) const {
    return kernels::Vector<unsigned char, Device>(base_ + range.first, range.last - range.first);
  }

  /// Memory of no tensor whose lifetime satisfies `counts`.
  template <class Counts>
  std::vector<Range> not_owned(Counts counts) const {
    std::vector<Range> owned, free;
    for (const memory::Tensor& tensor : layout_.tensors()) {
      if (tensor.lifetime.is_whole_run() || counts(tensor.lifetime)) {
        owned.push_back({tensor.offset, tensor.offset + tensor.bytes});
      }
    }
    owned.push_back({layout_.arena_bytes(), layout_.arena_bytes()});
    std::sort(owned.begin(), owned.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
    std::int64_t end = 0;
    for (const Range& range : owned) {
      if (end < range.first) free.push_back({end, range.first});
      end = std::max(end, range.last);
    }
    return free;
  }

  const memory::Layout& layout_;
  unsigned char* base_;
  int last_tick_ = 0;
  std::vector<Range> unowned_;
};

TEST(Activations, every_tensor_is_alive_when_it_is_used) {
  const Golden golden;
  model::Shape shape = golden.shape;
  shape.L = 5;
  const auto tokens = uniform_int(3 * 25, 5, 0, 61);
  const auto run = [&](auto scalar, AttentionKind attention, int checkpoint) {
    using Scalar = decltype(scalar);
    SCOPED_TRACE(
        ::testing::Message() << kScalarName<Scalar> << (attention == AttentionKind::standard ? " standard" : " flash2")
                             << ", checkpoint every " << checkpoint);
    Pass<Scalar> plain(shape, {.sequences = 3, .checkpoint_blocks = checkpoint, .attention = attention});
    Pass<Scalar> poisoned(shape, {.sequences = 3, .checkpoint_blocks = checkpoint, .attention = attention});
    const auto params = uniform(plain.table.flat_count(), 6, -0.3, 0.3);
    for (auto* pass : {&plain, &poisoned}) {
      pass->set_params(params);
      pass->set_tokens(tokens, 3, 24);
    }
    plain.run();
    Poisoner poisoner(poisoned);
    poisoned.run(true, &poisoner);
    poisoner.tick(poisoned.tensors.timeline.update());
    EXPECT_EQ(poisoner.ticks - 1, 1 + 5 * 8 + 1 + 2 + 5 * 8 + 1);
    EXPECT_TRUE(std::isfinite(plain.loss));
    EXPECT_EQ(poisoned.loss, plain.loss);
    EXPECT_TRUE(same_bits(poisoned.grads, plain.grads));
  };
  for (const AttentionKind attention : {AttentionKind::standard, AttentionKind::flash2}) {
    for (const int checkpoint : {0, 1, 2, 3, 5, 9}) {
      run(0.0f, attention, checkpoint);
      run(bfloat16(), attention, checkpoint);
    }
    run(0.0, attention, 2);
    run(float16(), attention, 2);
  }
}

TEST(Activations, every_tensor_of_inference_is_alive_when_it_is_used) {
  const Golden golden;
  model::Shape shape = golden.shape;
  shape.L = 3;
  for (const AttentionKind attention : {AttentionKind::standard, AttentionKind::flash2}) {
    Pass<float> training(shape, {.sequences = 3, .attention = attention});
    Pass<float> poisoned(shape, {.sequences = 3, .attention = attention, .for_training = false});
    Poisoner poisoner(poisoned);
    const auto params = uniform(training.table.flat_count(), 6, -0.3, 0.3);
    for (auto* pass : {&training, &poisoned}) {
      pass->set_params(params);
      pass->set_tokens(golden.tokens, 3, 24);
    }
    training.run(false);
    poisoned.run(false, &poisoner);
    poisoner.tick(poisoned.tensors.timeline.update());
    EXPECT_TRUE(std::isfinite(training.loss));
    EXPECT_EQ(poisoned.loss, training.loss);
  }
}

// --- the list itself ------------------------------------------------------------------------------------------------

std::int64_t activation_bytes(const model::Shape& shape, const model::ActivationOptions& options) {
  memory::Layout layout;
  model::declare_activations(shape, options, layout);
  layout.place();
  return layout.peak_by_category()[static_cast<int>(memory::Category::activations)];
}

TEST(Activations, labels_are_unique_and_the_same_names_serve_everyone) {
  const model::Shape shape{257, 64, 64, 4, 4, 128, 1e4, 1e-5};
  for (const int checkpoint : {0, 1, 3}) {
    memory::Layout layout;
    model::declare_activations(shape, {2, Dtype::bf16, true, checkpoint, AttentionKind::standard}, layout);
    std::set<std::string> labels;
    for (const memory::Tensor& tensor : layout.tensors())
      EXPECT_TRUE(labels.insert(tensor.label).second) << tensor.label;
    EXPECT_TRUE(labels.count("block.03.qkv"));
    EXPECT_EQ(labels.count("block.03.recomputed.qkv"), checkpoint > 0 ? 1u : 0u);
  }
}

TEST(Activations, checkpointing_trades_memory_as_it_should) {
  const model::Shape shape{257, 128, 128, 12, 4, 352, 1e4, 1e-5};
  const auto bytes = [&](int checkpoint) {
    return activation_bytes(shape, {4, Dtype::fp32, true, checkpoint, AttentionKind::flash2});
  };
  // One block's tensors are 8C + 2F numbers per row (and a few); with checkpointing one segment is live at once.
  const double row = 4.0 * (8 * 128 + 2 * 352), rows = 4 * 128;
  EXPECT_NEAR(static_cast<double>(bytes(0)), 12 * row * rows, 0.1 * 12 * row * rows);
  EXPECT_LT(bytes(1), bytes(2));
  EXPECT_LT(bytes(3), bytes(0) / 2);
  EXPECT_LE(bytes(12), bytes(0) * 11 / 10);
}

TEST(Activations, attention_memory_is_quadratic_in_T_only_for_standard) {
  model::Shape shape{257, 512, 64, 2, 4, 128, 1e4, 1e-5};
  const auto bytes = [&](AttentionKind kind, int T) {
    shape.T = T;
    return static_cast<double>(activation_bytes(shape, {1, Dtype::fp32, true, 0, kind}));
  };
  EXPECT_NEAR(bytes(AttentionKind::flash2, 1024) / bytes(AttentionKind::flash2, 512), 2, 0.01);
  EXPECT_GT(bytes(AttentionKind::standard, 1024) / bytes(AttentionKind::standard, 512), 3.5);
}

TEST(Activations, inference_keeps_nothing_and_needs_no_gradients) {
  const model::Shape shape{257, 128, 128, 12, 4, 352, 1e4, 1e-5};
  const model::ActivationOptions training{1, Dtype::fp32, true, 0, AttentionKind::flash2};
  model::ActivationOptions inference = training;
  inference.for_training = false;
  memory::Layout layout;
  const model::ActivationTensors t = model::declare_activations(shape, inference, layout);
  EXPECT_EQ(t.d_x, memory::kAbsent);
  EXPECT_EQ(t.norm_partial, memory::kAbsent);
  for (const memory::Tensor& tensor : layout.tensors())
    EXPECT_EQ(tensor.label.find("d_"), std::string::npos) << tensor.label;
  EXPECT_LT(activation_bytes(shape, inference), activation_bytes(shape, training) / 6);
}

TEST(Activations, sixteen_bit_types_halve_the_activations_and_bring_panels) {
  const model::Shape shape{257, 128, 128, 2, 4, 352, 1e4, 1e-5};
  memory::Layout fp32, bf16;
  const auto a = model::declare_activations(shape, {1, Dtype::fp32, true, 0, AttentionKind::flash2}, fp32);
  const auto b = model::declare_activations(shape, {1, Dtype::bf16, true, 0, AttentionKind::flash2}, bf16);
  EXPECT_EQ(a.gemm_workspace, memory::kAbsent);
  ASSERT_NE(b.gemm_workspace, memory::kAbsent);
  EXPECT_EQ(bf16[b.forward[1].qkv].bytes * 2, fp32[a.forward[1].qkv].bytes);
  EXPECT_EQ(bf16[b.forward[1].lse].dtype, Dtype::fp32);  // statistics stay in the arithmetic type
}

TEST(Activations, logits_are_never_all_there_when_there_are_many) {
  const model::Shape shape{151936, 8192, 64, 1, 4, 128, 1e4, 1e-5};
  memory::Layout layout;
  const auto t = model::declare_activations(shape, {4, Dtype::fp32, true, 0, AttentionKind::flash2}, layout);
  if (kernels::kIsHost<Device>) {
    EXPECT_EQ(t.chunk_rows, 64);
  } else {  // 2^29 logits at most: 3520 rows of 32768, in ten chunks of the same size
    EXPECT_EQ(t.chunk_rows, 3328);
  }
  EXPECT_EQ(layout[t.logits].shape, (std::vector<std::int64_t>{t.chunk_rows, 151936}));
}

}  // namespace
}  // namespace tessera::test
