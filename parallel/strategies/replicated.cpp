#include "parallel/strategies/replicated.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "parallel/collectives/squares.hpp"

namespace tessera::parallel {

using Grouping = GradientOrder::Grouping;

/// Towards the end each bucket takes a third of the remaining gradients. A smaller share makes more and shorter
/// messages; a larger one makes the last message longer, which nothing hides. A sixth and a tenth take as long (large,
/// 4 x 512 per GPU, two H200s).
constexpr std::int64_t kShrink = 3;

Replicated::Replicated(Collectives& collectives, const kernels::Device& exec, const std::vector<Span>& gradients,
                       const GradientOrder& order, const Span& wire, const NormSpans& norm)
    : collectives_(collectives), exec_(exec), start_(order.start) {
  join_neighbours(gradients, order);
  std::int64_t total = 0;
  for (const Span& gradient : gradients) total += gradient.count;
  if (wire.count != 0 && wire.count < total) {
    throw std::invalid_argument("gradients: '" + wire.label + "' has " + std::to_string(wire.count) + " elements for " +
                                std::to_string(total) + " gradients");
  }
  const std::string operation = collectives_.label(Operation::all_reduce);
  std::int64_t end = total;
  for (Bucket& bucket : buckets_) {
    end -= bucket.span.count;
    Span narrow{};
    if (wire.count != 0) {
      narrow = wire.part(end, bucket.span.count);
      narrow.label = bucket.span.label;
    }
    const bool is_last = &bucket == &buckets_.back();  // after it backward computes nothing
    const bool is_alone = is_last || order.start == GradientOrder::Start::after_backward;
    bucket.sum = {collectives_.make_all_reduce(bucket.span, narrow, is_alone ? Overlap::none : Overlap::compute),
                  operation, bucket.span.label, wire.count != 0 ? narrow.bytes() : bucket.span.bytes()};
  }
  std::vector<Transfer*> sums;
  for (const Bucket& bucket : buckets_) sums.push_back(bucket.sum.transfer.get());
  if (!sums.empty()) squares_ = Squares::left_by(sums, norm.squares);
  if (!squares_) return;
  norm_ = {collectives_.make_all_reduce(norm.total, {}, Overlap::none), operation, norm.total.label,
           norm.total.bytes()};
}

/// Makes the buckets, in the order in which backward fills them: from the last parameter to the first.
void Replicated::join_neighbours(const std::vector<Span>& gradients, const GradientOrder& order) {
  std::int64_t left_bytes = 0;
  for (const Span& gradient : gradients) left_bytes += gradient.bytes();
  const std::int64_t bucket_bytes = order.grouping == Grouping::parameter ? 0
                                    : order.grouping == Grouping::all     ? std::numeric_limits<std::int64_t>::max()
                                                                          : order.bucket_bytes;
  const bool has_several = left_bytes > bucket_bytes;
  const auto is_full = [&](const Span& bucket) {
    return bucket.bytes() >= bucket_bytes || (has_several && bucket.bytes() >= left_bytes / kShrink);
  };
  bucket_of_param_.resize(gradients.size());
  for (std::size_t param = gradients.size(); param-- > 0;) {
    const Span& gradient = gradients[param];
    if (buckets_.empty() || is_full(buckets_.back().span)) {
      buckets_.push_back({.span = gradient});
      if (order.grouping == Grouping::bucket) {
        buckets_.back().span.label = "grad.bucket." + std::to_string(buckets_.size() - 1);
      } else if (order.grouping == Grouping::all) {
        buckets_.back().span.label = "grad.flat";
      }
    } else {
      Span& joined = buckets_.back().span;
      if (static_cast<char*>(gradient.data) + gradient.bytes() != joined.data || gradient.dtype != joined.dtype) {
        throw std::invalid_argument("gradients: '" + gradient.label + "' does not end where its successor begins");
      }
      joined.data = gradient.data;
      joined.count += gradient.count;
    }
    ++buckets_.back().members;
    bucket_of_param_[param] = buckets_.size() - 1;
    left_bytes -= gradient.bytes();
  }
}

void Replicated::connect() {
  for (Bucket& bucket : buckets_) bucket.sum.transfer->connect();
  if (norm_.exists()) norm_.transfer->connect();
  is_connected_ = true;
}

void Replicated::begin(bool completes) {
  if (!is_connected_) throw std::logic_error("gradients: connect them before the first step");
  if (!completes || buckets_.empty()) return;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.members;
  exposed_s_ = 0;
  is_active_ = true;
}

void Replicated::gradient_enqueued(int param) {
  if (!is_active_) return;
  Bucket& bucket = buckets_[bucket_of_param_.at(static_cast<std::size_t>(param))];
  if (bucket.missing == 0) throw std::logic_error("gradients: one of '" + bucket.span.label + "' is ready twice");
  if (--bucket.missing == 0 && start_ == GradientOrder::Start::when_ready) start(bucket);
}

void Replicated::start(Bucket& bucket) {
  bucket.sum.start(exec_);
  bucket.is_under_way = true;
  last_started_ = bucket.sum.transfer.get();
}

void Replicated::progress() {
  if (!is_active_ || collectives_.is_asynchronous()) return;
  for (Bucket& bucket : buckets_) {
    if (bucket.is_under_way && bucket.sum.transfer->test()) complete(bucket);
  }
}

void Replicated::finish() {
  if (!is_active_) return;
  is_active_ = false;
  const bool is_asynchronous = collectives_.is_asynchronous();
  if (start_ == GradientOrder::Start::after_backward) {
    for (Bucket& bucket : buckets_) {
      if (bucket.missing == 0) start(bucket);
    }
  }
  for (Bucket& bucket : buckets_) {
    if (bucket.missing > 0) throw std::logic_error("gradients: '" + bucket.span.label + "' was never ready");
    if (is_asynchronous || !bucket.is_under_way) continue;
    join(*bucket.sum.transfer, exec_, waits_);
    complete(bucket);
  }
  if (is_asynchronous) join(*last_started_, exec_, waits_);  // transfers complete in start order: it is the last
}

void Replicated::sum() {
  if (!norm_.exists()) return;
  norm_.start(exec_);
  join(*norm_.transfer, exec_, waits_);
}

double Replicated::collect() {
  if (!collectives_.is_asynchronous()) return exposed_s_;
  if (!last_started_) return 0;
  double exposed_s = 0;
  double waiting_from_s =  // after this, exec only waited: for each moment once
      start_ == GradientOrder::Start::after_backward ? 0 : last_started_->times().joined_s;
  for (const Bucket& bucket : buckets_) {
    const Transfer::Times times = bucket.sum.transfer->times();
    exposed_s += bucket.sum.report(times, waiting_from_s);
    waiting_from_s = std::max(waiting_from_s, times.end_s);
  }
  if (!norm_.exists()) return exposed_s;
  const Transfer::Times times = norm_.transfer->times();
  return exposed_s + norm_.report(times, times.joined_s);
}

/// Reports a bucket that has just completed on the host.
void Replicated::complete(Bucket& bucket) {
  bucket.is_under_way = false;
  const Transfer::Times times = bucket.sum.transfer->times();
  exposed_s_ += bucket.sum.report(times, times.joined_s);
}

}  // namespace tessera::parallel
