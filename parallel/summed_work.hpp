/// What is done with gradients as soon as they are sums over all ranks, on a stream of its own, beside the backward pass
/// and further transfers: there memory that the products leave idle serves it.
#pragma once

#include <functional>
#include <utility>

#include "kernels/core/side_stream.hpp"
#include "parallel/collective.hpp"

namespace tessera::parallel {

/// Enqueues work on sums: what is enqueued on the instance sees them. A strategy calls it once per step for each of the
/// spans that together are the gradients whose sums its rank owns, in the same order in every step.
using OnSummed = std::function<void(const kernels::Device&, const Span&)>;

class SummedWork {
 public:
  /// `work`: empty for none.
  explicit SummedWork(OnSummed work) : work_(std::move(work)) {}

  /// The sums are complete where `after` has come so far.
  void start(const kernels::Device& after, const Span& sums) {
    if (!work_) return;
    order_.record(after, kSummed);
    order_.wait(side_.instance(), kSummed);
    work_(side_.instance(), sums);
    is_under_way_ = true;
  }

  /// What is enqueued on `exec` after this follows all work so far.
  void join(const kernels::Device& exec) {
    if (!std::exchange(is_under_way_, false)) return;
    order_.record(side_.instance(), kDone);
    order_.wait(exec, kDone);
  }

 private:
  enum Point { kSummed, kDone, kPoints };

  OnSummed work_;
  kernels::SideStream<kernels::Device> side_;
  kernels::StreamOrder<kernels::Device> order_{kPoints};
  bool is_under_way_ = false;
};

}  // namespace tessera::parallel
