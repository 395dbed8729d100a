/// Token files, by path and by format: text, nanoGPT's and llm.c's .bin, HDF5; and tokens that need no file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace tessera::data {

inline constexpr std::int64_t kBlock = 1 << 16;  // tokens read at a time in a check

/// Calls visit(first, count) for each block of tokens first .. first+count-1; the last may be shorter than `block`.
template <class Visit>
void for_each_block(std::int64_t first, std::int64_t count, std::int64_t block, const Visit& visit) {
  for (const std::int64_t end = first + count; first < end; first += block) visit(first, std::min(block, end - first));
}

/// The tokens of one file, which may be closed between reads.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::int64_t size() const = 0;                         // tokens, 1 or more
  virtual std::int64_t fingerprinted() const { return size(); }  // how many of its first tokens identify it
  virtual std::string tokenisation() const = 0;                  // as in Corpus
  virtual std::string format() const { return tokenisation(); }  // the same for all files of a corpus; for messages
  virtual std::string name() const = 0;                          // for messages

  /// Copies tokens first .. first + out.size() - 1 < size(); opens the file if it is closed.
  /// Throws  Failure(Exit::files): truncated since it was opened; when reopened, missing or of another size.
  virtual void copy(std::int64_t first, std::span<std::int32_t> out) = 0;
  virtual void close() {}  // releases the descriptor
  /// Whether a token of its type can lie outside 0 .. vocab_size-1; if not, check() need not read.
  virtual bool can_leave(std::int64_t /*vocab_size*/) const { return false; }
  /// Throws  Failure(Exit::files) with the position of the first of tokens first .. first+count-1 that is outside
  ///         0 .. vocab_size-1.
  virtual void check(std::int64_t /*first*/, std::int64_t /*count*/, std::int64_t /*vocab_size*/) {}
};

/// These open a file and reject it if its size or header is invalid; check() reads the tokens themselves.
std::unique_ptr<Source> open_bytes(const std::string& path);   // without the end of text
std::unique_ptr<Source> open_tokens(const std::string& path);  // .bin or NAME.h5[:/dataset]
std::unique_ptr<Source> single_token(std::int32_t token);
std::unique_ptr<Source> make_synthetic(std::int64_t vocab_size, std::uint64_t seed);

/// Rejects the first token outside 0 .. vocab_size-1; `first` is the position of tokens[0] in `source`.
void require_in_vocabulary(std::span<const std::int32_t> tokens, std::int64_t first, std::int64_t vocab_size,
                           const Source& source);

/// "NAME: WHAT. ACTION."
Failure unusable(const std::string& name, const std::string& what, const std::string& action);

// data.path as a list of files: one path, or a pattern that several match.

/// Whether `path` contains *, ? or [...] and no file has exactly that name.
bool is_pattern(const std::string& path);

/// The paths that `pattern` matches as in glob(3), except names that begin with a dot.
///
/// Order    by the bytes of the paths, whatever the locale.
/// Literal  leading folders that exist under the name they have in the pattern.
/// Throws   Failure(Exit::files): no match, or an unreadable folder, so that no file is silently omitted.
std::vector<std::string> matches_of(const std::string& pattern);

/// "runs/x.h5:/a/b" -> file and dataset; the dataset defaults to "tokens". Empty file: not an HDF5 path.
std::pair<std::string, std::string> split_hdf5_path(const std::string& path);

}  // namespace tessera::data
