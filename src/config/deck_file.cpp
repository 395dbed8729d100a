#include "config/deck_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "config/keys.hpp"  // kMaxTextBytes
#include "config/text.hpp"
#include "errors.hpp"

namespace tessera::config {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxDeckBytes = 1 << 18;             // a deck is a page of text; /dev/zero is not
constexpr std::size_t kMaxLineBytes = kMaxTextBytes + 96;  // bounds how deep a.a.a... nests, and so the parser's stack

}  // namespace

void refuse_deck(std::string_view deck, std::string_view wrong) { throw Failure(Exit::usage, "{}  {}", deck, wrong); }

fs::path working_directory() {
  std::error_code error;
  const fs::path path = fs::current_path(error);
  if (error)
    throw Failure(Exit::usage, "the current directory cannot be read ({}); change to one that exists", error.message());
  return path;
}

std::string read_deck_file(const fs::path& file) {
  const std::string name = file.string();
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) refuse_deck(name, "there is no such deck; check the path");
  if (error) refuse_deck(name, fmt::format("the deck cannot be read: {}; check the path", error.message()));
  if (status.type() == fs::file_type::directory) refuse_deck(name, "is a folder; name a deck (.toml) in it");
  std::ifstream stream(file, std::ios::binary);
  if (!stream)
    refuse_deck(name, fmt::format("the deck cannot be read: {}; check its permissions", std::strerror(errno)));
  std::string text(kMaxDeckBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) refuse_deck(name, "reading the deck failed; check the file system");
  text.resize(static_cast<std::size_t>(stream.gcount()));
  return text;
}

void require_deck_text(std::string_view text, std::string_view name) {
  const auto refuse_binary = [&](std::size_t offset) {
    refuse_deck(name,
                fmt::format("is not a text file: byte 0x{:02X} at offset {} is not UTF-8 text; name a deck (.toml)",
                            static_cast<unsigned char>(text[offset]), offset));
  };
  if (text.size() > kMaxDeckBytes)
    refuse_deck(name, fmt::format("is longer than {} bytes; name a deck (.toml)", kMaxDeckBytes));
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) refuse_binary(nul);
  if (const auto bad = first_bad_utf8(text)) refuse_binary(*bad);
  for (std::size_t start = 0, number = 1; start < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    if (end - start > kMaxLineBytes)
      refuse_deck(fmt::format("{}:{}:1", name, number),
                  fmt::format("line is longer than {} bytes; break it", kMaxLineBytes));
    start = end + 1;
  }
}

bool names_a_home(std::string_view text) { return text == "~" || text.starts_with("~/"); }

std::string resolved_path(const std::string& text, const fs::path& folder) {
  if (text.empty() || names_a_home(text)) return text;
  std::size_t end = text.size();
  for (const std::string_view mark : {".h5:/", ".hdf5:/"})
    if (const auto at = text.find(mark); at != std::string::npos) end = std::min(end, at + mark.size() - 2);
  const fs::path joined = folder / text.substr(0, end);
  const bool goes_up = std::ranges::find(joined, "..") != joined.end();  // from a link's target, not from the link
  std::error_code error;
  std::string file = goes_up ? fs::weakly_canonical(joined, error).string() : "";
  if (file.empty()) file = joined.lexically_normal().string();
  if (file.size() > 1 && file.ends_with('/')) file.pop_back();
  return file + text.substr(end);
}

}  // namespace tessera::config
