#include "data/corpus.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
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
};

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and mapped as they are");

constexpr std::size_t kHeaderBytes = 256 * sizeof(std::int32_t);  // llm.c

/// The two llm.c formats: magic and version stand first in the header, the number of tokens third.
struct BinFormat {
  std::int32_t magic, version;
  std::size_t token_bytes;
};
constexpr BinFormat kLlmc16{20240520, 1, 2}, kLlmc32{20240801, 7, 4};

Failure unusable(const std::string& name, const std::string& what, const std::string& action) {
  return Failure(Exit::files, fmt::format("{}: {}. {}.", name, what, action));
}

/// A file mapped read-only; empty files are refused.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw io::file_failure(path, "opening data.path", errno);
    struct stat status {};
    const int stat_error = ::fstat(fd, &status) == 0 ? 0 : errno;
    bytes_ = static_cast<std::size_t>(status.st_size);
    const bool is_file = S_ISREG(status.st_mode);
    void* const at = is_file && bytes_ > 0 ? ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    const int map_error = errno;
    ::close(fd);
    if (stat_error != 0) throw io::file_failure(path, "opening data.path", stat_error);
    if (S_ISDIR(status.st_mode)) throw io::file_failure(path, "opening data.path", EISDIR);
    if (!is_file) throw unusable(path, "not a regular file", "Write the data to a file and give its path in data.path");
    if (bytes_ == 0) throw unusable(path, "the file is empty", "Give a file with text or tokens in data.path");
    if (at == MAP_FAILED) throw io::file_failure(path, "mapping data.path", map_error);
    data_ = static_cast<const std::byte*>(at);
  }
  Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), bytes_);
  }
  const std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Refuses the first token outside 0..vocab_size-1; `offset` is the position of tokens[0] in the stream.
template <class Token>
void require_in_vocabulary(std::span<const Token> tokens, std::int64_t offset, std::int64_t vocab_size,
                           const std::string& name) {
  if (std::cmp_less(std::numeric_limits<Token>::max(), vocab_size) && std::is_unsigned_v<Token>) return;
  constexpr std::size_t kBlock = 1 << 14;  // whole blocks by their maximum, which compiles to vector code
  for (std::size_t begin = 0; begin < tokens.size(); begin += kBlock) {
    const auto block = tokens.subspan(begin, std::min(kBlock, tokens.size() - begin));
    Token low = block[0], high = block[0];
    for (const Token token : block) low = std::min(low, token), high = std::max(high, token);
    if (std::cmp_greater_equal(low, 0) && std::cmp_less(high, vocab_size)) continue;
    const auto bad = std::find_if(block.begin(), block.end(), [&](Token token) {
      return std::cmp_less(token, 0) || std::cmp_greater_equal(token, vocab_size);
    });
    throw unusable(name,
                   fmt::format("token {} at position {} is outside the vocabulary of {}", *bad,
                               offset + static_cast<std::int64_t>(begin) + (bad - block.begin()), vocab_size),
                   "Set model.vocab_size above the largest token, or tokenise the data again");
  }
}

struct TextFile final : Corpus::Source {
  TextFile(const std::string& path, std::int64_t vocab_size) : path(path), file(path) {
    if (vocab_size <= kEndOfText) {
      throw unusable(path,
                     fmt::format("text needs a vocabulary of {} (256 bytes and end-of-text), model.vocab_size is {}",
                                 kEndOfText + 1, vocab_size),
                     fmt::format("Set model.vocab_size={}", kEndOfText + 1));
    }
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(file.bytes()) + 1; }
  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(file.data()) + first;
    const bool has_end = first + static_cast<std::int64_t>(out.size()) == size();
    std::copy_n(bytes, out.size() - (has_end ? 1 : 0), out.begin());
    if (has_end) out.back() = kEndOfText;
  }
  std::string tokenisation() const override { return "bytes"; }
  std::string name() const override { return path; }

  std::string path;
  Mapping file;
};

template <class Token>
struct BinFile final : Corpus::Source {
  BinFile(std::string path, Mapping mapping, std::size_t skip, std::int64_t vocab_size)
      : path(std::move(path)),
        file(std::move(mapping)),
        tokens(reinterpret_cast<const Token*>(file.data() + skip), (file.bytes() - skip) / sizeof(Token)) {
    require_in_vocabulary(tokens, 0, vocab_size, this->path);
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(tokens.size()); }
  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    std::copy_n(tokens.begin() + first, out.size(), out.begin());
  }
  std::string tokenisation() const override { return sizeof(Token) == 2 ? "uint16" : "uint32"; }
  std::string name() const override { return path; }

  std::string path;
  Mapping file;
  std::span<const Token> tokens;
};

/// Looks at the header: llm.c's two formats or, without their magic, nanoGPT's raw uint16.
std::unique_ptr<const Corpus::Source> open_bin(const std::string& path, std::int64_t vocab_size) {
  Mapping file(path);
  std::int32_t header[3] = {};
  std::memcpy(header, file.data(), std::min(sizeof header, file.bytes()));
  const auto format = header[0] == kLlmc16.magic ? kLlmc16 : header[0] == kLlmc32.magic ? kLlmc32 : BinFormat{0, 0, 2};
  if (format.magic == 0) {
    if (file.bytes() % 2 != 0) {
      throw unusable(path, fmt::format("{} bytes are not a whole number of uint16 tokens", file.bytes()),
                     "The file is cut off or not a token file: write it again, or set data.source=\"text\"");
    }
    return std::make_unique<BinFile<std::uint16_t>>(path, std::move(file), 0, vocab_size);
  }
  const std::string again = "The file is cut off or damaged: write it again";
  if (file.bytes() < kHeaderBytes) {
    throw unusable(path, fmt::format("the llm.c header has {} bytes of {}", file.bytes(), kHeaderBytes), again);
  }
  if (header[1] != format.version) {
    throw unusable(path, fmt::format("llm.c token file of version {} where {} is read", header[1], format.version),
                   "Write it again with the current llm.c scripts");
  }
  const std::size_t payload = file.bytes() - kHeaderBytes;
  if (header[2] <= 0 || payload != static_cast<std::size_t>(header[2]) * format.token_bytes) {
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
    std::vector<std::int64_t> block(1 << 20);
    for (std::int64_t first = 0; first < length; first += static_cast<std::int64_t>(block.size())) {
      block.resize(static_cast<std::size_t>(std::min(length - first, std::int64_t{1} << 20)));
      tokens.read_from(first, std::span<std::int64_t>(block));
      require_in_vocabulary(std::span<const std::int64_t>(block), first, vocab_size, tokens.where());
    }
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

}  // namespace

Corpus::Corpus(std::unique_ptr<const Source> source) : source_(std::move(source)) {}
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
