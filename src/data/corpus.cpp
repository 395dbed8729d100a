#include "data/corpus.hpp"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "data/formats.hpp"
#include "kernels/core/events.hpp"

namespace tessera::data {
namespace {

using Sources = std::vector<std::unique_ptr<Source>>;

constexpr std::int64_t kSamples = 1 << 10;  // most blocks that a fingerprint covers

/// Rejects the first file whose format differs from the majority's.
void require_one_format(const Sources& files) {
  std::map<std::string, int> counts;
  for (const auto& file : files) ++counts[file->format()];
  std::string usual = files.front()->format();
  for (const auto& [format, count] : counts)
    if (count > counts[usual]) usual = format;
  for (const auto& file : files) {
    if (file->format() == usual) continue;
    throw unusable(file->name(),
                   fmt::format("its format is {}, but in {} of the {} files of data.path it is {}", file->format(),
                               counts[usual], files.size(), usual),
                   "Convert it to that format, or narrow data.path to files of one format");
  }
}

}  // namespace

/// The sources, concatenated; the kOpenFiles most recently read may be open.
struct Corpus::Stream {
  Stream(std::string name, std::int64_t vocab_size) : name(std::move(name)), vocab_size(vocab_size) {}

  void append(std::unique_ptr<Source> source) {
    ends.push_back(size() + source->size());
    sources.push_back(std::move(source));
    use(sources.size() - 1);
  }
  std::int64_t size() const { return ends.empty() ? 0 : ends.back(); }

  /// Records that source `index` is about to be read; closes the least recently read one if too many would be open.
  void use(std::size_t index) {
    if (!recent.empty() && recent.back() == index) return;
    if (const auto at = std::ranges::find(recent, index); at != recent.end()) recent.erase(at);
    recent.push_back(index);
    if (recent.size() <= kOpenFiles) return;
    sources[recent.front()]->close();
    recent.erase(recent.begin());
  }

  /// Calls visit(source, at, part) for each source that holds some of tokens first .. first+count-1: `part` of them,
  /// from its token `at` on.
  template <class Visit>
  void for_each_part(std::int64_t first, std::int64_t count, const Visit& visit) {
    auto index = static_cast<std::size_t>(std::ranges::upper_bound(ends, first) - ends.begin());
    while (count > 0) {
      Source& source = *sources[index];
      const std::int64_t part = std::min(ends[index] - first, count);
      use(index);
      visit(source, first - (ends[index] - source.size()), part);
      first += part;
      count -= part;
      ++index;
    }
  }

  void copy(std::int64_t first, std::span<std::int32_t> out) {
    for_each_part(first, std::ssize(out), [&](Source& source, std::int64_t at, std::int64_t count) {
      const auto part = out.first(static_cast<std::size_t>(count));
      source.copy(at, part);
      // Checked at open, but the file may have changed since, and a token outside the vocabulary corrupts memory.
      require_in_vocabulary(part, at, vocab_size, source);
      out = out.subspan(part.size());
    });
  }

  void check(std::int64_t first, std::int64_t count) {
    for_each_block(first, count, kReported, [&](std::int64_t from, std::int64_t tokens) {
      const events::Clock start_s = events::now_s();
      for_each_part(from, tokens, [&](Source& source, std::int64_t at, std::int64_t part) {
        if (source.can_leave(vocab_size)) source.check(at, part, vocab_size);
      });
      events::report(events::Region{"data/check", "compute", start_s, events::now_s()});
    });
  }

  const std::string& fingerprint() {
    if (known_fingerprint.empty()) known_fingerprint = make_fingerprint();
    return known_fingerprint;
  }

  std::string make_fingerprint() {
    const std::int64_t hashed = sources.size() == 1 ? sources.front()->fingerprinted() : size();
    const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
    XXH3_64bits_reset_withSeed(state.get(), static_cast<XXH64_hash_t>(size()));
    std::vector<std::int32_t> block;
    const auto add = [&](std::int64_t first, std::int64_t count) {
      const events::Clock start_s = events::now_s();
      block.resize(static_cast<std::size_t>(count));
      copy(first, block);
      XXH3_64bits_update(state.get(), block.data(), block.size() * sizeof block[0]);
      events::report(events::Region{"data/fingerprint", "compute", start_s, events::now_s()});
    };
    if (hashed <= kSamples * kBlock) {
      for_each_block(0, hashed, kBlock, add);
    } else {
      for (std::int64_t i = 0; i < kSamples; ++i) add(i * (hashed - kBlock) / (kSamples - 1), kBlock);
    }
    return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
  }

  std::string name;
  std::int64_t vocab_size;
  Sources sources;
  std::vector<std::int64_t> ends;   // [sources] position after the last token of each
  std::vector<std::size_t> recent;  // indices of the sources that may be open, most recently read last
  std::string known_fingerprint;    // "" before the first question
};

Corpus::Corpus(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
Corpus::Corpus(Corpus&&) noexcept = default;
Corpus& Corpus::operator=(Corpus&&) noexcept = default;
Corpus::~Corpus() = default;

Corpus Corpus::open(config::DataSource kind, const std::string& path, std::int64_t vocab_size, std::uint64_t seed) {
  Corpus corpus = open_unchecked(kind, path, vocab_size, seed);
  if (corpus.needs_check()) corpus.check(0, corpus.size());
  return corpus;
}

Corpus Corpus::open_unchecked(config::DataSource kind, const std::string& path, std::int64_t vocab_size,
                              std::uint64_t seed) {
  if (kind == config::DataSource::synthetic) {
    auto stream = std::make_unique<Stream>("synthetic data", vocab_size);
    stream->append(make_synthetic(vocab_size, seed));
    return Corpus(std::move(stream));
  }
  const bool is_text = kind == config::DataSource::text;
  if (is_text && vocab_size <= kEndOfText) {
    throw unusable(path,
                   fmt::format("text needs a vocabulary of {} (256 bytes and end-of-text), model.vocab_size is {}",
                               kEndOfText + 1, vocab_size),
                   fmt::format("Set model.vocab_size={}", kEndOfText + 1));
  }
  const std::string hdf5 = is_text ? "" : split_hdf5_path(path).first, file = hdf5.empty() ? path : hdf5;
  const std::string dataset = path.substr(file.size());  // ":/dataset" or nothing
  std::vector<std::string> files{file};
  std::string name = path;
  if (is_pattern(file)) {
    files = matches_of(file);
    name += fmt::format(" ({} file{})", files.size(), files.size() == 1 ? "" : "s");
  }
  auto stream = std::make_unique<Stream>(std::move(name), vocab_size);
  for (const std::string& each : files) stream->append(is_text ? open_bytes(each) : open_tokens(each + dataset));
  require_one_format(stream->sources);
  if (is_text) stream->append(single_token(kEndOfText));
  return Corpus(std::move(stream));
}

std::int64_t Corpus::size() const { return stream_->size(); }
std::string Corpus::tokenisation() const { return stream_->sources.front()->tokenisation(); }
const std::string& Corpus::name() const { return stream_->name; }
const std::string& Corpus::fingerprint() const { return stream_->fingerprint(); }

bool Corpus::needs_check() const {
  return std::ranges::any_of(stream_->sources,
                             [&](const auto& source) { return source->can_leave(stream_->vocab_size); });
}

void Corpus::check(std::int64_t first, std::int64_t count) const {
  require_inside(first, count);
  stream_->check(first, count);
}

void Corpus::copy(std::int64_t first, std::span<std::int32_t> out) const {
  require_inside(first, std::ssize(out));
  stream_->copy(first, out);
}

void Corpus::require_inside(std::int64_t first, std::int64_t count) const {
  if (first >= 0 && count <= size() && first <= size() - count) return;
  throw std::out_of_range(fmt::format("{}: tokens {}..{} of {}", name(), first, first + count - 1, size()));
}

}  // namespace tessera::data
