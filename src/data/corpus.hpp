/// One stream of tokens with random access, from any storage and any number of files.
///
///   text       any file; a token is a byte, 0..255, and token 256 ends the stream. No encoding is assumed.
///   tokens     NAME.h5[:/dataset] or .hdf5: 1-D integers, read by range; the default dataset is /tokens
///              any other file that starts with llm.c's header of 256 int32 (magic, version, count): uint16 tokens
///              (magic 20240520, version 1) or uint32 tokens (magic 20240801, version 7); else nanoGPT's raw uint16
///   synthetic  generated from the seed: 7 of 8 tokens follow from the one before by a fixed rule, so there is
///              something to learn and a floor below which the loss cannot fall
///
/// A path with *, ? or [...] is a pattern (formats.hpp), unless a file has exactly that name. The files that match form
/// one stream, concatenated in the order of their names; they must agree in format and in the width of their tokens.
///
/// Checks   every token against the vocabulary, at open (unless its type cannot exceed it) and at every read. Ranks
///          that read the same files may share the first check: open_unchecked(), then a part of check() each.
/// Reports  a check to kernels/core/events.hpp, kReported tokens at a time, and the fingerprint by its blocks.
/// Reading  on demand, through the page cache that the ranks of a host share. Nothing is mapped into memory: if a
///          mapped file were truncated or its network file system failed, a signal would end the process.
/// Throws   Failure(Exit::files), naming the file:
///          open, open_unchecked
///                unreadable, empty, or not what its name or header says (formats.cpp has all cases); a format other
///                than that of most files; a pattern that matches nothing
///          open, check, copy, fingerprint
///                a token outside the vocabulary (with its position in the file); truncated since it was opened; when
///                reopened, missing or of another size
/// Limits   at most kOpenFiles files are open, the most recently read. Tokens overwritten during a run are read as they
///          are then; the next start detects it by the fingerprint. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/settings.hpp"  // DataSource

namespace tessera::data {

inline constexpr int kEndOfText = 256;              // of tokenisation "bytes"; others have no end of text
inline constexpr int kOpenFiles = 64;               // most descriptors that a corpus holds
inline constexpr std::int64_t kReported = 1 << 20;  // tokens checked per report: 2 MB or more

class Source;  // of formats.hpp

class Corpus {
 public:
  static Corpus open(config::DataSource, const std::string& path, std::int64_t vocab_size, std::uint64_t seed);

  /// Only opens the files. If needs_check(), have check() see every token, here or on another rank, before any is used.
  static Corpus open_unchecked(config::DataSource, const std::string& path, std::int64_t vocab_size,
                               std::uint64_t seed);
  /// Whether the type of the tokens has values outside the vocabulary.
  bool needs_check() const;
  /// Reads tokens first .. first+count-1 <= size() and refuses the first outside the vocabulary.
  void check(std::int64_t first, std::int64_t count) const;

  std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }  // tokens
  void copy(std::int64_t first, std::span<std::int32_t> out) const;       // first + out.size() <= size()
  /// "bytes", "uint16", "uint32" or "synthetic"; a checkpoint must agree.
  std::string tokenisation() const;
  /// Must agree between ranks; a resume warns if it differs. XXH3 (64 bit, seeded with size()) of the tokens as
  /// int32, as 16 hex digits. Depends neither on how they are stored nor on how they are divided into files.
  /// Covers  up to 2^26 tokens: all. More: 1024 blocks of 2^16 tokens at even distances, the first and the last
  ///         included. Synthetic data: the first block. The first call reads them.
  const std::string& fingerprint() const;
  /// For messages: the path, "PATTERN (12 files)" or "synthetic data".
  const std::string& name() const { return name_; }

  Corpus(Corpus&&) noexcept;
  Corpus& operator=(Corpus&&) noexcept;
  ~Corpus();

 private:
  Corpus(std::string name, std::int64_t vocab_size);
  void append(std::unique_ptr<Source> source);
  /// A source that is about to be read; closes the least recently read one if too many would be open.
  Source& use(std::size_t index) const;
  template <class Visit>
  void for_each_part(std::int64_t first, std::int64_t count, const Visit& visit) const;

  std::string name_;
  std::int64_t vocab_size_;
  std::vector<std::unique_ptr<Source>> sources_;  // concatenated
  std::vector<std::int64_t> ends_;                // [sources] position after the last token of each
  mutable std::vector<std::size_t> recent_;       // sources that may be open, most recently read last
  mutable std::string fingerprint_;               // "" before the first question
};

}  // namespace tessera::data
