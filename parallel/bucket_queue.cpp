#include "parallel/bucket_queue.hpp"

#include <stdexcept>

#include "kernels/core/events.hpp"

namespace tessera::parallel {

BucketQueue::BucketQueue(Collectives& collectives, const kernels::Device& exec, const std::vector<Span>& spans,
                         std::int64_t bucket_bytes)
    : collectives_(collectives), exec_(exec) {
  for (const Span& span : spans) {
    if (buckets_.empty() || buckets_.back().span.bytes() >= bucket_bytes) {
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
  }
}

BucketQueue::~BucketQueue() = default;

void BucketQueue::begin() {
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.spans;
    bucket.end_s = -1;
  }
  is_active_ = true;
}

void BucketQueue::ready(std::size_t span) {
  if (!is_active_) return;
  Bucket& bucket = buckets_[bucket_of_span_.at(span)];
  if (bucket.missing == 0) throw std::logic_error("bucket queue: a span of '" + bucket.span.label + "' is ready twice");
  if (--bucket.missing > 0) return;
  bucket.start_s = events::now_s();
  bucket.pending = collectives_.start_all_reduce(exec_, bucket.span);
}

void BucketQueue::progress() {
  if (!is_active_) return;
  for (Bucket& bucket : buckets_) {
    if (bucket.pending && bucket.pending->test()) complete(bucket, 0);
  }
}

double BucketQueue::finish() {
  if (!is_active_) return 0;
  is_active_ = false;
  double exposed_s = 0;
  for (Bucket& bucket : buckets_) {
    if (bucket.missing > 0) throw std::logic_error("bucket queue: '" + bucket.span.label + "' was never ready");
    if (!bucket.pending) continue;
    const double start_s = events::now_s();
    bucket.pending->wait();
    const double waited_s = events::now_s() - start_s;
    exposed_s += waited_s;
    complete(bucket, waited_s);
  }
  return exposed_s;
}

void BucketQueue::complete(Bucket& bucket, double exposed_s) {
  bucket.pending.reset();
  bucket.end_s = events::now_s();
  events::report(events::Communication{"all_reduce[" + collectives_.name() + "]", bucket.span.label,
                                       bucket.span.bytes(), bucket.start_s, bucket.end_s, exposed_s});
}

}  // namespace tessera::parallel
