/// HDF5 files: as tokens in data.path, and what any job reads of one: its datasets, their values and attributes.
#include <algorithm>
#include <vector>

#include "data/corpus.hpp"
#include "io/h5.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace tessera;

constexpr std::int64_t kVocabulary = 50257, kRead = 1000;  // tokens or values

void read_tokens(const std::filesystem::path& path) {
  const data::Corpus corpus = data::Corpus::open(config::DataSource::tokens, path.string(), kVocabulary, 1);
  fuzz::require(corpus.size() > 0, "no tokens");
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(corpus.size(), kRead)));
  corpus.copy(corpus.size() - std::ssize(tokens), tokens);
  const auto [low, high] = std::ranges::minmax(tokens);
  fuzz::require(low >= 0 && high < kVocabulary, "a token outside the vocabulary");
}

void read_values(const io::h5::Dataset& dataset) {
  dataset.require_contents();
  const std::int64_t count = std::min(dataset.size(), kRead);
  std::vector<double> floats(static_cast<std::size_t>(count));
  std::vector<std::int64_t> integers(floats.size());
  switch (dataset.type()) {
    case io::h5::Type::text: dataset.strings(); break;
    case io::h5::Type::float32:
    case io::h5::Type::float64: dataset.read_from(0, std::span(floats)); break;
    default: dataset.read_from(0, std::span(integers));
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path = fuzz::scratch_folder() / "tokens.h5";
  fuzz::write_file(path, fuzz::text_of(data, size));
  const std::initializer_list<Exit> codes = {Exit::files, Exit::out_of_memory};
  fuzz::take_or_refuse(codes, [&] { read_tokens(path); });
  fuzz::take_or_refuse(codes, [&] {
    const io::h5::File file = io::h5::File::open(path);
    fuzz::take_or_refuse(codes, [&] { file.format(); });
    fuzz::take_or_refuse(codes, [&] { file.texts("units"); });
    fuzz::take_or_refuse(codes, [&] { file.integer("causal"); });
    fuzz::take_or_refuse(codes, [&] { file.number("scale"); });
    for (const std::string& name : file.dataset_paths()) {
      fuzz::take_or_refuse(codes, [&] { read_values(file.dataset(name)); });
    }
  });
  return 0;
}
