#include "data/sampler.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "kernels/core/random.hpp"
#include "errors.hpp"

namespace tessera::data {
namespace {

constexpr int kRounds = 6;  // of the Feistel network; four suffice without an adversary

/// Keys of the two choices an epoch makes; the second argument keeps them apart.
std::uint64_t order_key(std::uint64_t seed, std::int64_t epoch) {
  return mix(mix(seed, 1), static_cast<std::uint64_t>(epoch));
}
std::uint64_t offset_key(std::uint64_t seed, std::int64_t epoch) {
  return mix(mix(seed, 2), static_cast<std::uint64_t>(epoch));
}

void require_window(const Corpus& corpus, const char* part, std::int64_t tokens, std::int64_t context_length,
                    double fraction) {
  if (tokens > context_length) return;
  throw Failure(Exit::files,
                "{}: its {} part has {} of {} tokens (data.validation_fraction = {}), one sample needs {} "
                "(model.context_length {} and the target after it). Give more data, or change one of these two keys.",
                corpus.name(), part, tokens, corpus.size(), fraction, context_length + 1, context_length);
}

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t key) : size_(static_cast<std::uint64_t>(size)), key_(key) {
  if (size < 1) throw std::invalid_argument(fmt::format("Permutation: size {}, must be at least 1", size));
  half_bits_ = std::max((static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2, 1);
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto x = static_cast<std::uint64_t>(index);
  do {  // the network permutes a power of four; values outside the range are mapped again until they lie inside
    std::uint64_t left = x >> half_bits_, right = x & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (mix(key_ + round, right) & mask);
      left = right;
      right = next;
    }
    x = left << half_bits_ | right;
  } while (x >= size_);
  return static_cast<std::int64_t>(x);
}

Sampler::Sampler(const Corpus& corpus, std::int64_t context_length, double validation_fraction, std::uint64_t seed)
    : corpus_(corpus), context_length_(context_length), seed_(seed) {
  const std::int64_t T = context_length;
  const auto validation_tokens = static_cast<std::int64_t>(validation_fraction * static_cast<double>(corpus.size()));
  train_tokens_ = corpus.size() - validation_tokens;
  require_window(corpus, "training", train_tokens_, T, validation_fraction);
  if (validation_fraction > 0) require_window(corpus, "validation", validation_tokens, T, validation_fraction);
  validation_windows_ = std::max<std::int64_t>(validation_tokens - 1, 0) / T;
  windows_ = std::max<std::int64_t>(train_tokens_ / T - 1, 1);  // one window less than fits leaves room for any offset
  offsets_ = train_tokens_ - windows_ * T;  // 0 .. offsets_-1; the target after the last window fits
}

void Sampler::leave_out(std::int64_t first, std::int64_t end) {
  std::erase_if(left_out_, [&](const Range& range) {
    const bool overlaps = range.first < end && range.end > first;
    if (overlaps) first = std::min(first, range.first), end = std::max(end, range.end);
    return overlaps;
  });
  const auto next =
      std::find_if(left_out_.begin(), left_out_.end(), [&](const Range& range) { return range.first > first; });
  left_out_.insert(next, {first, end});
}

std::int64_t Sampler::left_out_before(std::int64_t sample) const {
  std::int64_t count = 0;
  for (const Range& range : left_out_) count += std::max<std::int64_t>(std::min(range.end, sample) - range.first, 0);
  return count;
}

std::int64_t Sampler::after(std::int64_t first, std::int64_t n) const {
  for (const Range& range : left_out_) {
    if (range.end <= first) continue;
    if (range.first > first + n) break;
    n -= std::max<std::int64_t>(range.first - first, 0);
    first = range.end;
  }
  return first + n;
}

std::int64_t Sampler::window_start(std::int64_t g) const {
  const std::int64_t epoch = epoch_of(g);
  const Permutation order(windows_, order_key(seed_, epoch));
  const auto offset = static_cast<std::int64_t>(offset_key(seed_, epoch) % static_cast<std::uint64_t>(offsets_));
  return offset + order(g % windows_) * context_length_;
}

std::int64_t Sampler::validation_start(std::int64_t i) const { return train_tokens_ + i * context_length_; }

void Sampler::fill(std::int64_t g, std::span<std::int32_t> row) const {
  if (g < 0 || static_cast<std::int64_t>(row.size()) != context_length_ + 1) {
    throw std::invalid_argument(
        fmt::format("Sampler::fill: sample {}, row of {} where [T+1] = {}", g, row.size(), context_length_ + 1));
  }
  corpus_.copy(window_start(g), row);
}

void Sampler::fill_validation(std::int64_t i, std::span<std::int32_t> row) const {
  if (i < 0 || i >= validation_windows_ || static_cast<std::int64_t>(row.size()) != context_length_ + 1) {
    throw std::invalid_argument(fmt::format("Sampler::fill_validation: window {} of {}, row of {} where [T+1] = {}", i,
                                            validation_windows_, row.size(), context_length_ + 1));
  }
  corpus_.copy(validation_start(i), row);
}

}  // namespace tessera::data
