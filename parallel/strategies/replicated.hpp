/// Every rank keeps all weights, gradients and optimizer state, and sums its gradients with the others. Grouping and
/// start time give the four orders of CS336.
///
///                     when ready                          after backward
///   each parameter    overlap                             per_parameter
///   buckets           bucket                              -
///   all at once       -                                   flat
///
/// Buckets: backward completes the parameters from the last to the first, and neighbours in memory are joined until a
/// bucket has `bucket_bytes` or, if all gradients together have more, a third of what is left.
///
/// Source  Li et al. 2020, "PyTorch Distributed", arXiv:2006.15704, section 3.2.3.
#pragma once

#include <cstddef>
#include <vector>

#include "parallel/strategies/strategy.hpp"

namespace tessera::parallel {

struct GradientOrder {
  enum class Grouping { parameter, bucket, all };
  enum class Start { when_ready, after_backward };
  Grouping grouping = Grouping::bucket;
  Start start = Start::when_ready;
  std::int64_t bucket_bytes = 25'000'000;  // of Grouping::bucket
};

class Replicated final : public Strategy {
 public:
  /// `gradients[p]` is parameter p's, computed on `exec`; each must end where the next begins; empty: nothing is
  /// summed. `wire`: empty, or as many elements of a narrower dtype as all gradients together, in the same kind of
  /// memory, for the gradients on the network. If transfers leave squares for the `norm`, each rank has those of its
  /// part, and sum() adds the parts; else each rank has all gradients, and sum() does nothing. Not collective.
  Replicated(Collectives& collectives, const kernels::Device& exec, const std::vector<Span>& gradients,
             const GradientOrder& order, const Span& wire = {}, const NormSpans& norm = {});

  void connect() override;
  void begin_step(WaitTimes* waits) override { waits_ = waits; }
  int most_waits() const override { return static_cast<int>(buckets_.size()) + 1; }
  void begin(bool completes) override;
  void gradient_enqueued(int param) override;
  void progress() override;
  void finish() override;
  void sum() override;
  void begin_inference() override { waits_ = nullptr; }
  double collect() override;

  std::size_t buckets() const { return buckets_.size(); }

 private:
  struct Bucket {
    Span span;                // of the gradients
    Move sum = {};            // sums these, or their narrower copy
    std::size_t members = 0;  // parameters that belong to it
    std::size_t missing = 0;  // of these, not yet ready
    bool is_under_way = false;
  };

  void join_neighbours(const std::vector<Span>& gradients, const GradientOrder& order);
  void start(Bucket& bucket);
  void complete(Bucket& bucket);

  Collectives& collectives_;
  kernels::Device exec_;
  GradientOrder::Start start_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_param_;
  Move norm_;  // empty unless transfers leave squares, for which collectives must be asynchronous
  Transfer* last_started_ = nullptr;
  bool is_active_ = false;
};

}  // namespace tessera::parallel
