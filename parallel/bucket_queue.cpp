#include "parallel/bucket_queue.hpp"

#include <algorithm>
#include <stdexcept>

#include "kernels/core/events.hpp"

namespace tessera::parallel {

BucketQueue::BucketQueue(Collectives& collectives, const kernels::Device& exec, const std::vector<Span>& spans,
                         std::int64_t bucket_bytes, const Span& wire)
    : collectives_(collectives), exec_(exec), operation_("all_reduce[" + collectives.name() + "]") {
  std::int64_t total = 0, left_bytes = 0;
  for (const Span& span : spans) left_bytes += span.bytes();
  const bool has_several = left_bytes > bucket_bytes;
  const auto is_full = [&](const Span& bucket) {
    return bucket.bytes() >= bucket_bytes || (has_several && bucket.bytes() >= left_bytes);
  };
  for (const Span& span : spans) {
    if (buckets_.empty() || is_full(buckets_.back().span)) {
      buckets_.push_back({});
      buckets_.back().span = span;
      buckets_.back().span.label = "grad.bucket." + std::to_string(buckets_.size() - 1);
    } else {
      Span& joined = buckets_.back().span;
      if (static_cast<char*>(span.data) + span.bytes() != joined.data || span.dtype != joined.dtype) {
        throw std::invalid_argument("bucket queue: span '" + span.label + "' does not end where its successor begins");
      }
      joined.data = span.data;
      joined.count += span.count;
    }
    ++buckets_.back().spans;
    bucket_of_span_.push_back(buckets_.size() - 1);
    total += span.count;
    left_bytes -= span.bytes();
  }
  if (wire.count != 0 && wire.count < total) {
    throw std::invalid_argument("bucket queue: '" + wire.label + "' has " + std::to_string(wire.count) +
                                " elements for " + std::to_string(total) + " gradients");
  }

  std::int64_t end = total;
  for (Bucket& bucket : buckets_) {
    end -= bucket.span.count;
    Span narrow{};
    if (wire.count != 0) {
      narrow = {bucket.span.label, static_cast<char*>(wire.data) + end * bytes_of(wire.dtype), bucket.span.count,
                wire.dtype};
    }
    bucket.sum = collectives_.make_all_reduce(bucket.span, narrow);
    bucket.wire = wire.count != 0 ? narrow : bucket.span;
  }
}

BucketQueue::~BucketQueue() = default;

void BucketQueue::connect() {
  for (Bucket& bucket : buckets_) bucket.sum->connect();
  is_connected_ = true;
}

void BucketQueue::begin() {
  if (!is_connected_) throw std::logic_error("bucket queue: connect it before the first begin");
  for (Bucket& bucket : buckets_) bucket.missing = bucket.spans;
  exposed_s_ = 0;
  is_active_ = true;
}

void BucketQueue::ready(std::size_t span) {
  if (!is_active_) return;
  Bucket& bucket = buckets_[bucket_of_span_.at(span)];
  if (bucket.missing == 0) throw std::logic_error("bucket queue: a span of '" + bucket.span.label + "' is ready twice");
  if (--bucket.missing > 0) return;
  events::report(events::CommunicationStart{operation_, bucket.span.label, bucket.wire.bytes(), events::now_s()});
  bucket.sum->start(exec_);
  bucket.is_under_way = true;
  last_started_ = bucket.sum.get();
}

void BucketQueue::progress() {
  if (!is_active_ || collectives_.is_asynchronous()) return;
  for (Bucket& bucket : buckets_) {
    if (bucket.is_under_way && bucket.sum->test()) complete(bucket);
  }
}

double BucketQueue::finish() {
  if (!is_active_) return 0;
  is_active_ = false;
  const bool is_asynchronous = collectives_.is_asynchronous();
  for (Bucket& bucket : buckets_) {
    if (bucket.missing > 0) throw std::logic_error("bucket queue: '" + bucket.span.label + "' was never ready");
    if (is_asynchronous || !bucket.is_under_way) continue;
    bucket.sum->join(exec_);
    exposed_s_ += complete(bucket);
  }
  if (is_asynchronous && last_started_) last_started_->join(exec_);  // in order of their start: its end is that of all
  return exposed_s_;
}

double BucketQueue::collect() {
  if (!collectives_.is_asynchronous()) return exposed_s_;
  if (!last_started_) return 0;
  const double joined_s = last_started_->times().joined_s;  // from there on exec had nothing to do but wait
  double exposed_s = 0;
  for (const Bucket& bucket : buckets_) {
    const Transfer::Times times = bucket.sum->times();
    const double waited_s = std::max(0.0, times.end_s - std::max(times.start_s, joined_s));
    report(bucket, times, waited_s);
    exposed_s += waited_s;
  }
  return exposed_s;
}

/// Reports a bucket that has just completed on the host; returns the seconds of waiting for it.
double BucketQueue::complete(Bucket& bucket) {
  bucket.is_under_way = false;
  const Transfer::Times times = bucket.sum->times();
  const double waited_s = times.end_s - times.joined_s;
  report(bucket, times, waited_s);
  return waited_s;
}

void BucketQueue::report(const Bucket& bucket, const Transfer::Times& times, double exposed_s) const {
  events::report(
      events::Communication{operation_, bucket.span.label, bucket.wire.bytes(), times.start_s, times.end_s, exposed_s});
}

}  // namespace tessera::parallel
