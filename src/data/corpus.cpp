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

Corpus::Corpus(std::string name, std::int64_t vocab_size) : name_(std::move(name)), vocab_size_(vocab_size) {}
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
    Corpus corpus("synthetic data", vocab_size);
    corpus.append(make_synthetic(vocab_size, seed));
    return corpus;
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
  Corpus corpus(std::move(name), vocab_size);
  for (const std::string& each : files) corpus.append(is_text ? open_bytes(each) : open_tokens(each + dataset));
  require_one_format(corpus.sources_);
  if (is_text) corpus.append(single_token(kEndOfText));
  return corpus;
}

void Corpus::append(std::unique_ptr<Source> source) {
  ends_.push_back(size() + source->size());
  sources_.push_back(std::move(source));
  use(sources_.size() - 1);
}

Source& Corpus::use(std::size_t index) const {
  if (recent_.empty() || recent_.back() != index) {
    std::erase(recent_, index);
    recent_.push_back(index);
  }
  if (recent_.size() > kOpenFiles) {
    sources_[recent_.front()]->close();
    recent_.erase(recent_.begin());
  }
  return *sources_[index];
}

/// Calls visit(source, at, part) for each source that holds some of tokens first .. first+count-1: `part` of them,
/// from its token `at` on.
template <class Visit>
void Corpus::for_each_part(std::int64_t first, std::int64_t count, const Visit& visit) const {
  if (first < 0 || count > size() || first > size() - count) {
    throw std::out_of_range(fmt::format("{}: tokens {}..{} of {}", name_, first, first + count - 1, size()));
  }
  auto index = static_cast<std::size_t>(std::ranges::upper_bound(ends_, first) - ends_.begin());
  for (; count > 0; ++index) {
    Source& source = use(index);
    const std::int64_t part = std::min(ends_[index] - first, count);
    visit(source, first - (ends_[index] - source.size()), part);
    first += part;
    count -= part;
  }
}

bool Corpus::needs_check() const {
  return std::ranges::any_of(sources_, [&](const auto& source) { return source->can_leave(vocab_size_); });
}

void Corpus::check(std::int64_t first, std::int64_t count) const {
  for_each_block(first, count, kReported, [&](std::int64_t from, std::int64_t tokens) {
    const events::Clock start_s = events::now_s();
    for_each_part(from, tokens, [&](Source& source, std::int64_t at, std::int64_t part) {
      if (source.can_leave(vocab_size_)) source.check(at, part, vocab_size_);
    });
    events::report(events::Region{"data/check", "compute", start_s, events::now_s()});
  });
}

std::string Corpus::tokenisation() const { return sources_.front()->tokenisation(); }

void Corpus::copy(std::int64_t first, std::span<std::int32_t> out) const {
  for_each_part(first, std::ssize(out), [&](Source& source, std::int64_t at, std::int64_t count) {
    const auto part = out.first(static_cast<std::size_t>(count));
    source.copy(at, part);
    // Checked at open, but the file may have changed since, and a token outside the vocabulary corrupts memory.
    require_in_vocabulary(part, at, vocab_size_, source);
    out = out.subspan(part.size());
  });
}

const std::string& Corpus::fingerprint() const {
  if (!fingerprint_.empty()) return fingerprint_;
  const std::int64_t hashed = sources_.size() == 1 ? sources_.front()->fingerprinted() : size();
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
  return fingerprint_ = fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

}  // namespace tessera::data
