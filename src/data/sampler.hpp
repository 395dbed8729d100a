/// Maps a global sample index to tokens: a pure function of the index, so that batches depend neither on ranks and
/// micro-batches nor on how often a run was interrupted. Step s of batch size B reads samples s*B .. s*B+B-1, unless
/// a run leaves out some (train.on_bad_step).
///
/// Split   the first (1 - validation_fraction) of the corpus is for training, the rest for validation; no window spans
///         both.
/// Epoch   W adjacent windows of T tokens (and the target after the last), each visited once, in the order of a
///         permutation keyed by seed and epoch. Each epoch shifts all its windows by an offset of its own, so that
///         boundaries move. An epoch omits at most 2T-2 tokens at the ends, but not the same ones in every epoch.
/// Source  Feistel network with cycle walking: Black & Rogaway 2002, "Ciphers with arbitrary finite domains";
///         integer mixing: Steele, Lea & Flood 2014 (SplitMix64). Integers only: the same on every platform.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/corpus.hpp"

namespace tessera::data {

/// A bijection of 0..size-1 onto itself, chosen by `key`; each index is evaluated independently, without a table.
class Permutation {
 public:
  Permutation(std::int64_t size, std::uint64_t key);
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::uint64_t size_, key_;
  int half_bits_;  // the network permutes 0 .. 4^half_bits - 1, at most 4 times `size`
};

class Sampler {
 public:
  /// Keeps a reference to `corpus`.
  /// Throws  Failure(Exit::files): the training or validation part is shorter than one window.
  Sampler(const Corpus& corpus, std::int64_t context_length, double validation_fraction, std::uint64_t seed);

  std::int64_t windows_per_epoch() const { return windows_; }  // W
  std::int64_t epoch_of(std::int64_t g) const { return g / windows_; }
  std::int64_t validation_windows() const { return validation_windows_; }

  /// Leaves out training samples first .. end - 1. What overlaps becomes one range.
  void leave_out(std::int64_t first, std::int64_t end);
  struct Range {
    std::int64_t first, end;
  };
  const std::vector<Range>& left_out() const { return left_out_; }  // ascending
  std::int64_t left_out_before(std::int64_t sample) const;  // how many
  /// Sample number n, counted from 0, of those not left out from `first` on.
  std::int64_t after(std::int64_t first, std::int64_t n) const;

  std::int64_t window_start(std::int64_t g) const;                          // first token of training sample g
  std::int64_t validation_start(std::int64_t i) const;                      // first token of validation window i
  void fill(std::int64_t g, std::span<std::int32_t> row) const;             // [T+1]
  void fill_validation(std::int64_t i, std::span<std::int32_t> row) const;  // [T+1]

 private:
  const Corpus& corpus_;
  std::int64_t context_length_;  // T
  std::uint64_t seed_;
  std::int64_t train_tokens_, windows_, offsets_, validation_windows_;
  std::vector<Range> left_out_;
};

}  // namespace tessera::data
