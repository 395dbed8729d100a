#include "data/formats.hpp"

#include <fmt/core.h>
#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "config/text.hpp"  // first_bad_utf8
#include "io/files.hpp"
#include "io/h5.hpp"
#include "kernels/core/random.hpp"

namespace tessera::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read as they are");

constexpr std::int64_t kHeaderBytes = 256 * sizeof(std::int32_t);  // llm.c

/// The two llm.c formats: magic and version stand first in the header, the number of tokens third.
struct BinFormat {
  std::int32_t magic, version;
  std::int64_t token_bytes;
};
constexpr BinFormat kLlmc16{20240520, 1, 2}, kLlmc32{20240801, 7, 4};

/// Files that are no tokens, by their first bytes, and what to do with them. Three bytes at least: raw tokens begin
/// with any two.
struct Foreign {
  std::string_view start, what, action;
};
constexpr std::string_view kWriteRaw =
    "Write the tokens alone: in NumPy array.astype(\"uint16\").tofile(...), or into an HDF5 dataset";
constexpr std::string_view kUnpack = "Unpack it, and write the tokens as uint16 or into an HDF5 dataset";
constexpr Foreign kForeign[] = {
    {"\x93NUMPY", "a NumPy file", kWriteRaw},
    {"\x89HDF\r\n\x1a\n", "an HDF5 file", "Give it a name that ends in .h5: data.path=\"FILE.h5:/dataset\""},
    {"PAR1", "a Parquet file", kWriteRaw},
    {"ARROW1", "an Arrow file", kWriteRaw},
    {"PK\x03\x04", "a zip archive (as NumPy's .npz and PyTorch's .pt are)", kUnpack},
    {"\x1f\x8b\x08", "compressed by gzip", kUnpack},
    {"\x28\xb5\x2f\xfd", "compressed by zstd", kUnpack},
    {"\xfd\x37zXZ", "compressed by xz", kUnpack},
    {"BZh91AY&SY", "compressed by bzip2", kUnpack},
};

/// Whether the first bytes of a file look like text: UTF-8 without control characters but white space. Tokens that are
/// evenly distributed over 16 bits look so, 16 of them, with a probability below 1e-10.
bool is_text(std::string_view start) {
  constexpr std::size_t kShortest = 32, kLongest = 4096;
  if (start.size() < kShortest) return false;
  const std::string_view text = start.substr(0, kLongest);
  const std::optional<std::size_t> bad = config::first_bad_utf8(text);
  if (bad && *bad + 4 <= text.size()) return false;  // a character at the end may be cut
  return std::ranges::none_of(text.substr(0, bad.value_or(text.size())), [](char c) {
    return (c >= 0 && c < 0x20 && c != '\t' && c != '\n' && c != '\r' && c != '\f') || c == 0x7f;
  });
}

/// Rejects the first token outside 0..vocab_size-1; `first` is the position of tokens[0] in the file.
template <class Token>
void require_tokens_in_vocabulary(std::span<const Token> tokens, std::int64_t first, std::int64_t vocab_size,
                                  const std::string& name, const std::string& other_cause = "") {
  Token low = tokens[0], high = tokens[0];  // extremes first: that loop is vectorised
  for (const Token token : tokens) low = std::min(low, token), high = std::max(high, token);
  if (std::cmp_greater_equal(low, 0) && std::cmp_less(high, vocab_size)) return;
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](Token token) {
    return std::cmp_less(token, 0) || std::cmp_greater_equal(token, vocab_size);
  });
  throw unusable(name,
                 fmt::format("token {} at position {} is outside the vocabulary of {}", *bad,
                             first + (bad - tokens.begin()), vocab_size),
                 "Set model.vocab_size above the largest token, or tokenise the data again" + other_cause);
}

/// A regular file, not empty, that may be closed between reads.
class TokenFile {
 public:
  explicit TokenFile(std::string path) : path_(std::move(path)) {
    bytes_ = file_.emplace(path_, kOpening).bytes();
    if (bytes_ == 0) {
      throw unusable(path_, "the file is empty", "Write it again, or leave it out of data.path");
    }
  }
  const std::string& path() const { return path_; }
  std::int64_t bytes() const { return bytes_; }  // when it was first opened
  void close() { file_.reset(); }

  void read(std::int64_t first, std::span<std::byte> out) {
    open();
    file_->read(first, out);
  }
  /// Tokens first .. first+count-1 of an array that begins at byte `skip`.
  template <class Token>
  std::vector<Token> tokens(std::int64_t skip, std::int64_t first, std::int64_t count) {
    std::vector<Token> tokens(static_cast<std::size_t>(count));
    read(skip + first * static_cast<std::int64_t>(sizeof(Token)), std::as_writable_bytes(std::span(tokens)));
    return tokens;
  }
  /// Throws  Failure(Exit::files): missing, or of another size than when it was first opened.
  void open() {
    if (file_) return;
    if (const std::int64_t now = file_.emplace(path_, kOpening).bytes(); now != bytes_) {
      file_.reset();
      throw unusable(
          path_,
          fmt::format("it has {} bytes but had {} when it was opened: it was {} while it was read", now, bytes_,
                      now < bytes_ ? "shortened" : "lengthened"),
          "Restore it and resume from the last checkpoint (--resume auto); write other data to another file");
    }
  }

 private:
  static constexpr const char* kOpening = "opening data.path";
  std::string path_;
  std::optional<io::InputFile> file_;
  std::int64_t bytes_ = 0;
};

template <class Token>
struct BinFile final : Source {
  BinFile(TokenFile opened, std::int64_t skip, std::string made_by, std::string other_cause = "")
      : file(std::move(opened)), skip(skip), made_by(std::move(made_by)), other_cause(std::move(other_cause)) {}
  std::int64_t size() const override { return (file.bytes() - skip) / static_cast<std::int64_t>(sizeof(Token)); }
  void copy(std::int64_t first, std::span<std::int32_t> out) override {
    std::ranges::copy(file.tokens<Token>(skip, first, static_cast<std::int64_t>(out.size())), out.begin());
  }
  void close() override { file.close(); }
  bool can_leave(std::int64_t vocab_size) const override {
    return std::cmp_greater_equal(std::numeric_limits<Token>::max(), vocab_size);
  }
  void check(std::int64_t first, std::int64_t count, std::int64_t vocab_size) override {
    for_each_block(first, count, kBlock, [&](std::int64_t from, std::int64_t tokens) {
      const auto block = file.tokens<Token>(skip, from, tokens);
      require_tokens_in_vocabulary(std::span(block), from, vocab_size, name(), other_cause);
    });
  }
  std::string tokenisation() const override {
    return sizeof(Token) == 1 ? "bytes" : sizeof(Token) == 2 ? "uint16" : "uint32";
  }
  std::string format() const override { return made_by + tokenisation(); }
  std::string name() const override { return file.path(); }

  TokenFile file;
  std::int64_t skip;        // bytes before the first token
  std::string made_by;      // "llm.c's "
  std::string other_cause;  // of a token outside the vocabulary, for messages
};

/// Whether these look like wider tokens read as uint16: every second one, the upper half of a token, is 3 or less (as
/// for tokens below 2^18), and at least a quarter of the others is greater. Tokens whose distribution does not depend
/// on their position look like that with a probability below (3/4)^256.
bool are_halves(std::span<const std::uint16_t> tokens) {
  std::size_t pairs = tokens.size() / 2, above = 0;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    if (tokens[2 * pair + 1] > 3) return false;
    above += tokens[2 * pair] > 3 ? 1 : 0;
  }
  return pairs >= 256 && above >= pairs / 4;
}

/// nanoGPT's raw uint16, which nothing in the file identifies.
std::unique_ptr<Source> open_raw(TokenFile file) {
  if (file.bytes() % 2 != 0) {
    throw unusable(file.path(), fmt::format("{} bytes are not a whole number of uint16 tokens", file.bytes()),
                   "The file is cut off or not a token file: write it again, or set data.source=\"text\"");
  }
  const std::string wider = fmt::format(
      "write tokens of uint32 into an HDF5 dataset (data.path=\"FILE.h5\") or as llm.c "
      "does, behind its header of magic {}",
      kLlmc32.magic);
  const auto start = file.tokens<std::uint16_t>(0, 0, std::min(kBlock, file.bytes() / 2));
  if (is_text({reinterpret_cast<const char*>(start.data()), 2 * start.size()})) {
    throw unusable(file.path(), "a file without a header holds uint16, and this one looks like text",
                   "Set data.source=\"text\", or tokenise it");
  }
  if (are_halves(start)) {
    throw unusable(
        file.path(),
        fmt::format("a file without a header holds uint16, and these look like uint32 or wider: every "
                    "second one of the first {} is below 4",
                    start.size()),
        fmt::format("Write the tokens as uint16, or {}; tokens that are uint16 after all can be read from HDF5",
                    wider));
  }
  return std::make_unique<BinFile<std::uint16_t>>(std::move(file), 0, "raw ",
                                                  "; where its tokens are not uint16, " + wider);
}

/// Chooses by the header: llm.c's two formats or, without their magic, raw tokens.
std::unique_ptr<Source> open_bin(const std::string& path) {
  TokenFile file(path);
  std::int32_t header[3] = {};
  file.read(0, std::as_writable_bytes(std::span(header))
                   .first(static_cast<std::size_t>(std::min<std::int64_t>(sizeof header, file.bytes()))));
  const std::string_view start(reinterpret_cast<const char*>(header), sizeof header);
  for (const Foreign& foreign : kForeign) {
    if (start.starts_with(foreign.start)) {
      throw unusable(path, fmt::format("it is {}, not tokens", foreign.what), std::string(foreign.action));
    }
  }
  for (const BinFormat& format : {kLlmc16, kLlmc32}) {
    if (static_cast<std::uint32_t>(header[0]) == __builtin_bswap32(static_cast<std::uint32_t>(format.magic))) {
      throw unusable(path, "it is an llm.c file of the other byte order", "Write it again as little-endian numbers");
    }
  }
  if (header[0] != kLlmc16.magic && header[0] != kLlmc32.magic) return open_raw(std::move(file));
  const BinFormat& format = header[0] == kLlmc16.magic ? kLlmc16 : kLlmc32;
  const std::string again = "The file is cut off or damaged: write it again";
  if (file.bytes() < kHeaderBytes) {
    throw unusable(path, fmt::format("the llm.c header has {} bytes of {}", file.bytes(), kHeaderBytes), again);
  }
  if (header[1] != format.version) {
    throw unusable(path, fmt::format("llm.c token file of version {}, not {}", header[1], format.version),
                   "Write it again with the current llm.c scripts");
  }
  const std::int64_t payload = file.bytes() - kHeaderBytes;
  if (header[2] <= 0 || payload != header[2] * format.token_bytes) {
    throw unusable(path,
                   fmt::format("the llm.c header promises {} tokens of {} bytes, but {} bytes follow it", header[2],
                               format.token_bytes, payload),
                   again);
  }
  const std::string made_by = "llm.c's ";
  if (format.token_bytes == 2) return std::make_unique<BinFile<std::uint16_t>>(std::move(file), kHeaderBytes, made_by);
  return std::make_unique<BinFile<std::uint32_t>>(std::move(file), kHeaderBytes, made_by);
}

class Hdf5File final : public Source {
 public:
  Hdf5File(const std::string& path, std::string dataset) : file_(path), dataset_(std::move(dataset)) {
    const io::h5::Dataset& tokens = open();
    const auto type = tokens.type();
    where_ = tokens.where();
    length_ = tokens.size();
    if (type == io::h5::Type::text || type == io::h5::Type::float32 || type == io::h5::Type::float64 ||
        tokens.shape().size() != 1) {
      throw unusable(where_, "not a 1-D array of integers", "Name such a dataset: data.path=\"FILE.h5:/dataset\"");
    }
    tokens.require_contents();
    if (length_ == 0) throw unusable(where_, "the dataset is empty", "Give a dataset with tokens in data.path");
    is_narrow_ = type == io::h5::Type::uint8 || type == io::h5::Type::uint16;
    is_uint64_ = type == io::h5::Type::uint64;
  }
  std::int64_t size() const override { return length_; }
  void copy(std::int64_t first, std::span<std::int32_t> out) override { open().read_from(first, out); }
  void close() override {
    opened_.reset();
    file_.close();
  }
  bool can_leave(std::int64_t) const override { return true; }
  void check(std::int64_t first, std::int64_t count, std::int64_t vocab_size) override {
    is_uint64_ ? check_as<std::uint64_t>(first, count, vocab_size) : check_as<std::int64_t>(first, count, vocab_size);
  }
  std::string tokenisation() const override { return is_narrow_ ? "uint16" : "uint32"; }
  std::string format() const override { return "HDF5's " + tokenisation(); }
  std::string name() const override { return where_; }

 private:
  struct Opened {
    io::h5::File file;
    io::h5::Dataset tokens;
  };

  /// `Token` holds every value of the stored type.
  template <class Token>
  void check_as(std::int64_t first, std::int64_t count, std::int64_t vocab_size) {
    for_each_block(first, count, kBlock, [&](std::int64_t from, std::int64_t tokens) {
      std::vector<Token> block(static_cast<std::size_t>(tokens));
      open().read_from(from, std::span(block));
      require_tokens_in_vocabulary(std::span<const Token>(block), from, vocab_size, where_);
    });
  }

  const io::h5::Dataset& open() {
    if (opened_) return opened_->tokens;
    file_.open();  // rejects another size
    file_.close();
    auto file = io::h5::File::open(file_.path());
    auto tokens = file.dataset(dataset_);
    return opened_.emplace(Opened{std::move(file), std::move(tokens)}).tokens;
  }

  TokenFile file_;
  std::string dataset_, where_;
  std::int64_t length_;
  bool is_narrow_, is_uint64_;
  std::optional<Opened> opened_;
};

struct SingleToken final : Source {
  explicit SingleToken(std::int32_t token) : token(token) {}
  std::int64_t size() const override { return 1; }
  void copy(std::int64_t, std::span<std::int32_t> out) override { std::ranges::fill(out, token); }
  std::string tokenisation() const override { return "bytes"; }
  std::string name() const override { return "the end of text"; }

  std::int32_t token;
};

/// Runs of kRun tokens; within a run the token after x is (a x + c) mod V, or one time in kNoise any token.
struct Synthetic final : Source {
  static constexpr std::int64_t kSize = std::int64_t{1} << 22, kRun = 64;
  static constexpr std::uint64_t kNoise = 8;

  Synthetic(std::int64_t vocab_size, std::uint64_t seed)
      : vocabulary(static_cast<std::uint64_t>(vocab_size)),
        seed(seed),
        factor(mix(seed, 1) % vocabulary),
        shift(mix(seed, 2) % vocabulary) {}
  std::int64_t size() const override { return kSize; }
  void copy(std::int64_t first, std::span<std::int32_t> out) override {
    std::uint64_t token = 0;
    const std::int64_t last = first + static_cast<std::int64_t>(out.size());
    for (std::int64_t i = first / kRun * kRun; i < last; ++i) {  // a run is generated from its start
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

}  // namespace

Failure unusable(const std::string& name, const std::string& what, const std::string& action) {
  return Failure(Exit::files, "{}: {}. {}.", name, what, action);
}

std::unique_ptr<Source> open_bytes(const std::string& path) {
  return std::make_unique<BinFile<std::uint8_t>>(TokenFile(path), 0, "");
}

std::unique_ptr<Source> open_tokens(const std::string& path) {
  if (const auto [file, dataset] = split_hdf5_path(path); !file.empty())
    return std::make_unique<Hdf5File>(file, dataset);
  return open_bin(path);
}

std::unique_ptr<Source> single_token(std::int32_t token) { return std::make_unique<SingleToken>(token); }

std::unique_ptr<Source> make_synthetic(std::int64_t vocab_size, std::uint64_t seed) {
  return std::make_unique<Synthetic>(vocab_size, seed);
}

void require_in_vocabulary(std::span<const std::int32_t> tokens, std::int64_t first, std::int64_t vocab_size,
                           const Source& source) {
  require_tokens_in_vocabulary(tokens, first, vocab_size, source.name());
}

namespace {

bool exists(const std::string& path) {
  std::error_code ignored;  // glob(3) reports what cannot be examined
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

/// The pattern as glob(3) wants it: special characters escaped in leading folders that exist under their literal names.
std::string with_literal_folders(const std::string& pattern) {
  std::size_t end = 0;
  for (auto at = pattern.find('/', 1); at != std::string::npos && exists(pattern.substr(0, at));
       at = pattern.find('/', at + 1))
    end = at;
  std::string result;
  for (std::size_t at = 0; at < pattern.size(); ++at) {  // a backslash is itself everywhere
    if (std::string_view(at < end ? "*?[\\" : "\\").find(pattern[at]) != std::string_view::npos) result += '\\';
    result += pattern[at];
  }
  return result;
}

struct UnreadFolder {
  std::string path;
  int error = 0;
};
thread_local UnreadFolder unread;  // glob(3) passes its callback no user pointer

int stop_at_unread(const char* folder, int error) {
  if (error == ENOENT || error == ENOTDIR) return 0;  // nothing can match there
  unread = {folder, error};
  return 1;
}

}  // namespace

bool is_pattern(const std::string& path) {
  const auto bracket = path.find('[');
  const bool has_set = bracket != std::string::npos && path.find(']', bracket) != std::string::npos;
  return (has_set || path.find_first_of("*?") != std::string::npos) && !exists(path);
}

std::vector<std::string> matches_of(const std::string& pattern) {
  struct Matches : glob_t {
    Matches() : glob_t{} {}
    ~Matches() { globfree(this); }
  } found;
  const int status = ::glob(with_literal_folders(pattern).c_str(), GLOB_NOSORT, stop_at_unread, &found);
  if (status == GLOB_NOSPACE) throw std::bad_alloc();
  if (status == GLOB_ABORTED) throw io::file_failure(unread.path, "looking for data.path=" + pattern, unread.error);
  if (status == GLOB_NOMATCH) {
    throw Failure(Exit::files,
                  "{}: no file matches. In data.path, * stands for any characters but /, ? for one, [...] for one of "
                  "those inside, and none for a leading dot; anything else is itself. Check it with ls.",
                  pattern);
  }
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  std::ranges::sort(paths);
  return paths;
}

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

}  // namespace tessera::data
