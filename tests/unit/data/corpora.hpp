/// Corpora for the tests of src/data: opening them, reading them, writing llm.c's files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/corpus.hpp"
#include "tests/unit/io/scratch.hpp"

namespace tessera::test {

inline std::vector<std::int32_t> tokens_of(const data::Corpus& corpus, std::int64_t first, std::int64_t count) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(count), -1);
  corpus.copy(first, out);
  return out;
}
inline std::vector<std::int32_t> all_of(const data::Corpus& corpus) { return tokens_of(corpus, 0, corpus.size()); }

inline data::Corpus open_text(const fs::path& path, std::int64_t vocab_size = 257) {
  return data::Corpus::open(config::DataSource::text, path.string(), vocab_size, 1);
}
inline data::Corpus open_tokens(const std::string& path, std::int64_t vocab_size = 50257) {
  return data::Corpus::open(config::DataSource::tokens, path, vocab_size, 1);
}

/// llm.c: 256 int32, of which the first three count, then the tokens.
template <class Token>
std::string llmc_file(std::int32_t magic, std::int32_t version, std::int32_t count, const std::vector<Token>& tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = count;
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  return bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token));
}

}  // namespace tessera::test
