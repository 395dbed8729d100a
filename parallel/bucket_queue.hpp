/// Averages gradients over the ranks in buckets that start while backward is still running.
///
/// The spans come in the order in which backward completes them; neighbours in memory are joined until a bucket has
/// `bucket_bytes`, or as much as is left: large messages travel faster, but nothing is computed under the last one, so
/// buckets become smaller towards the end. A bucket's reduction starts when its last span is ready; finish() makes what
/// is enqueued on the compute instance from there on see all sums. Sums, not means: a caller that weights by tokens
/// scales first.
///
/// Over MPI, progress() moves what is under way, because a library without a progress thread moves nothing by itself,
/// and finish() waits on the host. Over NCCL the buckets run on the communication stream, finish() only orders the
/// streams, and begin() to finish() may be captured in a graph, whose replays repeat it all; collect() reads the times
/// afterwards.
///
/// Source  Li et al. 2020, "PyTorch Distributed", arXiv:2006.15704, section 3.2.3.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "parallel/collective.hpp"

namespace tessera::parallel {

class BucketQueue {
 public:
  /// `spans[i]` is what ready(i) announces; span i+1 must end where span i begins (backward runs down the flat array).
  /// The gradients are computed on `exec`. `wire`: empty, or as many elements of a narrower dtype as all spans
  /// together, in memory of the same kind: the format in which the gradients cross the network.
  BucketQueue(Collectives& collectives, const kernels::Device& exec, const std::vector<Span>& spans,
              std::int64_t bucket_bytes, const Span& wire = {});
  ~BucketQueue();

  /// Collective, once, before the first begin(). The constructor is not.
  void connect();
  bool is_connected() const { return is_connected_; }

  /// Call before the backward pass that completes the gradients; earlier micro-steps accumulate without it.
  void begin();
  void ready(std::size_t span);
  void progress();
  /// Returns the seconds that the host spent waiting with nothing left to compute: 0 where it does not wait.
  double finish();

  /// Once the work behind the last finish(), or behind the last replay of its graph, has been done, and before the next
  /// step: reports the buckets as events (over MPI already done) and returns the seconds in which `exec` only waited
  /// for them.
  double collect();

  std::size_t buckets() const { return buckets_.size(); }

 private:
  struct Bucket {
    Span span;                // of the gradients
    Span wire;                // what crosses the network: the span itself, or its place in the narrower copy
    std::size_t spans = 0;    // how many belong to it
    std::size_t missing = 0;  // of these, not ready yet
    bool is_under_way = false;
    std::unique_ptr<Transfer> sum;
  };

  double complete(Bucket& bucket);
  void report(const Bucket& bucket, const Transfer::Times& times, double exposed_s) const;

  Collectives& collectives_;
  kernels::Device exec_;
  std::string operation_;  // "all_reduce[nccl]"
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_span_;
  Transfer* last_started_ = nullptr;
  double exposed_s_ = 0;  // of the last step, where the host waits
  bool is_connected_ = false, is_active_ = false;
};

}  // namespace tessera::parallel
