/// One stream of tokens, whatever it is stored as and in however many files, with random access.
///
///   text       any files, token = byte, 0..255; token 256 ends the stream. Bytes are bytes: nothing is decoded.
///   tokens     NAME.h5[:/dataset] or .hdf5: 1-D integers, read by range; the default dataset is /tokens
///              any other file that starts with llm.c's header of 256 int32 (magic, version, count): uint16 tokens
///              (magic 20240520, version 1) or uint32 tokens (magic 20240801, version 7); else nanoGPT's raw uint16
///   synthetic  made from the seed: 7 of 8 tokens follow from the one before by a fixed rule, so there is a
///              loss to learn and a floor below which it cannot fall
///
/// A path that holds *, ? or [...], and under which no file exists literally, is a pattern (paths.hpp). What it matches
/// is one stream: the files one behind the other in the order of their names, as if concatenated, with nothing between
/// them. They must agree in format and width of the tokens.
///
/// Every token is checked against the vocabulary once, at open, unless its type cannot exceed it, and again whenever it
/// is read. Files are read where tokens are asked for, through the page cache that the ranks of a host share; none is
/// mapped into memory, where one that is shortened during a run, or a fault of a network file system, would end the
/// process by a signal.
///
/// Throws  Failure(Exit::files), with the name of the file: missing, no regular file, unreadable, empty, odd byte count,
///         truncated or overlong header, raw tokens that are wider than uint16 by all appearance, token above the
///         vocabulary (with its position in that file), not an array of integers, another format than the other files;
///         a pattern that nothing matches. copy: shortened since it was opened, or a token above the vocabulary.
/// Limits  kOpenFiles files are open at most; those read last. One that is opened again must exist with the size it had.
///         Tokens overwritten during a run are read as they are then; the next start detects it by the fingerprint.
///         One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "config/settings.hpp"  // DataSource

namespace tessera::data {

inline constexpr int kEndOfText = 256;  // of tokenisation "bytes"; other tokens have no end of text
inline constexpr int kOpenFiles = 64;   // descriptors that a corpus holds at most

class Corpus {
 public:
  static Corpus open(config::DataSource, const std::string& path, std::int64_t vocab_size, std::uint64_t seed);

  std::int64_t size() const;                                         // tokens
  void copy(std::int64_t first, std::span<std::int32_t> out) const;  // first + out.size() <= size()
  /// "bytes", "uint16", "uint32", "synthetic": what a checkpoint must agree on.
  std::string tokenisation() const;
  /// Must agree between a run and its resumes, and between ranks: XXH3 (64 bit, 16 hex digits, seeded with
  /// size()) of the tokens as int32, whatever they are stored as and however they are divided into files. Of all of them
  /// up to 2^26; of a larger corpus, of 1024 blocks of 2^16 tokens at even distances, the first and the last among them;
  /// of synthetic data, of the first block.
  const std::string& fingerprint() const { return fingerprint_; }
  /// For messages: the path, "PATTERN (12 files)" or "synthetic data".
  const std::string& name() const;

  Corpus(Corpus&&) noexcept;
  Corpus& operator=(Corpus&&) noexcept;
  ~Corpus();

 private:
  struct Stream;
  explicit Corpus(std::unique_ptr<Stream>);
  std::unique_ptr<Stream> stream_;
  std::string fingerprint_;
};

}  // namespace tessera::data
