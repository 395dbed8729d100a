/// Averages gradients over the ranks in buckets that start while backward is still running.
///
/// The spans come in the order in which backward completes them; neighbours in memory are joined until a bucket has
/// `bucket_bytes`. A bucket's reduction starts when its last span is ready; progress() moves what is under way,
/// because a library without a progress thread moves nothing by itself; finish() waits for the rest and says how
/// long the rank had nothing else to do. Sums, not means: whoever weights by tokens scales before.
///
/// Source  Li et al. 2020, "PyTorch Distributed", arXiv:2006.15704, section 3.2.3.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "parallel/collective.hpp"

namespace tessera::parallel {

class BucketQueue {
 public:
  /// `spans[i]` is what ready(i) announces; span i+1 must end where span i begins (backward runs down the flat array).
  /// The gradients are computed on `exec`.
  BucketQueue(Collectives& collectives, const kernels::Device& exec, const std::vector<Span>& spans,
              std::int64_t bucket_bytes);
  ~BucketQueue();

  /// Call before the backward pass that completes the gradients; earlier micro-steps accumulate without it.
  void begin();
  void ready(std::size_t span);
  void progress();
  /// Returns the seconds spent waiting with nothing left to compute.
  double finish();

  std::size_t buckets() const { return buckets_.size(); }

 private:
  struct Bucket {
    Span span;
    std::size_t spans = 0;    // how many belong to it
    std::size_t missing = 0;  // of these, not ready yet
    double start_s = 0, end_s = -1;
    std::unique_ptr<Collectives::Pending> pending;
  };

  void complete(Bucket& bucket, double exposed_s);

  Collectives& collectives_;
  kernels::Device exec_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_span_;
  bool is_active_ = false;
};

}  // namespace tessera::parallel
