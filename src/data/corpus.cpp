#include "data/corpus.hpp"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "random.hpp"
#include "errors.hpp"
#include "io/files.hpp"
#include "io/h5.hpp"

namespace tessera::data {

struct Corpus::Source {
  virtual ~Source() = default;
  virtual std::int64_t size() const = 0;
  virtual void copy(std::int64_t first, std::span<std::int32_t> out) const = 0;
  virtual std::string tokenisation() const = 0;
  virtual std::string name() const = 0;
  virtual std::int64_t fingerprinted() const { return size(); }  // of its first so many tokens is the fingerprint
};

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read as they are");

constexpr std::int64_t kHeaderBytes = 256 * sizeof(std::int32_t);  // llm.c

/// The two llm.c formats: magic and version stand first in the header, the number of tokens third.
struct BinFormat {
  std::int32_t magic, version;
  std::int64_t token_bytes;
};
constexpr BinFormat kLlmc16{20240520, 1, 2}, kLlmc32{20240801, 7, 4};

Failure unusable(const std::string& name, const std::string& what, const std::string& action) {
  return Failure(Exit::files, fmt::format("{}: {}. {}.", name, what, action));
}

constexpr std::int64_t kBlock = 1 << 16;    // tokens read at a time in a full scan
constexpr std::int64_t kSamples = 1 << 10;  // blocks in the fingerprint of a corpus that has more

/// Calls visit(first, count) for all of `size` tokens, a block at a time.
template <class Visit>
void for_each_block(std::int64_t size, const Visit& visit) {
  for (std::int64_t first = 0; first < size; first += kBlock) visit(first, std::min(kBlock, size - first));
}

io::InputFile open_file(const std::string& path) {
  io::InputFile file(path, "opening data.path");
  if (file.bytes() == 0) throw unusable(path, "the file is empty", "Give a file with text or tokens in data.path");
  return file;
}

/// Tokens first .. first+count-1 of those that stand side by side in a file, the first of all at byte `skip`.
template <class Token>
std::vector<Token> read_tokens(const io::InputFile& file, std::int64_t skip, std::int64_t first, std::int64_t count) {
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  file.read(skip + first * static_cast<std::int64_t>(sizeof(Token)), std::as_writable_bytes(std::span(tokens)));
  return tokens;
}

/// Refuses the first token outside 0..vocab_size-1; `offset` is the position of tokens[0] in the stream.
template <class Token>
void require_in_vocabulary(std::span<const Token> tokens, std::int64_t offset, std::int64_t vocab_size,
                           const std::string& name, const std::string& other_cause) {
  Token low = tokens[0], high = tokens[0];  // of them all first, which compiles to vector code
  for (const Token token : tokens) low = std::min(low, token), high = std::max(high, token);
  if (std::cmp_greater_equal(low, 0) && std::cmp_less(high, vocab_size)) return;
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](Token token) {
    return std::cmp_less(token, 0) || std::cmp_greater_equal(token, vocab_size);
  });
  throw unusable(name,
                 fmt::format("token {} at position {} is outside the vocabulary of {}", *bad,
                             offset + (bad - tokens.begin()), vocab_size),
                 "Set model.vocab_size above the largest token, or tokenise the data again" + other_cause);
}

struct TextFile final : Corpus::Source {
  TextFile(const std::string& path, std::int64_t vocab_size) : path(path), file(open_file(path)) {
    if (vocab_size <= kEndOfText) {
      throw unusable(path,
                     fmt::format("text needs a vocabulary of {} (256 bytes and end-of-text), model.vocab_size is {}",
                                 kEndOfText + 1, vocab_size),
                     fmt::format("Set model.vocab_size={}", kEndOfText + 1));
    }
  }
  std::int64_t size() const override { return file.bytes() + 1; }
  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    const auto count = static_cast<std::int64_t>(out.size());
    const bool has_end = first + count == size();
    std::ranges::copy(read_tokens<std::uint8_t>(file, 0, first, count - (has_end ? 1 : 0)), out.begin());
    if (has_end) out.back() = kEndOfText;
  }
  std::string tokenisation() const override { return "bytes"; }
  std::string name() const override { return path; }

  std::string path;
  io::InputFile file;
};

template <class Token>
struct BinFile final : Corpus::Source {
  BinFile(std::string path, io::InputFile opened, std::int64_t skip, std::int64_t vocab_size,
          const std::string& other_cause = "")
      : path(std::move(path)), file(std::move(opened)), skip(skip) {
    if (std::cmp_less(std::numeric_limits<Token>::max(), vocab_size)) return;
    for_each_block(size(), [&](std::int64_t first, std::int64_t count) {
      const auto block = read_tokens<Token>(file, skip, first, count);
      require_in_vocabulary(std::span(block), first, vocab_size, this->path, other_cause);
    });
  }
  std::int64_t size() const override { return (file.bytes() - skip) / static_cast<std::int64_t>(sizeof(Token)); }
  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    std::ranges::copy(read_tokens<Token>(file, skip, first, static_cast<std::int64_t>(out.size())), out.begin());
  }
  std::string tokenisation() const override { return sizeof(Token) == 2 ? "uint16" : "uint32"; }
  std::string name() const override { return path; }

  std::string path;
  io::InputFile file;
  std::int64_t skip;  // bytes before the first token
};

/// Whether wider tokens were read as these uint16: every second one is the upper half of a token, 0 to 3 where those
/// are below 2^18, and of the others a quarter and more is not. Tokens to which the position means nothing look like
/// that with a probability below (3/4)^256.
bool are_halves(std::span<const std::uint16_t> tokens) {
  std::size_t pairs = tokens.size() / 2, above = 0;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    if (tokens[2 * pair + 1] > 3) return false;
    above += tokens[2 * pair] > 3 ? 1 : 0;
  }
  return pairs >= 256 && above >= pairs / 4;
}

/// nanoGPT's raw uint16. Nothing in the file says so.
std::unique_ptr<const Corpus::Source> open_raw(const std::string& path, io::InputFile file, std::int64_t vocab_size) {
  if (file.bytes() % 2 != 0) {
    throw unusable(path, fmt::format("{} bytes are not a whole number of uint16 tokens", file.bytes()),
                   "The file is cut off or not a token file: write it again, or set data.source=\"text\"");
  }
  const std::string wider = fmt::format(
      "write tokens of uint32 into an HDF5 dataset (data.path=\"FILE.h5\") or as llm.c "
      "does, behind its header of magic {}",
      kLlmc32.magic);
  const auto start = read_tokens<std::uint16_t>(file, 0, 0, std::min(kBlock, file.bytes() / 2));
  if (are_halves(start)) {
    throw unusable(
        path,
        fmt::format("a file without a header holds uint16, and these look like uint32 or wider: every "
                    "second one of the first {} is below 4",
                    start.size()),
        fmt::format("Write the tokens as uint16, or {}; what is uint16 nevertheless is read from HDF5, too", wider));
  }
  return std::make_unique<BinFile<std::uint16_t>>(path, std::move(file), 0, vocab_size,
                                                  "; where its tokens are not uint16, " + wider);
}

/// Looks at the header: llm.c's two formats or, without their magic, raw tokens.
std::unique_ptr<const Corpus::Source> open_bin(const std::string& path, std::int64_t vocab_size) {
  io::InputFile file = open_file(path);
  std::int32_t header[3] = {};
  file.read(0, std::as_writable_bytes(std::span(header))
                   .first(static_cast<std::size_t>(std::min<std::int64_t>(sizeof header, file.bytes()))));
  if (header[0] != kLlmc16.magic && header[0] != kLlmc32.magic) return open_raw(path, std::move(file), vocab_size);
  const BinFormat& format = header[0] == kLlmc16.magic ? kLlmc16 : kLlmc32;
  const std::string again = "The file is cut off or damaged: write it again";
  if (file.bytes() < kHeaderBytes) {
    throw unusable(path, fmt::format("the llm.c header has {} bytes of {}", file.bytes(), kHeaderBytes), again);
  }
  if (header[1] != format.version) {
    throw unusable(path, fmt::format("llm.c token file of version {} where {} is read", header[1], format.version),
                   "Write it again with the current llm.c scripts");
  }
  const std::int64_t payload = file.bytes() - kHeaderBytes;
  if (header[2] <= 0 || payload != header[2] * format.token_bytes) {
    throw unusable(path,
                   fmt::format("the llm.c header promises {} tokens of {} bytes, {} bytes follow it", header[2],
                               format.token_bytes, payload),
                   again);
  }
  if (format.token_bytes == 2)
    return std::make_unique<BinFile<std::uint16_t>>(path, std::move(file), kHeaderBytes, vocab_size);
  return std::make_unique<BinFile<std::uint32_t>>(path, std::move(file), kHeaderBytes, vocab_size);
}

/// "runs/x.h5:/a/b" -> file and dataset; the dataset is "tokens" where none is given. Empty file: not an HDF5 path.
std::pair<std::string, std::string> split_hdf5_path(const std::string& path) {
  for (const std::string ending : {".h5", ".hdf5"}) {
    if (path.ends_with(ending)) return {path, "tokens"};
    const auto at = path.rfind(ending + ":");
    if (at == std::string::npos) continue;
    std::string dataset = path.substr(at + ending.size() + 1);
    dataset.erase(0, dataset.find_first_not_of('/'));
    return {path.substr(0, at + ending.size()), dataset.empty() ? "tokens" : dataset};
  }
  return {};
}

struct Hdf5File final : Corpus::Source {
  Hdf5File(const std::string& path, const std::string& dataset, std::int64_t vocab_size)
      : file(io::h5::File::open(path)), tokens(file.dataset(dataset)), length(tokens.size()) {
    const auto type = tokens.type();
    if (type == io::h5::Type::text || type == io::h5::Type::float32 || type == io::h5::Type::float64 ||
        tokens.shape().size() != 1) {
      throw unusable(tokens.where(), "not a 1-D array of integers",
                     "Name such a dataset: data.path=\"FILE.h5:/dataset\"");
    }
    if (length == 0) throw unusable(tokens.where(), "the dataset is empty", "Give a dataset with tokens in data.path");
    for_each_block(length, [&](std::int64_t first, std::int64_t count) {
      std::vector<std::int64_t> block(static_cast<std::size_t>(count));
      tokens.read_from(first, std::span(block));
      require_in_vocabulary(std::span<const std::int64_t>(block), first, vocab_size, tokens.where(), "");
    });
    const bool is_narrow = type == io::h5::Type::uint8 || type == io::h5::Type::uint16;
    kind = is_narrow ? "uint16" : "uint32";
  }
  std::int64_t size() const override { return length; }
  void copy(std::int64_t first, std::span<std::int32_t> out) const override { tokens.read_from(first, out); }
  std::string tokenisation() const override { return kind; }
  std::string name() const override { return tokens.where(); }

  io::h5::File file;
  io::h5::Dataset tokens;
  std::int64_t length;
  std::string kind;
};

/// Runs of kRun tokens; within a run the next token is (a x + c) mod V, but one time in kNoise it is any token.
struct Synthetic final : Corpus::Source {
  static constexpr std::int64_t kSize = std::int64_t{1} << 22, kRun = 64;
  static constexpr std::uint64_t kNoise = 8;

  Synthetic(std::int64_t vocab_size, std::uint64_t seed)
      : vocabulary(static_cast<std::uint64_t>(vocab_size)),
        seed(seed),
        factor(mix(seed, 1) % vocabulary),
        shift(mix(seed, 2) % vocabulary) {}
  std::int64_t size() const override { return kSize; }
  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    std::uint64_t token = 0;
    const std::int64_t last = first + static_cast<std::int64_t>(out.size());
    for (std::int64_t i = first / kRun * kRun; i < last; ++i) {  // a run is made from its start
      const std::uint64_t dice = mix(seed, 3 + static_cast<std::uint64_t>(i));
      const bool is_free = i % kRun == 0 || dice % kNoise == 0;
      token = is_free ? mix(dice) % vocabulary : (factor * token + shift) % vocabulary;
      if (i >= first) out[static_cast<std::size_t>(i - first)] = static_cast<std::int32_t>(token);
    }
  }
  std::string tokenisation() const override { return "synthetic"; }
  std::string name() const override { return "synthetic data"; }
  std::int64_t fingerprinted() const override { return kBlock; }  // the seed determines the others

  std::uint64_t vocabulary, seed, factor, shift;
};

std::unique_ptr<const Corpus::Source> open_source(config::DataSource source, const std::string& path,
                                                  std::int64_t vocab_size, std::uint64_t seed) {
  switch (source) {
    case config::DataSource::synthetic: return std::make_unique<Synthetic>(vocab_size, seed);
    case config::DataSource::text: return std::make_unique<TextFile>(path, vocab_size);
    case config::DataSource::tokens: break;
  }
  if (const auto [file, dataset] = split_hdf5_path(path); !file.empty())
    return std::make_unique<Hdf5File>(file, dataset, vocab_size);
  return open_bin(path, vocab_size);
}

std::string fingerprint_of(const Corpus::Source& source) {
  const std::int64_t size = source.fingerprinted();
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset_withSeed(state.get(), static_cast<XXH64_hash_t>(source.size()));
  std::vector<std::int32_t> block;
  const auto add = [&](std::int64_t first, std::int64_t count) {
    block.resize(static_cast<std::size_t>(count));
    source.copy(first, block);
    XXH3_64bits_update(state.get(), block.data(), block.size() * sizeof block[0]);
  };
  if (size <= kSamples * kBlock) {
    for_each_block(size, add);
  } else {
    for (std::int64_t i = 0; i < kSamples; ++i) add(i * (size - kBlock) / (kSamples - 1), kBlock);
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

}  // namespace

Corpus::Corpus(std::unique_ptr<const Source> source)
    : source_(std::move(source)), fingerprint_(fingerprint_of(*source_)) {}
Corpus::Corpus(Corpus&&) noexcept = default;
Corpus& Corpus::operator=(Corpus&&) noexcept = default;
Corpus::~Corpus() = default;

Corpus Corpus::open(config::DataSource source, const std::string& path, std::int64_t vocab_size, std::uint64_t seed) {
  return Corpus(open_source(source, path, vocab_size, seed));
}

std::int64_t Corpus::size() const { return source_->size(); }
std::string Corpus::tokenisation() const { return source_->tokenisation(); }
std::string Corpus::name() const { return source_->name(); }

void Corpus::copy(std::int64_t first, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  if (first < 0 || count > size() || first > size() - count) {
    throw std::out_of_range(fmt::format("{}: tokens {}..{} of {}", name(), first, first + count - 1, size()));
  }
  if (count > 0) source_->copy(first, out);
}

}  // namespace tessera::data
