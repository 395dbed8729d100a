/// Files without a name of HDF5's as data.path: raw tokens, llm.c's two formats, text.
#include <algorithm>
#include <vector>

#include "data/corpus.hpp"
#include "tests/fuzz/fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  static const std::filesystem::path path = fuzz::scratch_folder() / "tokens.bin";
  constexpr std::int64_t kVocabulary = 50257;
  fuzz::write_file(path, fuzz::text_of(data, size));
  for (const config::DataSource kind : {config::DataSource::tokens, config::DataSource::text}) {
    fuzz::take_or_refuse({Exit::files}, [&] {
      const data::Corpus corpus = data::Corpus::open(kind, path.string(), kVocabulary, 1);
      fuzz::require(corpus.size() > 0 && corpus.size() <= std::int64_t(size) + 1, "more tokens than bytes");
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(corpus.size()));
      corpus.copy(0, tokens);
      const auto [low, high] = std::ranges::minmax(tokens);
      fuzz::require(low >= 0 && high < kVocabulary, "a token outside the vocabulary");
      fuzz::require(corpus.fingerprint().size() == 16, "no fingerprint");
    });
  }
  return 0;
}
